"""LRA's tables of docs/results.md: scores over seeds, scores at the published lengths beside the
printed ones, and the cost of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.status import Status
from bench.store import columns
from bench.store.over_seeds import over_seeds
from bench.store.quality_arms import training_amount
from bench.store.query import counting
from reports.intervals import Measured, interval
from reports.looks import VANILLA, looks
from reports.papers.printed import load_printed
from reports.rendering import TextGrid
from reports.rows import Row
from reports.wording import AT_CHANCE, ENDED, signed

RECIPES = "lra_small_"
"""How the names of the recipes begin that `make lra-small` trains by."""
WEIGHTS = {
    "from-scratch": "Each method trained for itself",
    "pretrained-swap": "The method in vanilla's weights",
}
NONE = "–"
PUBLISHED_HEAD = (
    "method", "weights", "seed", "accuracy", "difference from vanilla", "printed", "training",
)  # fmt: skip
WHOSE = {"from-scratch": "its own", "pretrained-swap": "vanilla's"}
PRINTED_IN = {"fourier": "Table 1", "lra": "README leaderboard"}
"""Papers that print accuracies on LRA → the table that has them; a later one goes first."""


def scores(rows: Iterable[columns.Row]) -> list[TextGrid]:
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


def at_published_length(rows: Iterable[Row]) -> list[Row]:
    """Scores on generated rows by the recipes that have their task's name, oldest first."""
    found = (
        row
        for row in counting(rows)
        if row["recipe"] == row["task"] and row["data_source"] == "embedded"
        and row["weights_kind"] in WHOSE and row["status"] == Status.OK
    )  # fmt: skip
    return sorted(found, key=lambda row: row["created_utc"] or "")


def published(rows: Iterable[Row]) -> list[TextGrid]:
    """A table for each task at its published length: a line for each method, seed and kind of
    weights, of its newest row."""
    newest: dict[str, dict[tuple[str, ...], Row]] = {}
    for row in at_published_length(rows):
        line = str(row["weights_kind"]), str(row["method"]), str(row["seed"])
        newest.setdefault(f"{row['task']} at {row['length']:,} tokens", {})[line] = row
    printed = _printed()
    kinds = list(WHOSE)
    grids = []
    for caption, lines in sorted(newest.items()):
        methods = list(looks(method for _, method, _ in lines))
        keys = sorted(lines, key=lambda key: (kinds.index(key[0]), methods.index(key[1]), key[2]))
        texts = [_published_line(lines[key], printed) for key in keys]
        grids.append(TextGrid(caption, PUBLISHED_HEAD, texts))
    return grids


def _published_line(row: Row, printed: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    own = row["weights_kind"] == "from-scratch"
    method, task = str(row["method"]), str(row["task"])
    score = Measured(row["value"], row["ci_lo"], row["ci_hi"])
    return (
        method,
        WHOSE[str(row["weights_kind"])],
        str(row["seed"]),
        interval(score, False, row["at_chance"]),
        _difference(row),
        printed.get((method, task), NONE) if own else NONE,
        training_amount(row["training"]) if own else NONE,
    )


def _difference(row: Row) -> str:
    """Of the same rows' scores, in points."""
    if row["method"] == VANILLA or row["value_diff"] is None:
        return NONE
    points = signed(row["value_diff"], row["value_diff_ci_lo"], row["value_diff_ci_hi"])
    return f"{points} {row['quality_verdict']}"


def _printed() -> dict[tuple[str, str], str]:
    """Method and task → LRA's figure, or else that of the Fourier Transformer's paper."""
    return {
        (cell.method, f"lra_{cell.task}"): cell.text
        for paper, table in PRINTED_IN.items()
        for cell in load_printed(paper)
        if cell.table == table
    }


def steps(rows: Iterable[Mapping[str, Any]], caption: str) -> TextGrid:
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
) -> TextGrid:
    """A line for each method of the cells, by method and column, in the order of legends."""
    methods = list(looks(method for method, _ in cells))
    lines = [
        [method, *(text(cells[method, c]) if (method, c) in cells else NONE for c in columns)]
        for method in methods
    ]
    return TextGrid(caption, ["method", *map(title, columns)], lines)


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
