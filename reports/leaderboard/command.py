"""bench leaderboard: from rows to the page."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click

from bench.errors import RequestError
from bench.files import check_own, write_own
from bench.rows import DEFAULT
from bench.status import Status
from bench.terminal.options import ONE_OR_MORE, PATH, command, request_words, warn_set_aside
from bench.units import counted
from reports.command_line import progress
from reports.leaderboard.boards import Board, boards
from reports.leaderboard.page import page
from reports.leaderboard.pick import Picked, pick

REFERENCE = Path("results/reference")
OUT = Path("leaderboard.html")
MOST = 100_000
MAKE_SOME = "make bench (or bench run method=vcc task=narrativeqa) makes one"


@contextmanager
def _without_collection() -> Iterator[None]:
    """Context without garbage collection: rows are kept until the page is written, and searching
    them for garbage takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@command(
    "Write rows as one HTML file that needs no server and no network. The words are a filter of "
    "rows, and after --results more folders.",
    "bench leaderboard\n"
    "bench leaderboard --results results/runs /shared/rows --out public/index.html\n"
    "bench leaderboard task=narrativeqa length=4096",
)
@request_words()
@click.option("--results", "given", type=PATH, multiple=True, metavar="DIR",
              help=f"Folders of rows ({DEFAULT} and {REFERENCE}, where they are).")  # fmt: skip
@click.option("--out", type=PATH, default=OUT, metavar="FILE", help=f"({OUT})")
@click.option("--most", type=ONE_OR_MORE, default=MOST, metavar="N",
              help=f"Cells on the page, newest ({MOST:,}).")  # fmt: skip
@_without_collection()
def leaderboard(words: Sequence[str], given: Sequence[Path], out: Path, most: int) -> int:
    """Write the page and print what is on it. Raises RequestError, also when it can't be
    written."""
    if given:
        given = [*given, *(Path(word) for word in words if "=" not in word)]
        words = [word for word in words if "=" in word]
    if out.is_dir():
        raise RequestError(f"--out {out} is a folder; give a file in it: {out / OUT}")
    check_own(out)
    folders = _folders(given)
    with progress("reading rows") as update:
        picked = pick(folders, words, most)
        ranked = boards(picked.rows, partial(update, "ranking boards"))
    warn_set_aside(picked.warnings)
    if not picked.rows:
        where = ", ".join(map(str, folders))
        fit = f" that fit {' '.join(words)}" if words else ""
        raise RequestError(f"no rows in {where}{fit}: {MAKE_SOME}")
    text = page(ranked, summary(picked, ranked))
    content = text.encode()
    write_own(out, content)
    size = f"{len(content) / 1024:,.0f} KiB"
    print(f"{out}: {counted(len(picked.rows), 'row')} on {counted(len(ranked), 'board')}, {size}")
    if left := picked.n_cells - len(picked.rows):
        print(f"bench: {left:,} older cells are left out; --most or NAME=VALUE choose others",
              file=sys.stderr)  # fmt: skip
    return 0


def _folders(given: Sequence[Path]) -> list[Path]:
    if given:
        return [folder.expanduser() for folder in given]
    found = [folder for folder in (DEFAULT, REFERENCE) if folder.exists()]
    if not found:
        raise RequestError(
            f"no rows yet, no folder {DEFAULT}: {MAKE_SOME}, --results names another folder"
        )
    return found


def summary(picked: Picked, ranked: Sequence[Board]) -> str:
    """One line: how much there is, from when and where."""
    rows = picked.rows
    days = sorted({row["created_utc"][:10] for row in rows if row["created_utc"]})
    when = "" if not days else f", measured {' to '.join(dict.fromkeys((days[0], days[-1])))}"
    hosts = len({row["host_id"] for row in rows})
    methods = len({row["method"] for row in rows})
    failed = sum(row["status"] != Status.OK for row in rows)
    parts = [
        f"{counted(len(rows), 'cell')} of {counted(methods, 'method')} "
        f"on {counted(len(ranked), 'board')}{when} on {counted(hosts, 'machine')}",
        f"{failed:,} ended without a result and are shown as such" if failed else "",
        f"the newest of {picked.n_cells:,} cells" if picked.n_cells > len(rows) else "",
    ]
    return "; ".join(filter(None, parts)) + "."
