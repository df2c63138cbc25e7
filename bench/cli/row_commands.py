"""The commands on stored rows: bench results | rescore | export rows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from bench.adapters.export import TARGETS, export
from bench.errors import RequestError
from bench.rows import DEFAULT
from bench.rows.columns import COLUMNS, SCHEMA_VERSION
from bench.status import Status
from bench.terminal import output
from bench.terminal.options import (
    PATH,
    OneOf,
    command,
    format_option,
    request_words,
    results_option,
    warn_set_aside,
)
from bench.units import counted

RESCORED = (
    "row_id", "method", "task", "metric", "value", "new_value", "metric_version",
    "new_metric_version", "new_row_id",
)  # fmt: skip
WIDTH = max(map(len, TARGETS))
KNOWN = "\n".join(f"  {name:<{WIDTH}}  {t.into:<6}  {t.about}" for name, t in TARGETS.items())
PRESENT = click.Path(exists=True, path_type=Path)
_folder = click.argument("folder", type=PRESENT, default=DEFAULT, metavar="[DIR]")


@command(
    "List rows, newest last. The words are a filter, or a row's id. For the files of rows, see "
    "bench results merge, check and migrate.",
    "bench results method=vcc length=1024,4096\nbench results 3f2a --details",
)
@request_words()
@click.option("--seeds", is_flag=True, help="Scores: mean and spread over seeds.")
@click.option("--details", is_flag=True, help="Each figure of each row, as its run showed it.")
@results_option("folder")
@format_option()
def results(words: Sequence[str], seeds: bool, details: bool, folder: Path, form: str) -> int:
    from bench.rows import query
    from bench.rows.store import LIGHT
    from bench.terminal import row_table, rows_table

    rows, warnings = query.select(words, folder, [*COLUMNS] if details else LIGHT)
    warn_set_aside(warnings)
    ids = [word for word in words if "=" not in word]
    if ids and not rows:
        raise RequestError(f"no row of {folder} has an id that begins with '{ids[0]}'")
    if not rows:
        print(f"no rows in {folder} that fit", file=sys.stderr)
    elif seeds and not (records := query.over_seeds(rows)):
        print(f"no scores in {folder} that fit", file=sys.stderr)
    elif seeds:
        rows_table.show_seeds(records, form)
    elif details:
        for row in rows:
            row_table.show(row, folder, details)
    elif output.tabular(form):
        output.write(form, rows_table.COLUMNS, rows)
    else:
        rows_table.show(rows)
    return 0


@command("Copy rows and predictions of folders or files into one folder, each row once.")
@click.argument("sources", nargs=-1, required=True, type=PRESENT, metavar="SOURCE...")
@click.option("--into", required=True, type=PATH, metavar="DIR", help="Made if absent.")
def merge(sources: Sequence[Path], into: Path) -> int:
    from bench.rows import query, store

    added, present, warnings = store.merge(sources, into)
    copied = sum(query.copy_predictions(source, into) for source in sources)
    warn_set_aside(warnings)
    files = counted(copied, "prediction file")
    print(f"{counted(added, 'row')} added to {into}, {present} already there; {files} copied")
    return 0


@command("Read every value of every file and print what is wrong.")
@_folder
@click.option("--repair", is_flag=True, help="Rename torn files to *.torn, and remove leftovers.")
@format_option(default="table")
def check(folder: Path, repair: bool, form: str) -> int:
    """Exit code 1 while the folder has a file that can't be read or isn't ours."""
    from bench.rows import store
    from bench.rows.shards import Problem

    problems = store.check(folder, repair)
    repairs = {"torn": "set aside as *.torn", "leftover": "removed"} if repair else {}
    if output.tabular(form):
        records = [{**p._asdict(), "repaired": p.kind in repairs} for p in problems]
        output.write(form, (*Problem._fields, "repaired"), records)
    else:
        for p in problems:
            print(f"{p} ({repairs[p.kind]})" if p.kind in repairs else p)
    left = [p for p in problems if p.kind not in (*repairs, "duplicate")]
    kept = store.Store(folder).rows(["row_id"]).num_rows
    output.remark(
        form,
        f"{folder}: {counted(kept, 'row')} can be read, {counted(len(left), 'file')} to look at",
    )
    return 1 if left else 0


@command("Print which schema versions load. Files are never rewritten in place.")
@_folder
@click.option("--into", type=PATH, metavar="DIR", help="A new folder in today's schema.")
def migrate(folder: Path, into: Path | None) -> int:
    from bench.rows import query, store

    for version, (files, count) in query.versions(folder).items():
        today = version == SCHEMA_VERSION
        how = "today's" if today else f"loads as schema {SCHEMA_VERSION}"
        print(f"schema {version} ({how}): {counted(files, 'file')}, {counted(count, 'row')}")
    if into:
        return int(click.get_current_context().invoke(merge, sources=[folder], into=into))
    opened = store.Store(folder)
    opened.rows(["row_id"])
    warn_set_aside(opened.warnings)
    return 0


@command(
    "Score stored predictions again and add a row where the metric has another version. The words "
    "are a filter of rows; without them, all."
)
@request_words()
@results_option()
@click.option("--all", "also_current", is_flag=True, help="Rows of the same metric version too.")
@format_option(default="table")
def rescore(words: Sequence[str], results: Path, also_current: bool, form: str) -> int:
    """Exit code 1 when a row couldn't be scored again; the other rows are scored."""
    from bench.rows import query, store
    from bench.rows import rescore as scoring

    rows, warnings = query.select(words, results, list(COLUMNS))
    warn_set_aside(warnings)
    counting = [row for row in query.counting(rows) if row["status"] != Status.RETIRED]
    scored = [row for row in counting if row["value"] is not None]
    current, failed, records = 0, 0, []
    for row in scored:
        title = f"row {row['row_id'][:12]} ({row['method']} × {row['task']})"
        try:
            version = scoring.metric_version(row)
            if version == row["metric_version"] and not also_current:
                current += 1
                continue
            new = scoring.rescored(row, results)
        except RequestError as error:
            print(f"bench: can't score {title} again: {error}", file=sys.stderr)
            failed += 1
            continue
        store.Store(results).append([new])
        news = {"new_value": new["value"], "new_metric_version": version}
        records.append({**row, **news, "new_row_id": new["row_id"]})
        if not output.tabular(form):
            print(
                f"{title}: {row['metric']} {row['value']:.2f} → {new['value']:.2f}, metric version "
                f"{row['metric_version']} → {version}, now row {new['row_id'][:12]}"
            )
    if output.tabular(form):
        output.write(form, RESCORED, records)
    added = counted(len(records), "row")
    summary = f"{added} added, {current} already of today's metric, {failed} failed"
    output.remark(form, summary)
    return 1 if failed else 0


@command(
    "Write rows in the formats of other tools. The words are a filter, or a row's id.",
    "bench export rows --to csv --into rows.csv\n"
    "bench export rows method=vcc length=1024,4096 --to jsonl --into rows.jsonl\n\n"
    f"--to, what --into names, and what is written:\n{KNOWN}",
)
@request_words()
@click.option(
    "--to", required=True, type=OneOf([*TARGETS]), metavar="TARGET", help=f"{', '.join(TARGETS)}."
)
@click.option("--into", required=True, type=PATH, metavar="PATH")
@results_option()
def export_rows(words: Sequence[str], to: str, into: Path, results: Path) -> int:
    """Writes files only: nothing is sent anywhere."""
    into, kind = into.expanduser(), TARGETS[to].into
    wanted, other = ("a file", "a folder") if kind == "FILE" else ("into a folder", "a file")
    if into.exists() and into.is_dir() != (kind == "DIR"):
        raise RequestError(f"--into {into} is {other}; --to {to} writes {wanted}")
    from bench.rows import query

    chosen, warnings = query.select(words, results, list(COLUMNS))
    warn_set_aside(warnings)
    if not chosen:
        raise RequestError(f"no row in {results} fits; bench results lists rows")
    print(export(to, chosen, into))
    return 0
