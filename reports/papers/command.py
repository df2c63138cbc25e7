"""bench report: the tables of the papers, and RULER's, written in several formats."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click
from markupsafe import Markup

from bench.errors import RequestError
from bench.files import check_own, write_own
from bench.rows.store import Store
from bench.statistics.paired import SCALE
from bench.status import Status
from bench.terminal import output
from bench.terminal.options import PATH, command, request_words, warn_set_aside
from reports import ruler
from reports.command_line import formats, progress
from reports.papers import claims, tex
from reports.papers.build import build_table
from reports.papers.definitions import CLAIMS, Definition, load_definitions
from reports.papers.measured import StoredRows
from reports.papers.printed import load_printed
from reports.papers.table import PaperTable
from reports.papers.verdicts import PaperVerdict
from reports.papers.view import cells_csv, page
from reports.rendering import TextGrid, html_page, render
from reports.rendering import report as as_text
from reports.ruler_scores import BENCHMARK, LLAMA2_7B_AT_4K

DEFAULT = Path("results")
ALL = "all"


FORMATS: dict[str, Callable[[PaperTable], str]] = {
    "md": lambda table: as_text([page(table)], "md"),
    "tex": lambda table: tex.tables([table]),
    "csv": lambda table: cells_csv([table]),
    "html": lambda table: as_text([page(table)], "html"),
}


@command(
    "The tables of the papers: published next to measured values, with a verdict for each cell "
    "and the command that measures it. TABLE is a table, or a paper's name; NAME=VALUE filters "
    "rows as in bench results.",
    "bench report                          list the tables and how much of each is measured\n"
    "bench report vcc_table1               print one table\n"
    "bench report vcc_table1 task=hotpotqa from rows of one task\n"
    "bench report claims                   the papers' claims and what was measured\n"
    "bench report vcc --out tables         all of VCC's, as md, tex, csv and html\n"
    "bench report fourier_table2 --format csv\n"
    "bench report ruler --threshold 70     RULER's averages and effective lengths",
)
@request_words("TABLE|NAME=VALUE")
@click.option("--results", "folders", type=PATH, multiple=True, metavar="DIR",
              help=f"Folder of rows, may be repeated ({DEFAULT} and its subfolders).")  # fmt: skip
@click.option("--format", "form", metavar="md,tex,csv,html", help="md; with --out all four.")
@click.option("--out", type=PATH, metavar="DIR", help="Folder to write files into.")
@click.option("--json", is_flag=True, help="The list of tables as JSON.")
@click.option(
    "--threshold",
    type=float,
    metavar="SCORE",
    help=f"Of ruler: average above which a length counts as effective ({LLAMA2_7B_AT_4K:g}).",
)
def report(
    words: Sequence[str], folders: Sequence[Path], form: str | None, out: Path | None, json: bool,
    threshold: float | None
) -> int:  # fmt: skip
    names = [word for word in words if "=" not in word]
    filters = [word for word in words if "=" in word]
    for folder in folders:
        if not folder.exists():
            raise RequestError(f"no folder {folder}; rows are made by bench run")
    folders = folders or [DEFAULT]
    if filters and (CLAIMS in names or BENCHMARK in names):
        raise RequestError(f"{names[0]} is a report of all rows and takes no filter: {filters[0]}")
    if CLAIMS in names:
        if [*names] != [CLAIMS] or form not in (None, "md") or out:
            raise RequestError(
                f"bench report {CLAIMS} stands alone and is written as Markdown (md)"
            )
        print(claims_text(folders))
        return 0
    forms = _formats(form, out)
    if [*names] == [BENCHMARK]:
        if json:
            raise RequestError("--json is the list of tables; RULER's figures are in --format csv")
        return _ruler(folders, forms, out, LLAMA2_7B_AT_4K if threshold is None else threshold)
    if threshold is not None:
        raise RequestError(f"--threshold is one of RULER's: bench report {BENCHMARK}")
    if BENCHMARK in names:
        raise RequestError(f"{BENCHMARK} is no table of a paper: bench report {BENCHMARK} alone")
    definitions = load_definitions(names, others=(BENCHMARK,))
    if not out and forms == ["html"] and len(definitions) > 1:
        raise RequestError(f"{len(definitions)} HTML pages need a folder: --out DIR")
    tables = _tables(folders, definitions, filters)
    if json:
        records = [
            {"name": t.definition.name, "title": t.definition.heading, "cells": len(t.cells)}
            | t.counts()
            for t in tables
        ]
        output.write("json", list(records[0]), records)
    elif out:
        _write(tables, forms, out)
    elif forms == ["csv"]:
        sys.stdout.write(cells_csv(tables))
    elif names or form:
        sys.stdout.write("\n".join(FORMATS[forms[0]](table) for table in tables))
    else:
        _print_list(tables, folders)
    return 0


def _ruler(
    folders: Sequence[Path], forms: Sequence[str], out: Path | None, threshold: float
) -> int:
    """RULER's report of all settings that have rows; exit code 1 if there are none."""
    if not 0 <= threshold <= SCALE:
        raise RequestError(f"--threshold {threshold:g} is no score; accepted: 0 to {SCALE:g}")
    found, warnings = ruler.stored(folders)
    warn_set_aside(warnings)
    if not found:
        where = ", ".join(map(str, folders))
        print(f"bench: in {where}: {ruler.summary(found)}", file=sys.stderr)
        return 1
    for form in forms:
        text = ruler.text(found, form, threshold)
        if out:
            write_own(out / f"{BENCHMARK}.{form}", text.encode())
        else:
            sys.stdout.write(text)
    if out:
        print(f"{BENCHMARK} in {out} as {', '.join(forms)}")
    return 0


