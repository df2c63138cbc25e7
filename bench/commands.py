"""The commands that read stored rows: bench results | rescore | compare | explain."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from bench import tables
from bench.errors import RequestError
from bench.rows import DEFAULT


def results(arguments: Sequence[str]) -> int:
    """List rows, newest last; or what the first word says instead."""
    other = {"merge": merge, "check": check, "migrate": migrate}.get(
        arguments[0] if arguments else ""
    )
    if other:
        return other(arguments[1:])
    parser = parser_for(
        "results",
        "list rows, newest last; or: bench results merge | check | migrate (each with --help)",
        "bench results method=vcc length=1024,4096\nbench results 3f2a",
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="a filter, or a row's id")
    _where(parser)
    parser.add_argument("--format", choices=tables.FORMATS, default="auto", help=FORMAT_HELP)
    options = parser.parse_args(arguments)
    from bench import listing, rows

    found, warnings = rows.select(options.words, options.results)
    _warn(warnings)
    if not found:
        print(f"no rows in {options.results} that fit", file=sys.stderr)
    elif tables.tabular(options.format):
        tables.tsv(listing.COLUMNS, found)
    else:
        listing.show(found)
    return 0


def merge(arguments: Sequence[str]) -> int:
    """Copy rows of several folders into one, with their predictions."""
    parser = parser_for("results merge", "copy rows and predictions into one folder, each row once")
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE", help="folders or files")
    parser.add_argument("--into", required=True, type=Path, metavar="DIR", help="made if absent")
    options = parser.parse_args(arguments)
    return _merged(options.sources, options.into)


def _merged(sources: Sequence[Path], into: Path) -> int:
    from bench import rows, store

    for source in sources:
        _exists(source)
    added, known, warnings = store.merge(sources, into)
    copied = sum(rows.copy_predictions(source, into) for source in sources)
    _warn(warnings)
    print(f"{added} rows added to {into}, {known} already there; {copied} prediction files copied")
    return 0


def check(arguments: Sequence[str]) -> int:
    """Exit code 1 while a file is left that can't be read or isn't ours."""
    parser = parser_for("results check", "read every value of every file and say what is wrong")
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, metavar="DIR")
    parser.add_argument(
        "--repair", action="store_true", help="rename torn files to *.torn, remove leftovers"
    )
    options = parser.parse_args(arguments)
    _exists(options.folder)
    from bench import store

    problems = store.check(options.folder, options.repair)
    mended = {"torn": "set aside as *.torn", "leftover": "removed"} if options.repair else {}
    for problem in problems:
        print(f"{problem} ({mended[problem.kind]})" if problem.kind in mended else problem)
    left = [p for p in problems if p.kind not in (*mended, "duplicate")]
    kept = store.Store(options.folder).rows(["row_id"]).num_rows
    print(f"{options.folder}: {kept} rows can be read, {len(left)} files need a look")
    return 1 if left else 0


def migrate(arguments: Sequence[str]) -> int:
    """Old files load as they are and are never rewritten; --into writes a copy."""
    parser = parser_for(
        "results migrate", "say which schema versions load; files are never rewritten in place"
    )
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT, metavar="DIR")
    parser.add_argument("--into", type=Path, metavar="DIR", help="a new folder in today's schema")
    options = parser.parse_args(arguments)
    _exists(options.folder)
    from bench import rows, store

    for version, (files, count) in rows.versions(options.folder).items():
        today = version == store.SCHEMA_VERSION
        how = "today's" if today else f"loads as schema {store.SCHEMA_VERSION}"
        print(f"schema {version} ({how}): {files} files, {count} rows")
    if options.into:
        return _merged([options.folder], options.into)
    found = store.Store(options.folder)
    found.rows(["row_id"])
    _warn(found.warnings)
    return 0


def rescore(arguments: Sequence[str]) -> int:
    """Exit code 1 when a row couldn't be scored again; the others are."""
    parser = parser_for(
        "rescore",
        "score stored predictions again and add a row where the metric has another version",
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="which rows; all without it")
    _where(parser)
    parser.add_argument("--all", action="store_true", help="rows of the same metric version too")
    options = parser.parse_args(arguments)
    from bench import rescore as scoring
    from bench import rows, store

    found, warnings = rows.select(options.words, options.results, list(store.COLUMNS))
    _warn(warnings)
    scored = [row for row in rows.counting(found) if row["value"] is not None]
    added, current, failed = 0, 0, 0
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
        added += 1
        print(
            f"{title}: {row['metric']} {row['value']:.2f} → {new['value']:.2f}, metric version "
            f"{row['metric_version']} → {version}, now row {new['row_id'][:12]}"
        )
    print(f"{added} rows added, {current} already of today's metric, {failed} failed")
    return 1 if failed else 0


def compare(arguments: Sequence[str]) -> int:
    """Exit code 1 when a --fail-if says so."""
    parser = parser_for(
        "compare",
        "is B better than A? quality, latency (ratio of ratios to vanilla) and memory",
        "bench compare method=vanilla method=vcc\n"
        "bench compare method=vcc,method.k=8 method=vcc,method.k=16\n"
        "bench compare results/before results/after --fail-if 'latency > 5%'\n\n"
        "A and B: a row's id, a folder of rows, or a filter over --results. Cells are matched on\n"
        "everything but what A and B say differently. Changes are those of B against A.",
    )
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    _where(parser)
    parser.add_argument(
        "--on", action="append", default=[], metavar="NAME", help="match cells that differ in NAME"
    )
    parser.add_argument(
        "--margin", type=float, default=1.0, metavar="POINTS", help="quality within it is the same"
    )
    parser.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="LIMIT",
        help="'latency > 5%%', 'memory > 10%%', 'quality < -2%%', in percent of A: exit code 1 "
        "when a change is beyond it and sure (its interval, and p after Holm, exclude no change), "
        "when B failed where A is ok, or when no cell has the figure",
    )
    parser.add_argument("--format", choices=tables.FORMATS, default="auto", help=FORMAT_HELP)
    options = parser.parse_args(arguments)
    from bench import comparison

    return comparison.run(options)


def explain(arguments: Sequence[str]) -> int:
    """What makes two rows different cells, and what else differs."""
    parser = parser_for("explain", "which parts of the key differ between two rows, and what else")
    parser.add_argument("row1", metavar="ROW1", help="a row's id (its first letters), or FOLDER/ID")
    parser.add_argument("row2", metavar="ROW2")
    _where(parser)
    parser.add_argument("--format", choices=tables.FORMATS, default="auto", help=FORMAT_HELP)
    options = parser.parse_args(arguments)
    from bench import comparison

    return comparison.explain(options)


FORMAT_HELP = "auto: a table at a terminal, tab-separated values elsewhere"
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "results": (results, "list rows; results merge | check | migrate"),
    "rescore": (rescore, "score stored predictions again after a metric changed"),
    "compare": (compare, "is B better than A, and how sure?"),
    "explain": (explain, "what differs between two rows"),
}


def parser_for(name: str, about: str, examples: str = "") -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"bench {name}",
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=DEFAULT, metavar="DIR", help=f"folder of rows ({DEFAULT})"
    )


def _exists(path: Path) -> None:
    if not path.exists():
        raise RequestError(f"no folder {path}")


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print(f"bench: set aside {warning}", file=sys.stderr)
