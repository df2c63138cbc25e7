"""LRA's tables of docs/results.md: scores over seeds, scores at the published length next to the
printed ones, and the cost of a training step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from statistics import stdev
from typing import Any

from bench.rows.query import by_seed, over_seeds
from bench.rows.row_facts import stated_verdict, training_amount
from bench.status import Status
from reports.grids import Grid, Listing, chosen, tokens
from reports.intervals import Measured, interval
from reports.looks import VANILLA
from reports.papers.printed import load_printed
from reports.result_tables import host, number
from reports.rows import Row, created
from reports.wording import AT_CHANCE, ENDED, NONE, signed

SMALL = tuple(f"lra_small_{task}" for task in ("text", "image", "listops", "pathfinder"))
"""The recipes by which `make lra-small` trains."""
WEIGHTS = {
    "from-scratch": "Each method trained for itself",
    "pretrained-swap": "The method in vanilla's weights",
}
WHOSE = {"from-scratch": "its own", "pretrained-swap": "vanilla's"}
PRINTED_IN = {"fourier": "Table 1", "lra": "README leaderboard"}
"""Papers that print accuracies on LRA → the table that has them; a later one goes first."""


def seeds(rows: Iterable[Row]) -> list[Row]:
    """The scores of the small encoders over seeds, those with the most seeds last."""
    small: Any = chosen(rows, {"recipe": SMALL, "weights_kind": tuple(WEIGHTS)})
    kinds = list(WEIGHTS)
    return sorted(
        over_seeds(small),
        key=lambda record: (kinds.index(record["weights_kind"]), len(record["seeds"])),
    )


def _score_over_seeds(record: Row) -> str:
    """A mean with its spread, the number of seeds, and how many of them stayed at chance; for one
    seed its score."""
    count, at_chance = len(record["seeds"].split()), record["seeds_at_chance"]
    mark = f" {AT_CHANCE}" if at_chance == count else ""
    if count == 1:
        return f"{record['mean']:.1f}{mark}"
    some = f", {at_chance} at chance" if 0 < at_chance < count else ""
    return f"{record['mean']:.1f} ± {record['sd']:.1f} ({count} seeds{some}){mark}"


SCORES = Grid(
    title=lambda record: WEIGHTS[record["weights_kind"]],
    each=("weights_kind",),
    column="task",
    cell=_score_over_seeds,
)


def difference_sds(rows: Iterable[Row]) -> dict[str, float]:
    """row_id → the standard deviation over seeds of the difference from vanilla of the same seed,
    for rows with several seeds."""
    return {
        row["row_id"]: stdev(one["value_diff"] for one in seeds.values())
        for seeds in by_seed(rows, "value_diff").values()
        for row in seeds.values()
        if len(seeds) > 1
    }


def at_published_length(rows: Iterable[Row]) -> list[Row]:
    """Scores on generated rows by the recipes that have their task's name: the newest for each
    method, seed and kind of weights."""
    where = {"data_source": "embedded", "weights_kind": tuple(WHOSE), "status": Status.OK}
    found = [row for row in chosen(rows, where) if row["recipe"] == row["task"]]
    found.sort(key=created)
    names = ("task", "length", "weights_kind", "method", "seed")
    newest = {tuple(row[name] for name in names): row for row in found}
    sds = difference_sds(newest.values())
    rows = [{**row, "seed_sd": sds.get(row["row_id"])} for row in newest.values()]
    return sorted(rows, key=lambda row: [row[name] for name in names])


def _difference(row: Row) -> str:
    """The difference from vanilla's score on the same rows, in points."""
    if row["method"] == VANILLA or row["value_diff"] is None:
        return NONE
    points = signed(row["value_diff"], row["value_diff_ci_lo"], row["value_diff_ci_hi"])
    return f"{points} {stated_verdict(row, row['seed_sd'])}"


@cache
def _printed() -> dict[tuple[str, str], str]:
    """Method and task → LRA's figure, or else the figure in Fourier Transformer's paper."""
    return {
        (cell.method, f"lra_{cell.task}"): cell.text
        for paper, table in PRINTED_IN.items()
        for cell in load_printed(paper)
        if cell.table == table
    }


def _own(text: Callable[[Row], str]) -> Callable[[Row], str]:
    """The text, only for weights that were trained for the method."""
    return lambda row: text(row) if row["weights_kind"] == "from-scratch" else NONE


PUBLISHED = Listing(
    title=lambda row: f"{row['task']} at {tokens(row['length'])}",
    each=("task", "length"),
    columns={
        "method": "{method}",
        "weights": lambda row: WHOSE[str(row["weights_kind"])],
        "seed": "{seed}",
        "accuracy": lambda row: interval(
            Measured(row["value"], row["ci_lo"], row["ci_hi"]), False, row["at_chance"]
        ),
        "difference from vanilla": _difference,
        "printed": _own(lambda row: _printed().get((row["method"], row["task"]), NONE)),
        "training": _own(lambda row: training_amount(row["training"])),
    },
    order=("weights_kind",),
)


def _step(row: Row) -> str:
    """Training steps per second, and the time and memory of a step divided by vanilla's."""
    if row["status"] != Status.OK or not row["train_median_ns"]:
        return ENDED.get(str(row["status"]), NONE)
    alone = f"{1e9 / row['train_median_ns']:.3g}/s"
    if row["train_ratio"] is None:
        return alone
    memory = number(row["train_mem_ratio"], 2, "×")
    return f"{alone}, ×{row['train_ratio']:.2f} {row['train_verdict']}, memory {memory}"


STEPS = Grid(
    title=host,
    where={"experiment": "lra_table2"},
    each=("host_id", "cpu_model", "instruction_sets", "virt", "threads", "torch"),
    column="length",
    head=tokens,
    cell=_step,
)