def claims_text(folders: Sequence[Path]) -> Markup:
    """The claims as Markdown, from the rows of these folders."""
    where = {"status": Status.OK}
    probes = [
        row
        for folder in folders
        for row in Store(folder).rows(claims.COLUMNS, where).to_pylist()
        if row["max_length_fit"]
    ]
    found = claims.findings(paper_tables(folders), probes)
    notes = claims.notes(found)
    return Markup(render("claims.md.j2", claims=claims.claims_grid(found), notes=notes))


def paper_tables(folders: Sequence[Path]) -> list[PaperTable]:
    """All tables of the papers, from the rows of these folders."""
    return _tables(folders, load_definitions())


def papers_grid(tables: Iterable[PaperTable]) -> TextGrid:
    """The number of printed cells by verdict, for each paper and for all."""
    papers: dict[str, Counter[str]] = {}
    for table in tables:
        for paper in (table.definition.paper, ALL):
            papers[paper] = papers.get(paper, Counter()) + Counter(table.counts())
    papers[ALL] = papers.pop(ALL)  # the last line
    head = ["paper", "cells", *PaperVerdict]
    lines = [
        [paper, f"{counts.total():,}", *(f"{counts[word]:,}" for word in PaperVerdict)]
        for paper, counts in papers.items()
    ]
    return TextGrid("Printed cells", head, lines, frozenset(range(1, len(head))))


def _print_list(tables: Sequence[PaperTable], folders: Sequence[Path]) -> None:
    """Prints each table, then each paper with its number of cells by verdict."""
    for table in tables:
        name, title = table.definition.name, table.definition.heading
        print(f"{name:<24} {title}\n{'':<24} {table.summary()}")
    found, _ = ruler.stored(folders)
    print(f"{BENCHMARK:<24} {ruler.TITLE}\n{'':<24} {ruler.summary(found)}")
    grid = papers_grid(tables)
    print()
    output.draw("", grid.head, grid.lines, left=["paper"])
    print("\nbench report TABLE prints one, bench report --out DIR writes them all")


def _formats(text: str | None, out: Path | None) -> list[str]:
    names = formats(text, FORMATS) if text else list(FORMATS) if out else ["md"]
    if len(names) > 1 and not out:
        raise RequestError(f"--format {text} is several files and needs a folder: --out DIR")
    return names


def _tables(
    folders: Sequence[Path], definitions: Sequence[Definition], filters: Sequence[str] = ()
) -> list[PaperTable]:
    """The tables of these definitions from the stored rows, with a bar on a terminal."""
    names = [definition.measured_names() for definition in definitions]
    methods, tasks = (set().union(*parts) for parts in zip(*names, strict=True))
    rows = StoredRows(folders, methods, tasks, filters)
    warn_set_aside(rows.warnings)
    if not rows.rows:
        where = ", ".join(map(str, folders))
        print(
            f"bench: no rows of these tables in {where}; the commands under each table make some, "
            "and `make bench` makes the first",
            file=sys.stderr,
        )
    printed = {paper: load_printed(paper) for paper in {d.paper for d in definitions}}
    tables: list[PaperTable] = []
    with progress("tables") as update:
        for definition in definitions:
            update("tables", len(tables), len(definitions))
            tables.append(build_table(definition, printed[definition.paper], rows))
    return tables


def _write(tables: Sequence[PaperTable], forms: Sequence[str], out: Path) -> None:
    files = {f"{t.definition.name}.{form}": FORMATS[form](t) for t in tables for form in forms}
    if "csv" in forms:
        files["cells.csv"] = cells_csv(tables)
    if "html" in forms:
        entries = [(f"{t.definition.name}.html", t.definition.heading, t.summary()) for t in tables]
        files["index.html"] = html_page("index.html.j2", entries=entries)
    check_own(*(out / name for name in files))
    for name, text in files.items():
        write_own(out / name, text.encode())
    print(f"{len(tables)} tables in {out} as {', '.join(forms)}")
