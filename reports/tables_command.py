"""bench report: every table of the papers, written in several formats."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bench.commands import parser_for
from bench.errors import RequestError, unknown
from reports import build, definitions, papers
from reports.build import Table
from reports.document import document
from reports.formats import csv_cells, markdown, page, tex
from reports.measured import Rows

FORMATS: dict[str, Callable[[Table], str]] = {
    "md": lambda table: markdown.write(document(table)),
    "tex": lambda table: tex.write(document(table)),
    "csv": lambda table: csv_cells.write([table]),
    "html": lambda table: page.write(document(table), table.definition.name),
}
DEFAULT = Path("results")
SLOW_S = 2.0


def main(arguments: Sequence[str]) -> int:
    parser = parser_for(
        "report",
        "the papers' tables: published beside measured, with a verdict for each cell and the "
        "command that measures it",
        "bench report                          which tables there are, and how far each is\n"
        "bench report vcc_table1               one table, to the terminal\n"
        "bench report vcc --out tables         all of VCC's, as md, tex, csv and html\n"
        "bench report fourier_table2 --format csv\n",
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="a table, or a paper's name")
    parser.add_argument(
        "--results", type=Path, action="append", metavar="DIR",
        help=f"folder of rows, may be repeated ({DEFAULT}: all that is in it)",
    )  # fmt: skip
    parser.add_argument("--format", metavar="md,tex,csv,html", help="md; with --out all four")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write files; made if absent")
    options = parser.parse_args(arguments)
    chosen = definitions.load(options.tables)
    formats = _formats(options.format, options.out)
    if not options.out and formats == ["html"] and len(chosen) > 1:
        raise RequestError(f"{len(chosen)} pages don't fit in one: say where with --out DIR")
    rows = _rows(options.results, chosen)
    tables = _built(chosen, rows)
    if options.out:
        _write(list(tables), formats, options.out)
    elif options.tables or options.format:
        sys.stdout.write(
            csv_cells.write(tables) if formats == ["csv"] else _joined(tables, formats[0])
        )
    else:
        _overview(tables)
    return 0


def _formats(text: str | None, out: Path | None) -> list[str]:
    names = text.split(",") if text else list(FORMATS) if out else ["md"]
    for name in names:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    if len(names) > 1 and not out:
        raise RequestError(f"--format {text} is several files: say where with --out DIR")
    return names


def _rows(folders: Sequence[Path] | None, chosen: Iterable[definitions.Definition]) -> Rows:
    for folder in folders or ():
        if not folder.exists():
            raise RequestError(f"no folder {folder}; rows are made by bench run")
    ours = list(chosen)
    methods = {m.method for d in ours for m in d.methods.values() if m.method}
    tasks = {t.task for d in ours for t in d.tasks.values() if t.task}
    found = Rows(folders or [DEFAULT], methods, tasks)
    for warning in found.warnings:
        print(f"bench: set aside {warning}", file=sys.stderr)
    if not found.rows:
        where = ", ".join(map(str, folders or [DEFAULT]))
        print(
            f"bench: no rows of these tables in {where}; the commands under each table make some, "
            "and `make bench` makes the first",
            file=sys.stderr,
        )
    return found


def _built(chosen: Sequence[definitions.Definition], rows: Rows) -> Iterator[Table]:
    """The tables, with a bar on a terminal once they take long."""
    from rich.console import Console
    from rich.progress import Progress

    printed = {paper: papers.load(paper) for paper in {d.paper for d in chosen}}
    console = Console(stderr=True)
    began = time.monotonic()
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, auto_refresh=False, disable=hidden) as bar:
        task = bar.add_task("tables", total=len(chosen), visible=False)
        for definition in chosen:
            yield build.build(definition, printed[definition.paper], rows)
            slow = time.monotonic() - began > SLOW_S
            bar.update(task, advance=1, visible=slow, refresh=slow)


def _write(tables: Sequence[Table], formats: Sequence[str], out: Path) -> None:
    for table in tables:
        for name in formats:
            _file(out / f"{table.definition.name}.{name}", FORMATS[name](table))
    if "csv" in formats:
        _file(out / "cells.csv", csv_cells.write(tables))
    if "html" in formats:
        entries = [(f"{t.definition.name}.html", _title(t), _told(t)) for t in tables]
        _file(out / "index.html", page.index(entries))
    print(f"{len(tables)} tables in {out} as {', '.join(formats)}")


def _file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"can't write {path}: {error.strerror}") from error


def _joined(tables: Iterable[Table], form: str) -> str:
    return "\n".join(FORMATS[form](table) for table in tables)


def _overview(tables: Iterable[Table]) -> None:
    for table in tables:
        print(f"{table.definition.name:<24} {_title(table)}\n{'':<24} {_told(table)}")
    print("\nbench report TABLE shows one, bench report --out DIR writes them all")


def _title(table: Table) -> str:
    return f"{table.definition.source}, {table.definition.title}"


def _told(table: Table) -> str:
    told = ", ".join(f"{count} {verdict}" for verdict, count in table.counts().items() if count)
    return f"{len(table.cells)} cells: {told}"
