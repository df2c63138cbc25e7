"""bench report ruler: its scores by length, from stored rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.rows.store import Store
from reports.rendering import csv_text, html_page, render
from reports.rows import Row
from reports.ruler.grids import page
from reports.ruler.scores import COLUMNS, SETTING, TASKS, Results, results

NAME = "ruler"
TITLE = "RULER, scores by length, their average over 13 tasks and the effective length"
AVERAGE = "average"
FIGURES = (
    *SETTING, "method", "length", "task", "tasks", "score", "lo", "hi", "n", "difference",
    "difference_lo", "difference_hi", "at_chance", "vanilla_at_chance", "status", "row_id",
)  # fmt: skip


def stored(folders: Iterable[Path]) -> tuple[list[Results], list[str]]:
    """The settings of all RULER rows of the folders, and a line for each file set aside."""
    rows: list[Row] = []
    warnings: list[str] = []
    for folder in folders:
        store = Store(folder)
        rows += store.rows(list(COLUMNS), {"benchmark": NAME}).to_pylist()
        warnings += store.warnings
    return results(rows), warnings


def summary(found: Sequence[Results]) -> str:
    """How much is measured, in a line of the list of reports."""
    if not found:
        return "no rows; bench run -m experiment=ruler scale=small makes some"
    most = found[0]
    tasks = {task for (_, _, task), score in most.scores.items() if score.measured}
    lengths = ", ".join(f"{length:,}" for length in most.lengths)
    more = f"; {len(found) - 1} more settings" if len(found) > 1 else ""
    return (
        f"{most.row['model']}: {len(most.methods)} methods, {len(tasks)} of {len(TASKS)} tasks at "
        f"{lengths} tokens{more}"
    )


def text(found: Sequence[Results], form: str, threshold: float) -> str:
    """The report in one format: md, tex, html or csv."""
    if form == "csv":
        return csv_text(FIGURES, (record for one in found for record in _records(one)))
    pages = [page(one, threshold) for one in found]
    if form != "html":
        return render(f"ruler.{form}.j2", pages=pages)
    return html_page("ruler.html.j2", pages=pages)


def _records(found: Results) -> Iterator[dict[str, Any]]:
    """A line for each score, and one for each average."""
    setting = {name: found.row[name] for name in SETTING}
    for (method, length, task), score in sorted(found.scores.items()):
        floor = task in found.at_chance(length)
        record = {"method": method, "length": length, "task": task, "tasks": 1}
        status = {"status": score.status, "row_id": score.row and score.row["row_id"]}
        figures: dict[str, Any] = {}
        if score.measured:
            figures = _ends("score", score.measured, "") | {"n": score.measured.n}
            figures |= {"at_chance": score.at_chance, "vanilla_at_chance": floor}
        if score.difference:
            figures |= _ends("difference", score.difference, "difference_")
        yield setting | record | status | figures
    for method in found.methods:
        for length in found.lengths:
            if average := found.average(method, length):
                record = {"method": method, "length": length, "task": AVERAGE}
                figures = _ends("score", average.measured, "") | {"n": average.measured.n}
                yield setting | record | {"tasks": len(average.tasks)} | figures


def _ends(name: str, measured: Any, prefix: str) -> dict[str, Any]:
    return {name: measured.value, f"{prefix}lo": measured.lo, f"{prefix}hi": measured.hi}
