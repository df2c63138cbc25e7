"""Comparisons of rows as tables: `bench compare`, `explain` and `verify`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from bench.compare.compare import LOSS, ChangeVerdict, Difference
from bench.compare.compare_report import CellComparison
from bench.compare.verify import FigureCheck
from bench.request import plugins
from bench.rows.columns import Row
from bench.rows.quality_verdicts import UNKNOWN_WEIGHTS
from bench.terminal import text_table
from bench.terminal.console import Console
from bench.terminal.rows_table import VERDICT_STYLE
from bench.units import counted, mib, score_digits, times, within

STYLE: dict[str, str] = {
    **VERDICT_STYLE, ChangeVerdict.BETTER: "green", ChangeVerdict.WORSE: "red"
}  # fmt: skip
COLUMNS = ("cell", "row_a", "row_b", "figure", "a", "b", "change", "lo", "hi", "unit",
           "change_pct", "p_holm", "n", "verdict", "comparison", "note")  # fmt: skip


def show_cells(title: str, cells: Sequence[CellComparison], form: str) -> None:
    """A line for each figure of a cell under its name, and below quality's with which weights both
    sides were scored; at the end, why a figure has no verdict."""
    if text_table.tabular(form):
        records = [
            {"cell": cell.label, "row_a": cell.pair.a["row_id"], "row_b": cell.pair.b["row_id"],
             "p_holm": each.p, **each._asdict()}
            for cell in cells for each in cell.differences
        ]  # fmt: skip
        text_table.write(form, COLUMNS, records)
        return
    lines: list[list[str]] = []
    notes: dict[str, list[str]] = {}
    for cell in cells:
        lines.append([f"[bold]{escape(cell.shown)}[/]"])
        for each in cell.differences:
            name = f"  {each.figure}" + (f" (n={each.n})" if each.n else "")
            values = (value_text(each, value) for value in (each.a, each.b))
            verdict = f"[{STYLE[each.verdict]}]{each.verdict}[/]" if each.verdict else "–"
            lines.append([name, *values, change_text(each), verdict])
            if each.figure == "quality" and each.change is not None:
                lines.append([f"    {each.comparison or UNKNOWN_WEIGHTS}"])
            if each.note:
                notes.setdefault(f"{each.figure}: {each.note}", []).append(cell.label)
    names = ("", "A", "B", "change (95 %)", "verdict")
    text_table.draw(escape(title), names, lines, ("", "verdict"))
    for text, labels in notes.items():
        line = f"{labels[0] if len(labels) == 1 else counted(len(labels), 'cell')}, {text}"
        Console(highlight=False).print(line, markup=False, style="dim", soft_wrap=True)


def value_text(difference: Difference, value: float | None) -> str:
    if value is None:
        return "–"
    styles = {"quality": f"{value:.{_digits(difference)}f}", "latency": times(value)}
    return styles.get(difference.figure) or f"{mib(int(value))} MiB"


def change_text(difference: Difference) -> str:
    style = f"+.{_digits(difference)}f"
    text = within(difference.change, difference.lo, difference.hi, style)
    value, space, interval = text.partition(" ")
    return f"{value}{' %' if difference.unit == '%' and value != '–' else ''}{space}{interval}"


def _digits(difference: Difference) -> int:
    return score_digits(difference.unit != LOSS)


def show_explanation(a: Row, b: Row, key: Sequence[Any], beside: Sequence[Any], form: str) -> None:
    """What differs between two rows: (name, value in A, value in B) of their keys, and beside."""
    lines = [(part, *line) for part, rest in (("key", key), ("beside", beside)) for line in rest]
    if text_table.tabular(form):
        names = ("part", "name", "row1", "row2")
        text_table.write(form, names, [dict(zip(names, line, strict=True)) for line in lines])
        return
    same = a["cell_key"] == b["cell_key"]
    title = "the same cell" if same else f"different cells: {len(key)} parts of the key differ"
    heads = ("", "name", escape(a["row_id"][:12]), escape(b["row_id"][:12]))
    texts = [(part, escape(name), _short(one), _short(other)) for part, name, one, other in lines]
    text_table.draw(title, heads, texts, heads)


def _short(value: Any) -> str:
    text = "–" if value is None else str(value)
    is_hash = len(text) >= 40 and set(text) <= set("0123456789abcdef")
    return escape(text[:12] if is_hash else text)


def show_checks(row: Row, checks: Sequence[FigureCheck], form: str = "table") -> None:
    """A row's figures beside those measured again."""
    if text_table.tabular(form):
        text_table.write(form, FigureCheck._fields, [check._asdict() for check in checks])
        return
    method = plugins.method_label(row["method"], row["method_params"])
    title = f"{method} × {row['task']} × {row['model']}, row {row['row_id'][:12]}"
    lines = [[escape(text) for text in check] for check in checks]
    names = ("figure", "in the row", "here", "verdict", "")
    text_table.draw(escape(title), names, lines, ("figure", "verdict", ""))
