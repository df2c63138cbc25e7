"""Jinja2 templates of all pages: reports/templates, with an escape for each format.

Every `{{ value }}` is escaped for the format of its template, so that text from rows can't become
markup; existing markup is passed as `Markup`.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")
MARKDOWN = re.compile(r"[\\`*_{}\[\]|#~]")
HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
SUPERSCRIPTS = dict(zip("ᵃᵇᶜᵈᵉᶠᵍʰʲᵏᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", "abcdefghjkmnoprstuvwxyz", strict=True))
"""Marks of notes under a table, and the letters that LaTeX raises for them."""
TEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_\allowbreak{}", "/": r"/\allowbreak{}", "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}",
    "[": "{[}", "]": "{]}", "-": "{-}", "*": "{*}", "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "×": r"$\times$", "Δ": r"$\Delta$", "−": r"$-$", "±": r"$\pm$", "≈": r"$\approx$",
    "→": r"$\to$", "≤": r"$\leq$", "≥": r"$\geq$", "∞": r"$\infty$", "…": r"\ldots{}",
    "–": "--", "·": r"$\cdot$", "‡": r"$\ddagger$",
    "“": "``", "”": "''", "’": "'",
    **{mark: rf"\textsuperscript{{{letter}}}" for mark, letter in SUPERSCRIPTS.items()},
}  # fmt: skip
FORMULA = ("=", "+", "-", "@")
"""A spreadsheet evaluates text that begins so."""
BOLD = {"md": "**{}**", "tex": r"\textbf{{{}}}", "html": "<b>{}</b>"}
LAST_LETTER = 0x250
"""Where the letters of European languages end: pdflatex has no others."""


@dataclass(frozen=True)
class TextGrid:
    """Columns of text under a caption. `numbers` are the right-aligned columns; `verdicts` has one
    entry for each line, or none; `faint` are lines whose score is at chance; `note` is one line
    below the grid."""

    caption: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    verdicts: Sequence[str] = ()
    faint: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a page, in this order: heading, text, grids, (label, command) pairs, and items of a
    list."""

    heading: str = ""
    text: str = ""
    grids: Sequence[TextGrid] = ()
    commands: Sequence[tuple[str, str]] = ()
    items: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """One report: `name` is the title of its HTML file, `title` its first heading."""

    name: str
    title: str
    summary: str
    sections: Sequence[Section]


class Strong(str):
    """Text that is bold in every format that has it."""


def render(template: str, **values: Any) -> str:
    """The template `NAME.FORMAT.j2`, with these values."""
    form = template.split(".")[-2]
    return _environment(form).get_template(template).render(**values)


def report(pages: Sequence[Page], form: str) -> str:
    """Pages as one file in md or html; in TeX: reports.tex."""
    draw = html_page if form == "html" else render
    return draw(f"report.{form}.j2", pages=pages)


def html_page(template: str, **values: Any) -> str:
    """A page whose policy allows its own style and nothing else."""
    style, source = inlined((TEMPLATES / "page.css").read_text().strip())
    return render(template, style=style, style_source=source, **values)


@cache
def _environment(form: str) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=form == "html",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: _escaped(value, form),
    )
    environment.filters |= {
        "code": markdown_code, "breakable": tex_breakable, "aligned": aligned, "listed": listed,
    }  # fmt: skip
    return environment


def _escaped(value: Any, form: str) -> str:
    if isinstance(value, Markup):
        return value
    text = {"md": markdown, "tex": tex}.get(form, one_line)(str(value))
    return Markup(BOLD[form]).format(text) if isinstance(value, Strong) else text


def one_line(text: str) -> str:
    """Text on one line, without invisible characters: control codes, turned writing directions."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())


def visible(text: str) -> str:
    """Text whose invisible characters are written as escapes, so that none can turn the direction
    of the text next to it. Lines stay, other space becomes a blank."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else " " if c.isspace() else ascii(c)[1:-1] for c in text
    )


def markdown(text: str) -> Markup:
    """Text escaped so that GitHub's Markdown shows it unchanged: no markup, no HTML, no new
    line."""
    marked = MARKDOWN.sub(lambda match: "\\" + match[0], one_line(text))
    return Markup(re.sub("[&<>]", lambda match: HTML[match[0]], marked))


def markdown_code(text: str) -> Markup:
    """Text in code style, between enough backticks."""
    line = one_line(text)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if fence != "`" else ""
    return Markup(f"{fence}{space}{line}{space}{fence}")


def aligned(grid: TextGrid) -> Markup:
    """The grid as a Markdown table without its caption. Columns are padded to one width, so that
    the table is readable in a terminal too."""
    lines = [[_escaped(text, "md") for text in line] for line in (grid.head, *grid.lines)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    right = [i in grid.numbers for i in range(len(widths))]
    rule = ["-" * (w - 1) + (":" if r else "-") for r, w in zip(right, widths, strict=True)]
    rows = [
        [t.rjust(w) if r else t.ljust(w) for t, r, w in zip(line, right, widths, strict=True)]
        for line in (lines[0], rule, *lines[1:])
    ]
    return Markup("\n".join(f"| {' | '.join(row)} |" for row in rows))


def listed(lines: Iterable[str]) -> Markup:
    """Lines as a list in Markdown."""
    return Markup("\n".join(f"- {markdown(line)}" for line in lines))


def tex(text: str) -> Markup:
    """Text escaped so that LaTeX sets it unchanged: no command, no new line, no letter that
    pdflatex lacks."""
    escaped = (TEX.get(c, c if ord(c) < LAST_LETTER else "?") for c in one_line(text))
    return Markup("".join(escaped))


def tex_breakable(text: str) -> Markup:
    """A command that LaTeX may break at its spaces."""
    return Markup(str(tex(text)).replace(" ", r" \allowbreak{}"))


def csv_text(columns: Sequence[str], records: Iterable[Mapping[str, Any]]) -> str:
    """Records as CSV under a header; a column that a record lacks is left empty."""
    into = io.StringIO()
    writer = csv.DictWriter(into, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: csv_field(value) for name, value in record.items()})
    return into.getvalue()


def csv_field(value: Any) -> Any:
    """Numbers unchanged; text on one line that no spreadsheet interprets as a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(FORMULA) else text
    return text


def inlined(text: str) -> tuple[Markup, str]:
    """A style or script to inline, and its source for the page's content security policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(text), f"'sha256-{digest}'"
