"""Comparisons of rows as text: tables of `bench compare`, `explain` and `verify`, and GitHub's
Markdown for a comment on a pull request (`bench compare --format github`).

Names and reasons come from rows and requests. In Markdown they are code, in which GitHub reads no
markup, mentions or references.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.markup import escape

from bench.compare.compare import LOSS, TIMES, ChangeVerdict, Difference
from bench.compare.matching import CellComparison, Matched
from bench.compare.verify import FigureCheck
from bench.request import plugins
from bench.rows.columns import Row
from bench.rows.row_facts import UNKNOWN_WEIGHTS
from bench.terminal import output
from bench.terminal.output import clean_console, styled
from bench.units import counted, mib, score_digits, times, within

COLUMNS = ("cell", "row_a", "row_b", "figure", "a", "b", "change", "lo", "hi", "unit",
           "change_pct", "p_holm", "n", "verdict", "comparison", "note")  # fmt: skip
MARK = "<!-- longctx-bench -->"
"""First line, by which a workflow finds its earlier comment."""

GITHUB_LIMIT = 65_536
"""Characters of a comment that GitHub accepts."""

LIST_LIMIT, TABLE_LIMIT = 8_000, 20_000
"""Characters of each of the two lists and of the two tables: together below GITHUB_LIMIT."""
NAME_LIMIT = 300
"""Characters of one name or reason."""

HEAD = ("| cell | figure | A | B | change (95 %) | verdict |", "|---|---|--:|--:|--:|---|")
COMPLETE = "bench compare … --format tsv has all"
ORDER = (ChangeVerdict.WORSE, ChangeVerdict.BETTER, ChangeVerdict.UNDECIDED, ChangeVerdict.SAME)
SHARED = ("method", "model", "device", "dtype", "cpu_model", "gpu_name")
"""Columns that are shown once if they are equal in all rows."""


def show_cells(title: str, cells: Sequence[CellComparison], form: str) -> None:
    """A line for each figure of a cell under its name; below quality, the weights with which both
    sides were scored; at the end, why a figure has no verdict."""
    if output.tabular(form):
        records = [
            {"cell": cell.label, "row_a": cell.pair.a["row_id"], "row_b": cell.pair.b["row_id"],
             "p_holm": each.p, **each._asdict()}
            for cell in cells for each in cell.differences
        ]  # fmt: skip
        output.write(form, COLUMNS, records)
        return
    lines: list[list[str]] = []
    notes: dict[str, list[str]] = {}
    for cell in cells:
        lines.append([f"[bold]{escape(cell.shown)}[/]"])
        for each in cell.differences:
            name, *values = figures(each)
            lines.append([f"  {name}", *values, styled(each.verdict) or "–"])
            if each.figure == "quality" and each.change is not None:
                lines.append([f"    {each.comparison or UNKNOWN_WEIGHTS}"])
            if each.note:
                notes.setdefault(f"{each.figure}: {each.note}", []).append(cell.label)
    names = ("", "A", "B", "change (95 %)", "verdict")
    output.draw(escape(title), names, lines, ("", "verdict"))
    for text, labels in notes.items():
        line = f"{labels[0] if len(labels) == 1 else counted(len(labels), 'cell')}, {text}"
        clean_console(highlight=False).print(line, markup=False, style="dim", soft_wrap=True)


def figures(difference: Difference) -> tuple[str, str, str, str]:
    """The figure's name and n, A, B, and the change with its interval, as text."""
    style = f".{score_digits(difference.unit != LOSS)}f"

    def shown(value: float | None) -> str:
        if value is None:
            return "–"
        if difference.figure in TIMES:
            return times(value)
        return f"{value:{style}}" if difference.figure == "quality" else f"{mib(int(value))} MiB"

    change = within(difference.change, difference.lo, difference.hi, f"+{style}")
    if difference.unit == "%" and difference.change is not None:
        value, space, interval = change.partition(" ")
        change = f"{value} %{space}{interval}"
    name = difference.figure + (f" (n={difference.n})" if difference.n else "")
    return name, shown(difference.a), shown(difference.b), change


def show_explanation(a: Row, b: Row, key: Sequence[Any], others: Sequence[Any], form: str) -> None:
    """Differences between two rows as (name, value in A, value in B): `key` those of their keys,
    and `others`."""
    lines = [(part, *line) for part, rest in (("key", key), ("row", others)) for line in rest]
    names = ("part", "name", "row1", "row2")
    records = (dict(zip(names, line, strict=True)) for line in lines)
    same = a["cell_key"] == b["cell_key"]
    title = "the same cell" if same else f"different cells: {len(key)} parts of the key differ"
    heads = ("", "name", escape(a["row_id"][:12]), escape(b["row_id"][:12]))
    texts = ((part, escape(name), _short(one), _short(other)) for part, name, one, other in lines)
    output.show(form, names, records, heads, texts, title)


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    is_hash = len(text) >= 40 and set(text) <= set("0123456789abcdef")
    return escape(text[:12] if is_hash else text)


