"""The commands on stored rows: bench results | rescore."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from bench.errors import RequestError
from bench.store.columns import COLUMNS, SCHEMA_VERSION
from bench.store.query import DEFAULT
from bench.terminal import text_table
from bench.terminal.arguments import (
    add_format,
    add_json,
    add_results,
    parser_for,
    warn_set_aside,
)

RESCORED = (
    "row_id", "method", "task", "metric", "value", "new_value", "metric_version",
    "new_metric_version", "new_row_id",
)  # fmt: skip


def results(arguments: Sequence[str]) -> int:
    """List rows, newest last; or what the first word says instead."""
    others = {"merge": merge, "check": check, "migrate": migrate}
    if arguments and arguments[0] in others:
        return others[arguments[0]](arguments[1:])
    parser = parser_for(
        "results",
        "list rows, newest last; or: bench results merge | check | migrate (each with --help)",
        "bench results method=vcc length=1024,4096\nbench results 3f2a\nbench results --seeds",
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="a filter, or a row's id")
    parser.add_argument("--seeds", action="store_true", help="scores: mean and spread over seeds")
    add_results(parser)
    add_format(parser)
    options = parser.parse_args(arguments)
    from bench.store import over_seeds, query
    from bench.terminal import rows_table

    rows, warnings = query.select(options.words, options.results)
    warn_set_aside(warnings)
    ids = [word for word in options.words if "=" not in word]
    if ids and not rows:
        raise RequestError(f"no row of {options.results} has an id that begins with '{ids[0]}'")
    if not rows:
        print(f"no rows in {options.results} that fit", file=sys.stderr)
    elif options.seeds and not (records := over_seeds.over_seeds(rows)):
        print(f"no scores in {options.results} that fit", file=sys.stderr)
    elif options.seeds and text_table.tabular(options.format):
        text_table.write(options.format, over_seeds.COLUMNS, records)
    elif options.seeds:
        rows_table.show_seeds(records)
    elif text_table.tabular(options.format):
        text_table.write(options.format, rows_table.COLUMNS, rows)
    else:
        rows_table.show(rows)
    return 0


def merge(arguments: Sequence[str]) -> int:
    """Copy rows of several folders into one, with their predictions."""
    parser = parser_for("results merge", "copy rows and predictions into one folder, each row once")
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="folders or files")
    parser.add_argument("--into", required=True, type=Path, metavar="DIR", help="made if absent")
    options = parser.parse_args(arguments)
    from bench.store import query, store

    sources, into = options.sources, options.into
    for source in sources:
        _exists(source)
    added, present, warnings = store.merge(sources, into)
    copied = sum(query.copy_predictions(source, into) for source in sources)
    warn_set_aside(warnings)
    print(
        f"{added} rows added to {into}, {present} already there; {copied} prediction files copied"
    )
    return 0


def check(arguments: Sequence[str]) -> int:
    """Exit code 1 while a file is left that can't be read or isn't ours."""
    parser = parser_for("results check", "read every value of every file and say what is wrong")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, metavar="DIR")
    parser.add_argument(
        "--repair", action="store_true", help="rename torn files to *.torn, remove leftovers"
    )
    add_json(parser)
    options = parser.parse_args(arguments)
    _exists(options.folder)
    from bench.store import store
    from bench.store.shards import Problem

    problems = store.check(options.folder, options.repair)
    repairs = {"torn": "set aside as *.torn", "leftover": "removed"} if options.repair else {}
    is_json = text_table.tabular(options.format)
    if is_json:
        records = [{**p._asdict(), "repaired": p.kind in repairs} for p in problems]
        text_table.write(options.format, (*Problem._fields, "repaired"), records)
    for problem in () if is_json else problems:
        print(f"{problem} ({repairs[problem.kind]})" if problem.kind in repairs else problem)
    left = [p for p in problems if p.kind not in (*repairs, "duplicate")]
    kept = store.Store(options.folder).rows(["row_id"]).num_rows
    summary = f"{options.folder}: {kept} rows can be read, {len(left)} files need a look"
    print(summary, file=sys.stderr if is_json else sys.stdout)
    return 1 if left else 0


def migrate(arguments: Sequence[str]) -> int:
    """Old files load as they are and are never rewritten."""
    parser = parser_for(
        "results migrate", "say which schema versions load; files are never rewritten in place"
    )
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, metavar="DIR")
    parser.add_argument("--into", type=Path, metavar="DIR", help="a new folder in today's schema")
    options = parser.parse_args(arguments)
    _exists(options.folder)
    from bench.store import query, store

    for version, (files, count) in query.versions(options.folder).items():
        today = version == SCHEMA_VERSION
        how = "today's" if today else f"loads as schema {SCHEMA_VERSION}"
        print(f"schema {version} ({how}): {files} files, {count} rows")
    if options.into:
        return merge([str(options.folder), "--into", str(options.into)])
    opened = store.Store(options.folder)
    opened.rows(["row_id"])
    warn_set_aside(opened.warnings)
    return 0


def rescore(arguments: Sequence[str]) -> int:
    """Exit code 1 when a row couldn't be scored again; the others are."""
    parser = parser_for(
        "rescore",
        "score stored predictions again and add a row where the metric has another version",
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="which rows; all without it")
    add_results(parser)
    parser.add_argument("--all", action="store_true", help="rows of the same metric version too")
    add_json(parser)
    options = parser.parse_args(arguments)
    from bench.store import query, store
    from bench.store import rescore as scoring

    rows, warnings = query.select(options.words, options.results, list(COLUMNS))
    warn_set_aside(warnings)
    scored = [row for row in query.counting(rows) if row["value"] is not None]
    is_json = text_table.tabular(options.format)
    current, failed, records = 0, 0, []
    for row in scored:
        title = f"row {row['row_id'][:12]} ({row['method']} × {row['task']})"
        try:
            version = scoring.metric_version(row)
            if version == row["metric_version"] and not options.all:
                current += 1
                continue
            new = scoring.rescored(row, options.results)
        except scoring.ScoreError as error:
            print(f"bench: can't score {title} again: {error}", file=sys.stderr)
            failed += 1
            continue
        store.Store(options.results).append([new])
        records.append({
            "row_id": row["row_id"], "method": row["method"], "task": row["task"],
            "metric": row["metric"], "value": row["value"], "new_value": new["value"],
            "metric_version": row["metric_version"], "new_metric_version": version,
            "new_row_id": new["row_id"],
        })  # fmt: skip
        if not is_json:
            print(
                f"{title}: {row['metric']} {row['value']:.2f} → {new['value']:.2f}, metric version "
                f"{row['metric_version']} → {version}, now row {new['row_id'][:12]}"
            )
    if is_json:
        text_table.write(options.format, RESCORED, records)
    summary = f"{len(records)} rows added, {current} already of today's metric, {failed} failed"
    print(summary, file=sys.stderr if is_json else sys.stdout)
    return 1 if failed else 0


def _exists(path: Path) -> None:
    if not path.exists():
        raise RequestError(f"no folder {path}")
