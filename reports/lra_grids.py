"""LRA's two tables of docs/results.md: scores over seeds, and the cost of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.status import Status
from bench.store.columns import Row
from bench.store.over_seeds import over_seeds
from reports.looks import looks
from reports.rendering import ResultGrid
from reports.wording import AT_CHANCE, ENDED

RECIPES = "lra_small_"
"""How the names of the recipes begin that `make lra-small` trains by."""
WEIGHTS = {
    "from-scratch": "Each method trained for itself",
    "pretrained-swap": "The method in vanilla's weights",
}
NONE = "–"


def scores(rows: Iterable[Row]) -> list[ResultGrid]:
    """A table for each kind of weights: a line for each method, a column for each task."""
    records = over_seeds(row for row in rows if (row["recipe"] or "").startswith(RECIPES))
    records.sort(key=lambda record: len(record["seeds"]))  # the one of most seeds comes last
    tasks = sorted({record["task"] for record in records})
    grids = []
    for kind, caption in WEIGHTS.items():
        cells = {(r["method"], r["task"]): r for r in records if r["weights_kind"] == kind}
        if cells:
            grids.append(_grid(caption, cells, tasks, str, _score))
    return grids


def steps(rows: Iterable[Mapping[str, Any]], caption: str) -> ResultGrid:
    """Steps of training a second, and what a step takes of vanilla's time and memory, a column for
    each length."""
    cells = {(row["method"], row["length"]): row for row in rows}
    lengths = sorted({length for _, length in cells})
    return _grid(caption, cells, lengths, lambda n: f"{n:,} tokens", _step)


def _grid(
    caption: str,
    cells: Mapping[tuple[Any, Any], Any],
    columns: Sequence[Any],
    title: Callable[[Any], str],
    text: Callable[[Any], str],
) -> ResultGrid:
    """A line for each method of the cells, by method and column, in the order of legends."""
    methods = list(looks(method for method, _ in cells))
    lines = [
        [method, *(text(cells[method, c]) if (method, c) in cells else NONE for c in columns)]
        for method in methods
    ]
    return ResultGrid(caption, ["method", *map(title, columns)], lines)


def _score(record: Mapping[str, Any]) -> str:
    """A mean with its spread, over how many seeds, and how many of these stayed at chance; of one
    seed its score."""
    count, at_chance = len(record["seeds"].split()), record["seeds_at_chance"]
    mark = f" {AT_CHANCE}" if at_chance == count else ""
    if count == 1:
        return f"{record['mean']:.1f}{mark}"
    some = f", {at_chance} at chance" if 0 < at_chance < count else ""
    return f"{record['mean']:.1f} ± {record['sd']:.1f} ({count} seeds{some}){mark}"


def _step(row: Mapping[str, Any]) -> str:
    if row["status"] != Status.OK or not row["train_step_ns"]:
        return ENDED.get(str(row["status"]), NONE)
    alone = f"{1e9 / row['train_step_ns']:.3g}/s"
    if row["train_ratio"] is None:
        return alone
    memory = NONE if row["train_mem_ratio"] is None else f"×{row['train_mem_ratio']:.2f}"
    return f"{alone}, ×{row['train_ratio']:.2f} {row['train_verdict']}, memory {memory}"
