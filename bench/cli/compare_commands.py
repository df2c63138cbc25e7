"""The commands that compare rows: bench compare | explain | verify | submit-check."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import RequestError
from bench.terminal.arguments import add_format, add_json, add_results, parser_for, warn_set_aside

if TYPE_CHECKING:
    from bench.compare.submission import Remark
    from bench.compare.verify import FigureCheck
    from bench.store.columns import Row

REFERENCE = Path("results/reference")


def compare(arguments: Sequence[str]) -> int:
    """Exit code 1 when a change exceeds a limit of --fail-if, 0 without limits."""
    parser = parser_for(
        "compare",
        "is B better than A? quality, latency (ratio of ratios to vanilla) and memory",
        "bench compare method=vanilla method=vcc\n"
        "bench compare method=vcc,method.k=8 method=vcc,method.k=16\n"
        "bench compare results/before results/after --fail-if 'latency > 5%'\n"
        "bench compare before after --fail-if 'latency > 5%' --format github > comment.md\n\n"
        "A and B: a row's id, a folder of rows, or a filter over --results. Cells are matched on\n"
        "everything that the two filters don't give differently. Changes: B against A.\n"
        "Exit code: 1 beyond a limit of --fail-if, 2 for a wrong request, otherwise 0.\n"
        "--format github: a comment for a pull request, docs/ci.md.",
    )
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    add_results(parser)
    add = parser.add_argument
    add("--on", action="append", default=[], metavar="NAME", help="match cells that differ in NAME")
    add("--margin", type=float, default=1.0, metavar="POINTS", help="quality within it is the same")
    add(
        "--fail-if",
        action="append",
        default=[],
        metavar="LIMIT",
        help="'latency > 5%%', 'memory > 10%%', 'quality < -2%%', in percent of A: exit code 1 "
        "when a change is beyond it and sure (its interval, and p after Holm, exclude no change), "
        "when B failed where A is ok, or when no cell has the figure",
    )
    add_format(parser, "github")
    options = parser.parse_args(arguments)
    from bench.compare import compare_report
    from bench.compare.compare import parse_limit
    from bench.store import query
    from bench.terminal import comparison_markdown, comparison_table

    limits = [parse_limit(text) for text in options.fail_if]
    a, b = (query.side(text, options.results) for text in (options.a, options.b))
    warn_set_aside([*a.warnings, *b.warnings])
    cells, matched = compare_report.compare_selections(a, b, options.on, options.margin)
    lines = [line for limit in limits for line in compare_report.exceeded(limit, cells)]
    if options.format == "github":
        texts = [limit.text for limit in limits]
        sides = (options.a, options.b)
        print(comparison_markdown.comment(sides, cells, matched, texts, lines))
    else:
        title = f"B: {options.b}, against A: {options.a}"
        comparison_table.show_cells(title, cells, options.format)
    for side, rows in (("A", matched.only_a), ("B", matched.only_b)):
        if rows:
            print(f"bench: {len(rows)} cells of {side} have no counterpart", file=sys.stderr)
    for line in lines:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if lines else 0


def explain(arguments: Sequence[str]) -> int:
    """What makes two rows different cells, and what else differs."""
    parser = parser_for("explain", "which parts of the key differ between two rows, and what else")
    parser.add_argument("row1", metavar="ROW1", help="a row's id (its first letters), or FOLDER/ID")
    parser.add_argument("row2", metavar="ROW2")
    add_results(parser)
    add_format(parser)
    options = parser.parse_args(arguments)
    from bench.compare import matching
    from bench.store import query
    from bench.terminal import comparison_table

    sides = [query.side(text, options.results) for text in (options.row1, options.row2)]
    for side in sides:
        if not side.one and len(side.rows) > 1:
            raise RequestError(f"'{side.text}' names {len(side.rows)} rows; explain takes one")
    a, b = (side.rows[-1] for side in sides)
    key, beside = matching.key_differences(a, b), matching.other_differences(a, b)
    comparison_table.show_explanation(a, b, key, beside, options.format)
    return 0


def verify(arguments: Sequence[str]) -> int:
    """Exit code 1 when the row disagrees."""
    parser = parser_for(
        "verify",
        "measure a row again on this machine: agrees, disagrees, or this host can't tell",
        "bench verify 3f2a91\nbench verify contributed/3f2a91 --data-dir /data",
    )
    parser.add_argument("row", metavar="ROW", help="a row's id (its first letters), or FOLDER/ID")
    add_results(parser)
    _add_measuring(parser)
    options = parser.parse_args(arguments)
    from bench.compare.verify import Agreement, overall
    from bench.store import query
    from bench.terminal import comparison_table

    selection = query.side(options.row, options.results)
    if not selection.one:
        raise RequestError(f"'{options.row}' is no row's id; bench results lists rows")
    row = query.best(selection.rows)
    checks = _measure_again(row, options)
    comparison_table.show_checks(row, checks, options.format)
    verdict = overall(checks)
    host = "this host " if verdict == Agreement.CANT_TELL else ""
    out = sys.stdout if options.format == "table" else sys.stderr
    print(f"row {row['row_id'][:12]}: {host}{verdict}", file=out)
    return 1 if verdict == Agreement.DISAGREES else 0


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where rows of data=local lie on this machine"
    )
    parser.add_argument("--deadline-s", type=float, default=3600.0, metavar="SECONDS")
    add_json(parser)


def _measure_again(row: Row, options: argparse.Namespace) -> list[FigureCheck]:
    """How a second measurement of a row compares."""
    from bench.compare import verify as verifying
    from bench.terminal import run_progress

    title = f"{row['method']} × {row['task']} × {row['model']}"
    with run_progress.progress(title) as progress:
        return verifying.verify(row, options.data_dir, options.deadline_s, progress)


def submit_check(arguments: Sequence[str]) -> int:
    """Exit code 1 when something is wrong."""
    parser = parser_for(
        "submit-check",
        "check a contributed folder of rows: docs/submitting.md says what for",
        "bench submit-check results/reference\n"
        "bench submit-check contributed --base origin/main --sample 4\n\n"
        "Rows that are in the base already stay: they aren't measured again, and refuse nothing.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    add = parser.add_argument
    add("--base", metavar="REF", help="branch that it's to be merged into (origin/main, main)")
    add("--against", type=Path, action="append", metavar="DIR",
        help=f"other hosts' rows ({REFERENCE})")  # fmt: skip
    add("--sample", type=int, default=2, metavar="N", help="new cells to measure again (2)")
    parser.add_argument("--max-mib", type=float, default=10.0, metavar="MIB")
    _add_measuring(parser)
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        raise RequestError(
            f"no folder {options.folder}; bench run results={options.folder} … makes one"
        )
    from bench.compare import submission
    from bench.compare.derivations import Level
    from bench.store.store import Store
    from bench.terminal import comparison_table, run_progress, text_table

    folder, against = options.folder, options.against or [p for p in (REFERENCE,) if p.exists()]
    accepted = submission.accepted_rows(folder, options.base)
    rows = Store(folder).rows().to_pylist()
    remarks = list(submission.file_checks(folder, options.max_mib))
    with run_progress.progress(f"checking {folder}") as progress:
        remarks += submission.row_checks(folder, rows, accepted, against, progress)
    is_text = options.format == "table"
    _print_remarks(remarks if is_text else ())
    for row in submission.draw_sample(rows, max(0, options.sample), remarks, accepted or {}):
        checks = _measure_again(row, options)
        remarks.append(submission.measured_again(row, checks))
        if is_text:
            comparison_table.show_checks(row, checks)
            _print_remarks(remarks[-1:])
    if not is_text:
        names = ("level", "where", "text")
        text_table.write(options.format, names, [remark._asdict() for remark in remarks])
    wrong, look = (sum(r.level == level for r in remarks) for level in (Level.WRONG, Level.LOOK))
    out = sys.stdout if is_text else sys.stderr
    print(f"{folder}: {len(rows)} rows, {wrong} wrong, {look} to look at", file=out)
    return 1 if wrong or not rows else 0


def _print_remarks(remarks: Iterable[Remark]) -> None:
    for remark in remarks:
        print(f"{remark.level:<6} {remark.where}: {remark.text}", flush=True)
