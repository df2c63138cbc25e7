"""bench report: the tables of the papers, written in several formats."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bench.errors import RequestError, unknown
from bench.terminal import text_table
from bench.terminal.arguments import parser_for
from reports.papers.build import PaperTable, build_table
from reports.papers.cells_csv import cells_csv
from reports.papers.definitions import Definition, load_definitions
from reports.papers.measured import StoredRows
from reports.papers.printed import load_printed
from reports.papers.view import view
from reports.rendering import TEMPLATES, inlined, render

DEFAULT = Path("results")
SLOW_S = 2.0


def html(template: str, **values: object) -> str:
    """A page whose policy allows its own style and nothing else."""
    style, source = inlined((TEMPLATES / "page.css").read_text().strip())
    return render(template, style=style, style_source=source, **values)


FORMATS: dict[str, Callable[[PaperTable], str]] = {
    "md": lambda table: render("table.md.j2", **vars(view(table))),
    "tex": lambda table: render("table.tex.j2", **vars(view(table))),
    "csv": lambda table: cells_csv([table]),
    "html": lambda table: html("table.html.j2", **vars(view(table))),
}


def report(arguments: Sequence[str]) -> int:
    parser = parser_for(
        "report",
        "the tables of the papers: published beside measured, with a verdict for each cell and the "
        "command that measures it",
        "bench report                          list the tables and how much of each is measured\n"
        "bench report vcc_table1               print one table\n"
        "bench report vcc --out tables         all of VCC's, as md, tex, csv and html\n"
        "bench report fourier_table2 --format csv\n",
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="a table, or a paper's name")
    parser.add_argument(
        "--results", type=Path, action="append", metavar="DIR",
        help=f"folder of rows, may be repeated (default: {DEFAULT} and its subfolders)",
    )  # fmt: skip
    parser.add_argument("--format", metavar="md,tex,csv,html", help="md; with --out all four")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write files into")
    parser.add_argument("--json", action="store_true", help="the list of tables as JSON")
    options = parser.parse_args(arguments)
    definitions = load_definitions(options.tables)
    formats = _formats(options.format, options.out)
    if not options.out and formats == ["html"] and len(definitions) > 1:
        raise RequestError(f"{len(definitions)} HTML pages need a folder: --out DIR")
    tables = _built(definitions, _rows(options.results, definitions))
    if options.json:
        records = [table.record() for table in tables]
        text_table.write("json", list(records[0]), records)
    elif options.out:
        _write(list(tables), formats, options.out)
    elif formats == ["csv"]:
        sys.stdout.write(cells_csv(tables))
    elif options.tables or options.format:
        sys.stdout.write("\n".join(FORMATS[formats[0]](table) for table in tables))
    else:
        for table in tables:
            name, title = table.definition.name, table.definition.heading
            print(f"{name:<24} {title}\n{'':<24} {table.summary()}")
        print("\nbench report TABLE prints one, bench report --out DIR writes them all")
    return 0


def _formats(text: str | None, out: Path | None) -> list[str]:
    names = text.split(",") if text else list(FORMATS) if out else ["md"]
    for name in names:
        if name not in FORMATS:
            raise unknown("format", name, FORMATS)
    if len(names) > 1 and not out:
        raise RequestError(f"--format {text} is several files and needs a folder: --out DIR")
    return names


def _rows(folders: Sequence[Path] | None, definitions: Iterable[Definition]) -> StoredRows:
    for folder in folders or ():
        if not folder.exists():
            raise RequestError(f"no folder {folder}; rows are made by bench run")
    names = [definition.measured_names() for definition in definitions]
    methods, tasks = (set().union(*parts) for parts in zip(*names, strict=True))
    rows = StoredRows(folders or [DEFAULT], methods, tasks)
    for warning in rows.warnings:
        print(f"bench: set aside {warning}", file=sys.stderr)
    if not rows.rows:
        where = ", ".join(map(str, folders or [DEFAULT]))
        print(
            f"bench: no rows of these tables in {where}; the commands under each table make some, "
            "and `make bench` makes the first",
            file=sys.stderr,
        )
    return rows


def _built(definitions: Sequence[Definition], rows: StoredRows) -> Iterator[PaperTable]:
    """The tables; on a terminal a progress bar appears once they take long."""
    from rich.console import Console
    from rich.progress import Progress

    printed = {paper: load_printed(paper) for paper in {d.paper for d in definitions}}
    console = Console(stderr=True)
    start = time.monotonic()
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, auto_refresh=False, disable=hidden) as bar:
        task = bar.add_task("tables", total=len(definitions), visible=False)
        for definition in definitions:
            yield build_table(definition, printed[definition.paper], rows)
            slow = time.monotonic() - start > SLOW_S
            bar.update(task, advance=1, visible=slow, refresh=slow)


def _write(tables: Sequence[PaperTable], formats: Sequence[str], out: Path) -> None:
    for table in tables:
        for name in formats:
            _file(out / f"{table.definition.name}.{name}", FORMATS[name](table))
    if "csv" in formats:
        _file(out / "cells.csv", cells_csv(tables))
    if "html" in formats:
        named = [(table.definition.name, table.definition.heading, table) for table in tables]
        entries = [(f"{name}.html", title, table.summary()) for name, title, table in named]
        _file(out / "index.html", html("index.html.j2", entries=entries))
    print(f"{len(tables)} tables in {out} as {', '.join(formats)}")


def _file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"can't write {path}: {error.strerror}") from error