def show_checks(row: Row, checks: Sequence[FigureCheck], form: str = "table") -> None:
    """A row's figures next to those measured again."""
    method = plugins.method_label(row["method"], row["method_params"])
    title = f"{method} × {row['task']} × {row['model']}, row {row['row_id'][:12]}"
    names = ("figure", "in the row", "here", "verdict", "")
    records = (check._asdict() for check in checks)
    lines = ([*map(escape, check)] for check in checks)
    left = ("figure", "verdict", "")
    output.show(form, FigureCheck._fields, records, names, lines, escape(title), left)


def github_comment(
    sides: tuple[str, str],
    cells: Sequence[CellComparison],
    matched: Matched,
    limits: Sequence[str],
    exceeded: Sequence[str],
) -> str:
    """Changes come first, everything else is folded. `sides` are A and B as given, `limits` those
    of --fail-if, and `exceeded` a line for each change beyond a limit."""
    found = [(cell, each) for cell in cells for each in cell.differences]
    # Figures that failed in B or are worse, then those that are better.
    changes = [pair for pair in found if _verdict(*pair) not in (*ORDER[1:], "–")]
    changes += [pair for pair in found if _verdict(*pair) == ChangeVerdict.BETTER]
    headline = "comparison"
    if limits:
        ended = f"failed, {len(exceeded)} beyond" if exceeded else "passed, no sure change beyond"
        headline = f"{ended} {', '.join(map(_code, limits))}"
    verdicts = Counter(each.verdict for _, each in found)
    counts = [f"{verdicts[each]} {each}" for each in ORDER if verdicts[each]]
    counts += [f"{verdicts[None]} without a verdict"] if verdicts[None] else []
    failed = sum(cell.failed_in_b for cell in cells)
    counts += [f"{failed} of B's cells failed"] if failed else []
    rows = [row for cell in cells for row in cell.pair]
    values = [{row.get(name) for row in rows} for name in SHARED]
    shared = [_code(str(each.pop())) for each in values if len(each) == 1 and each != {None}]
    parts = [
        MARK,
        f"### longctx-bench: {headline}",
        f"{len(cells)} cells, {len(found)} figures: {', '.join(counts)}. B is {_code(sides[1])}, A "
        f"is {_code(sides[0])}; changes are those of B against A, better or worse only if "
        "significant after Holm's correction (memory, which is read once, from 2 % and 1 MiB).",
        f"All cells: {', '.join(shared)}." if shared else "",
        *(
            f"**{counted(len(rows), 'cell')} of {side} without a counterpart.**"
            for side, rows in (("A", matched.only_a), ("B", matched.only_b))
            if rows
        ),
        "\n".join(f"- {line}" for line in _fitting(map(_code, exceeded), LIST_LIMIT)),
        _table(changes) if changes else "",
        _folded(f"All {len(found)} figures", _table(found)),
    ]
    # Why figures have no verdict, in a block of code.
    notes = [f"{cell.label}, {each.figure}: {each.note}" for cell, each in found if each.note]
    if notes:
        shown = "\n".join(_fitting(map(_one_line, notes), LIST_LIMIT))
        fence = "`" * max(3, 1 + _longest_run(shown))
        parts.append(_folded(f"{len(notes)} remarks", f"{fence}text\n{shown}\n{fence}"))
    return "\n\n".join(filter(None, parts))


def _verdict(cell: CellComparison, difference: Difference) -> str:
    ended = cell.pair.b["status"] if difference.change is None and cell.failed_in_b else "–"
    return str(difference.verdict or ended)


def _table(found: Iterable[tuple[CellComparison, Difference]]) -> str:
    lines = []
    for cell, difference in found:
        name, *texts = figures(difference)
        if difference.figure == "quality" and difference.change is not None:
            name += f", {difference.comparison or UNKNOWN_WEIGHTS}"
        verdict = _verdict(cell, difference)
        verdict = f"**{verdict}**" if verdict == ChangeVerdict.WORSE else verdict
        lines.append(f"| {' | '.join([_code(cell.shown), name, *texts, verdict])} |")
    return "\n".join([*HEAD, *_fitting(lines, TABLE_LIMIT)])


def _folded(summary: str, body: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def _fitting(lines: Iterable[str], limit: int) -> Iterator[str]:
    """The lines that fit into `limit` characters, and the number of lines that don't."""
    left, omitted = limit, 0
    for line in lines:
        left -= len(line) + 1
        if left >= 0:
            yield line
        else:
            omitted += 1
    if omitted:
        yield f"… {omitted} more: {COMPLETE}"


def _code(text: str) -> str:
    """A span of code. A column mark is replaced, since it would end a table's cell even there."""
    text = _one_line(text).replace("|", "¦")
    fence = "`" * (1 + _longest_run(text))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= NAME_LIMIT else f"{text[:NAME_LIMIT]}…"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
