"""bench plot: figures of stored rows, as files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from bench.errors import RequestError, described, print_traceback, unknown
from bench.terminal.options import ONE_OR_MORE, PATH, OneOf, command, request_words
from bench.units import counted
from reports.command_line import formats, progress
from reports.figures.catalogue import figures
from reports.figures.sheet import FORMATS, save
from reports.figures.style import WIDTHS

DEFAULT = Path("results")
"""Rows of runs and of the reference, as bench report has them."""
OUT = Path("results/figures")
PANELS = {"full": 6, "column": 3}


def _catalogue() -> str:
    known = figures()
    width = max(map(len, known))
    return "\n".join(f"  {name:<{width}}  {one.shows}" for name, one in known.items())


@command(
    "Draw figures of stored rows; without names, all that have rows. The words are figures, and a "
    "filter as of bench results.",
    f"bench plot pareto_latency task=narrativeqa length=1024,4096\n\n{_catalogue()}",
)
@request_words("FIGURE|NAME=VALUE")
@click.option(
    "--results", type=PATH, default=DEFAULT, metavar="DIR", help=f"Folder of rows ({DEFAULT})."
)
@click.option("--out", type=PATH, default=OUT, metavar="DIR", help=f"({OUT})")
@click.option("--format", "form", default=",".join(FORMATS), metavar="FORMAT,…",
              help=f"{', '.join(FORMATS)} (all).")  # fmt: skip
@click.option("--width", type=OneOf([*WIDTHS]), default="full",
              help="One column of a paper (3.3 in), or both (6.9 in, the default).")  # fmt: skip
@click.option("--panels", type=ONE_OR_MORE, metavar="N",
              help="Panels of a figure, those of most methods first (6; column: 3).")  # fmt: skip
def plot(
    words: Sequence[str], results: Path, out: Path, form: str, width: str, panels: int | None
) -> int:
    """Draw figures; a wrong request where one that was named has nothing to draw. A figure that
    fails is named and doesn't stop the others; the exit code is then 1."""
    known = figures()
    names = [word for word in words if "=" not in word]
    filters = [word for word in words if "=" in word]
    for name in names:
        if name not in known:
            raise unknown("figure", name, known)
    forms = formats(form, FORMATS)
    most = panels or PANELS[width]
    from reports.figures.cells import load

    rows = load(results, filters)
    for warning in rows.warnings:
        print(f"bench: {warning}", file=sys.stderr)
    drawn, failed = 0, 0
    chosen = names or list(known)
    with progress("drawing") as update:
        for number, name in enumerate(chosen):
            update(f"drawing {name}", number, len(chosen))
            drawing = None
            try:
                drawing = known[name].draw(rows, most)
                files = save(drawing, name, out, forms, width) if drawing else []
            except Exception as error:
                if isinstance(error, RequestError) and (names or drawing):
                    raise
                print_traceback()
                print(f"{name}: {described(error)}", file=sys.stderr)
                failed += 1
                continue
            if drawing is None:
                missing = f"{name}: nothing to draw: it needs {known[name].needs}"
                if names:
                    raise RequestError(missing)
                print(missing, file=sys.stderr)
                continue
            drawn += 1
            print(_written(files, drawing.left_out))
    return 0 if drawn and not failed else 1


def _written(files: Sequence[Path], left_out: int) -> str:
    first, *others = files
    line = ", ".join([str(first), *(path.suffix for path in others)])
    if left_out > 0:
        line += f" ({counted(left_out, 'more panel')}: choose by NAME=VALUE, or --panels N)"
    return line
