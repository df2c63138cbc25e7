"""The commands that compare rows: bench compare | explain | verify | submit-check."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import RequestError
from bench.terminal import output
from bench.terminal.options import (
    PATH,
    command,
    complete_words,
    format_option,
    request_words,
    results_option,
    warn_set_aside,
)
from bench.units import counted

if TYPE_CHECKING:
    from bench.compare.submission import Remark
    from bench.compare.verify import FigureCheck
    from bench.rows.columns import Row

REFERENCE = Path("results/reference")


@command(
    "Is B better than A? Quality, latency (ratio of ratios to vanilla) and memory.",
    "bench compare method=vanilla method=vcc\n"
    "bench compare method=vcc,method.k=8 method=vcc,method.k=16\n"
    "bench compare method=snapkv method=tova task=quality length=8192\n"
    "bench compare results/before results/after --fail-if 'latency > 5%'\n"
    "bench compare before after --fail-if 'latency > 5%' --format github > comment.md\n\n"
    "A and B: a row's id, a folder of rows, or a filter over --results; more words filter both.\n"
    "Cells are matched on everything that A and B do not give differently, methods with a budget\n"
    "at the same budget. Changes: B against A.\n"
    "Exit code: 1 beyond a limit of --fail-if, 2 for a wrong request, otherwise 0.\n"
    "--format github: a comment for a pull request, docs/ci.md.",
)
@click.argument("first", metavar="A", shell_complete=complete_words)
@click.argument("second", metavar="B", shell_complete=complete_words)
@request_words()
@results_option()
@click.option("--on", multiple=True, metavar="NAME", help="Match cells that differ in NAME.")
@click.option(
    "--margin", type=float, default=1.0, metavar="POINTS", help="Quality within it is the same."
)
@click.option(
    "--fail-if",
    multiple=True,
    metavar="LIMIT",
    help="A figure (quality, latency, tpot, memory, kv_held) and a change in percent of A, such as "
    "'latency > 5%' or 'quality < -2%': exit code 1 when a change is beyond it and sure (its "
    "interval, and p after Holm, exclude no change), when B failed where A is ok, or when no cell "
    "has the figure.",
)
@format_option("github")
def compare(
    first: str, second: str, words: Sequence[str], results: Path, on: Sequence[str], margin: float,
    fail_if: Sequence[str], form: str
) -> int:  # fmt: skip
    """Exit code 1 when a change exceeds a limit of --fail-if, 0 without limits."""
    from bench.compare import matching
    from bench.compare.compare import parse_limit
    from bench.rows import query
    from bench.terminal import comparison_table

    limits = [parse_limit(text) for text in fail_if]
    a, b = query.sides((first, second), results, words)
    warn_set_aside([*a.warnings, *b.warnings])
    cells, matched = matching.compare_selections(a, b, on, margin)
    lines = [line for limit in limits for line in matching.exceeded(limit, cells)]
    if form == "github":
        texts = [limit.text for limit in limits]
        sides = (first, second)
        print(comparison_table.github_comment(sides, cells, matched, texts, lines))
    else:
        title = f"B: {second}, against A: {first}"
        comparison_table.show_cells(title, cells, form)
    for side, rows in (("A", matched.only_a), ("B", matched.only_b)):
        if rows:
            alone = counted(len(rows), "cell")
            print(f"bench: {alone} of {side} without a counterpart", file=sys.stderr)
    for line in lines:
        print(f"bench: {line}", file=sys.stderr)
    return 1 if lines else 0


@command(
    "Which parts of the key differ between two rows, and what else. A row is its id (its first "
    "letters), or FOLDER/ID."
)
@click.argument("row1")
@click.argument("row2")
@results_option()
@format_option()
def explain(row1: str, row2: str, results: Path, form: str) -> int:
    from bench.compare import matching
    from bench.terminal import comparison_table

    a, b = (_one_row(text, results) for text in (row1, row2))
    key, others = matching.key_differences(a, b), matching.other_differences(a, b)
    comparison_table.show_explanation(a, b, key, others, form)
    return 0


def _one_row(text: str, results: Path) -> Row:
    """The row that an argument selects. Raises RequestError if it selects several."""
    from bench.rows import query

    [side] = query.sides([text], results)
    if not side.one and len(side.rows) > 1:
        raise RequestError(f"'{text}' names {len(side.rows)} rows; give the id of one")
    return query.best(side.rows)


def _measuring_options(function: Any) -> Any:
    folder = click.option(
        "--data-dir", type=PATH, metavar="DIR", help="Where rows of data=local are on this machine."
    )
    deadline = click.option("--deadline-s", type=float, default=3600.0, metavar="SECONDS")
    return folder(deadline(format_option(default="table")(function)))


@command(
    "Measure a row again on this machine: agrees, disagrees, or this host can't tell. A row is its "
    "id (its first letters), or FOLDER/ID.",
    "bench verify 3f2a91\nbench verify contributed/3f2a91 --data-dir /data",
)
@click.argument("row_id", metavar="ROW")
@results_option()
@_measuring_options
def verify(row_id: str, results: Path, data_dir: Path | None, deadline_s: float, form: str) -> int:
    """Exit code 1 when the row disagrees."""
    from bench.compare.verify import Agreement, overall
    from bench.terminal import comparison_table

    row = _one_row(row_id, results)
    checks = _measure_again(row, data_dir, deadline_s)
    comparison_table.show_checks(row, checks, form)
    verdict = overall(checks)
    host = "this host " if verdict == Agreement.CANT_TELL else ""
    output.remark(form, f"row {row['row_id'][:12]}: {host}{verdict}")
    return 1 if verdict == Agreement.DISAGREES else 0


def _measure_again(row: Row, data_dir: Path | None, deadline_s: float) -> list[FigureCheck]:
    """A second measurement of a row, compared with the first."""
    from bench.compare import verify as verifying
    from bench.terminal import run_progress

    title = f"{row['method']} × {row['task']} × {row['model']}"
    with run_progress.progress(title) as progress:
        return verifying.verify(row, data_dir, deadline_s, progress)


@command(
    "Check a contributed folder of rows: docs/submitting.md has the rules. Rows that are in the "
    "base already are not measured again, and refuse nothing.",
    "bench submit-check results/reference\n"
    "bench submit-check contributed --base origin/main --sample 4",
)
@click.argument("folder", type=PATH, metavar="DIR")
@click.option("--base", metavar="REF", help="Branch to be merged into (origin/main, main).")
@click.option(
    "--against", type=PATH, multiple=True, metavar="DIR", help=f"Other hosts' rows ({REFERENCE})."
)
@click.option("--sample", type=int, default=2, metavar="N", help="New cells to measure again (2).")
@click.option("--max-mib", type=float, default=10.0, metavar="MIB")
@_measuring_options
def submit_check(
    folder: Path, base: str | None, against: Sequence[Path], sample: int, max_mib: float,
    data_dir: Path | None, deadline_s: float, form: str
) -> int:  # fmt: skip
    """Exit code 1 when something is wrong."""
    if not folder.is_dir():
        raise RequestError(f"no folder {folder}; bench run results={folder} … makes one")
    from bench.compare import submission
    from bench.rows.store import Store
    from bench.terminal import comparison_table, run_progress

    against = against or [path for path in (REFERENCE,) if path.exists()]
    accepted = submission.accepted_rows(folder, base)
    rows = Store(folder).rows().to_pylist()
    remarks = list(submission.file_checks(folder, max_mib))
    with run_progress.progress(f"checking {folder}") as progress:
        remarks += submission.row_checks(folder, rows, accepted, against, progress)
    is_text = not output.tabular(form)

    def show(remarks: Iterable[Remark]) -> None:
        for level, where, text in remarks if is_text else ():
            print(f"{level:<6} {where}: {text}", flush=True)

    show(remarks)
    for row in submission.draw_sample(rows, max(0, sample), remarks, accepted or {}):
        checks = _measure_again(row, data_dir, deadline_s)
        remarks.append(submission.measured_again(row, checks))
        if is_text:
            comparison_table.show_checks(row, checks)
        show(remarks[-1:])
    if not is_text:
        records = (remark._asdict() for remark in remarks)
        output.write(form, ("level", "where", "text"), records)
    levels = Counter(remark.level for remark in remarks)
    wrong, look = levels[submission.Level.WRONG], levels[submission.Level.LOOK]
    read = counted(len(rows), "row")
    output.remark(form, f"{folder}: {read}, {wrong} wrong, {look} to look at")
    return 1 if wrong or not rows else 0
