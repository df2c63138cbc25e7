"""Standard output and error, and tables of many rows on them.

Text from rows, files and plugins can't control the terminal, and writing may fail because of the
encoding or a full disk. Tables are drawn for a person at a terminal, and tab-separated or JSON for
a program. Nothing here imports rich before it draws.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.units import finite

if TYPE_CHECKING:
    from rich.console import Console

CONTROLS = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, begin an escape sequence or change the direction of text; not
newline and tab."""


def clean(text: str) -> str:
    """The text with control characters as escapes, such as \\u001b, which JSON reads back."""
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class CleanStream:
    """A stream that cleans its text. Consoles of rich write to `rich_proxied_file`."""

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        return int(self.rich_proxied_file.write(clean(text)))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))


def raw(stream: Any) -> Any:
    """The stream below a CleanStream, for text that is already clean and styled."""
    return getattr(stream, "rich_proxied_file", stream)


def clean_console(stderr: bool = False, **options: Any) -> Console:
    """A console of rich that writes styles and cleans the styled strings, also those in tables."""
    from rich.console import Console
    from rich.text import Text

    class CleanConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(clean(text), **options)

    stream = raw(sys.stderr if stderr else sys.stdout)
    return CleanConsole(file=stream, stderr=stderr, **options)


def accept_any_text(clean_errors: bool = True) -> None:
    """If a stream's encoding lacks a character, write its nearest letters of ASCII. Control
    characters are cleaned; on standard error, where other libraries draw progress bars with them,
    only with `clean_errors`."""
    codecs.register_error("bench", _nearest)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="bench")  # type: ignore[union-attr]
    sys.stdout = CleanStream(raw(sys.stdout))
    if clean_errors:
        sys.stderr = CleanStream(raw(sys.stderr))


def _nearest(error: UnicodeError) -> tuple[str, int]:
    from unidecode import unidecode

    assert isinstance(error, UnicodeEncodeError)
    return unidecode(error.object[error.start : error.end]) or "?", error.end


def flush() -> OSError | None:
    """Write the buffers. Returns the error if this fails, once: the rest is dropped, so that Python
    doesn't complain when it exits."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            problem = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return problem


# Tables.

FORMATS = ("auto", "table", "tsv", "json")
PIPE_WIDTH, PIPE_HEIGHT = 1000, 25
"""Columns and lines of a table that is drawn without a terminal: nothing wraps."""
GAP = 2
NONE = ("", "–")
"""Cells without a value."""
STYLE = {
    **dict.fromkeys(("ok", "done", "faster", "better", "kept", "higher"), "green"),
    **dict.fromkeys(("to do", "running", "same"), "cyan"),
    **dict.fromkeys(("look", "not comparable", "undecided"), "yellow"),
    **dict.fromkeys(("over budget", "skipped", "unsupported"), "yellow"),
    "waits": "dim",
}
"""Colours of statuses, states and verdicts; all others are red."""


def styled(word: str | None) -> str:
    """A status, a state or a verdict in its colour, as rich markup; empty for None."""
    from rich.markup import escape

    return f"[{STYLE.get(word, 'red')}]{escape(word)}[/]" if word else ""


def tabular(form: str) -> bool:
    """Whether to write for a program: if requested, or if standard output isn't a terminal."""
    return form in ("tsv", "json") or (form == "auto" and not sys.stdout.isatty())


def show(
    form: str, names: Sequence[str], records: Iterable[Mapping[str, Any]],
    heads: Sequence[str], lines: Iterable[Sequence[str]],
    title: str = "", left: Iterable[str] | None = None,
) -> None:  # fmt: skip
    """The `records` by `write` for a program, else the `lines` under their `heads` by `draw`; all
    columns hold text if `left` isn't given."""
    if tabular(form):
        write(form, names, records)
    else:
        draw(title, heads, lines, heads if left is None else left)


def show_facts(facts: Mapping[str, Any], form: str) -> None:
    """One line for each fact; in a machine-readable form, one record."""
    if tabular(form):
        write(form, list(facts), [facts])
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        shown = "–" if value is None else str(value)
        if value is not None and name.endswith("_bytes"):
            shown = f"{value / (1 << 30):.1f} GiB"
        elif isinstance(value, float):
            shown = f"{value:.4f}".rstrip("0").rstrip(".")
        print(f"{name:<{width}} {shown}")


def remark(form: str, text: str) -> None:
    """Print a line that isn't part of a program's table."""
    print(text, file=sys.stderr if tabular(form) else sys.stdout)


def write(form: str, names: Sequence[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Records for a program. JSON: a list of objects, with null for missing values. Otherwise a
    line of names and a line for each record, with empty fields for missing values."""
    if form == "json":
        rows = [{name: finite(record.get(name)) for name in names} for record in records]
        print(json.dumps(rows, ensure_ascii=False, indent=1, default=str))
        return
    print("\t".join(names))
    for record in records:
        values = ("" if record.get(name) is None else record[name] for name in names)
        texts = (f"{value:.6g}" if isinstance(value, float) else str(value) for value in values)
        print("\t".join(" ".join(text.split()) for text in texts))


def draw(
    title: str, names: Sequence[str], lines: Iterable[Sequence[str]], left: Iterable[str] = ()
) -> None:
    """A table of formatted cells, in rich markup; columns in `left` hold text, others numbers.
    Cells wrap at words. If the terminal is too narrow for that, each line of the table becomes a
    line for each of its cells. Nothing is truncated."""
    from rich.table import Table
    from rich.text import Text

    lines, text_columns = [*lines], set(left)
    # Without a height, rich uses 80 columns if TERM=dumb and FORCE_COLOR are set.
    width, height = (None, None) if sys.stdout.isatty() else (PIPE_WIDTH, PIPE_HEIGHT)
    console = clean_console(highlight=False, width=width, height=height)
    columns = [
        [name, *(Text.from_markup(line[i]).plain for line in lines if i < len(line))]
        for i, name in enumerate(names)
    ]
    words = [max((len(w) for cell in cells for w in cell.split()), default=0) for cells in columns]
    spare = console.width - sum(words) - GAP * len(names)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    widths = _widths(words, [max(map(len, cells)) for cells in columns], spare)
    for name, taken in zip(names, widths, strict=True):
        justify: Any = "left" if name in text_columns else "right"
        table.add_column(name, justify=justify, width=taken, overflow="fold")
    for line in lines:
        table.add_row(*line)
    if title:
        console.print(title, style="bold")
    if spare >= 0:
        console.print(table)
        return
    width = max(map(len, names))
    for number, line in enumerate(lines):
        if number:
            console.print()
        for name, cell in zip(names, line, strict=False):
            if cell not in NONE:
                console.print(f"[bold]{name:<{width}}[/]  {cell}", soft_wrap=True)


def _widths(words: Sequence[int], cells: Sequence[int], spare: int) -> list[int]:
    """Widths of columns, at least those of their longest `words`; `spare` is added one by one to
    the column whose longest of `cells` takes most lines."""
    widths = [max(1, width) for width in words]
    for _ in range(spare):
        i = max(range(len(cells)), key=lambda i: cells[i] / widths[i])
        if cells[i] <= widths[i]:
            break
        widths[i] += 1
    return widths


def aligned(lines: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Plain lines whose columns are as wide as their widest cell; `right` are flush right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    form = "  ".join(f"{{:{'>' if i in right else '<'}{n}}}" for i, n in enumerate(widths))
    return [form.format(*line).rstrip() for line in lines]
