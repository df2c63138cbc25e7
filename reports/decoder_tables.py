"""Needle scores of the KV board next to the cost of its caches, and next to printed scores."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from bench.rows.row_facts import KEPT_SHARE
from bench.status import QualityVerdict, Status
from reports.grids import Listing, Where, chosen, of_one_host, tokens
from reports.kv_board import FLOAT32
from reports.looks import VANILLA
from reports.papers.printed import FOLDER
from reports.rows import Row, json_object
from reports.wording import NONE

BOARD = {
    "experiment": "kv_board",
    "model": "smollm2-135m",
    "task": "ruler_niah_single_2",
    "length": 1024,
    "question": None,
    "dtype": FLOAT32,
    "status": Status.OK,
}
"""The rows of the KV board whose caches are choices."""
PREFILLS = {"experiment": "sparse_prefill", "measure": "quality"} | {
    name: BOARD[name] for name in ("model", "task", "question", "dtype", "status")
}
"""The needles of sparse prefills."""
COSTS = {"experiment": "kv_times", "measure": "tokens", "threads": 1, "dtype": FLOAT32,
         "status": Status.OK}  # fmt: skip
"""The rows of what its caches cost."""
BUDGET_FACTOR = 2.0
"""Budgets whose ratio is larger are too far apart for a direction."""
KEPT = {QualityVerdict.LOWER: False, QualityVerdict.KEPT: True, QualityVerdict.HIGHER: True}


class Direction(StrEnum):
    """Whether the method keeps the score of full attention in both the printed and the measured
    result, or loses some in both."""

    SAME = "same direction"
    OTHER = "other direction"
    UNDECIDED = "undecided"
    """The row has no verdict on its quality, or its budget is another."""
    NO_ROW = "no row"
    """The board has no row of the method with a budget of the same kind."""


def load_scores() -> list[Row]:
    """The lines of reports/published/decoders.csv as texts; `share`, `bits`, `value` and `full` are
    numbers, or None if not printed. `question` is 'after' if the question was read after the cache
    was compressed, else None."""
    with (FOLDER / "decoders.csv").open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file, strict=True))
    numbers = ("share", "bits", "value", "full")
    return [
        line
        | {name: float(line[name]) if line[name] else None for name in numbers}
        | {"question": line["question"] or None}
        for line in lines
    ]


def next_to_board(rows: Iterable[Row]) -> list[Row]:
    """Each printed score with `ours`: the row of its method's needle at the nearest budget, for a
    sparse prefill at the greatest length, or None. Empty without a board."""
    listed = list(rows)
    board = list(chosen(listed, BOARD | {"question": (None, "after")}))
    prefills = sorted(chosen(listed, PREFILLS), key=lambda row: row["length"], reverse=True)
    if not board:
        return []
    return [{**line, "ours": _nearest(line, [*board, *prefills])} for line in load_scores()]


def _nearest(line: Row, rows: Iterable[Row]) -> Row | None:
    """The row of the line's method and place of the question with the nearest budget, the first of
    several, if both have one of the same kind."""
    own = (row for row in rows if str(row["method"]).partition("·")[0] == line["method"])
    same = (row for row in own if row["question"] == line["question"])
    near = [row for row in same if _distance(line, row) < math.inf]
    return min(near, key=lambda row: _distance(line, row), default=None)


def _distance(line: Row, row: Row) -> float:
    """Ratio of the larger budget to the smaller one; infinite where they are not comparable, 1 if
    the row has a sparse prefill, whose thresholds choose the share."""
    if row["experiment"] == PREFILLS["experiment"]:
        return 1.0
    name = "bits" if line["bits"] else "share"
    ours = _budget(row)[name]
    if not line[name] or not ours:
        return math.inf
    return float(max(line[name] / ours, ours / line[name]))


def _budget(row: Row) -> dict[str, float | None]:
    """The share of entries that a row's method keeps or reads, and the number of bits of its
    cache."""
    given = json_object(row["method_params"])
    return {"share": given.get("budget", given.get("share")), "bits": given.get("bits")}


def direction(line: Row) -> Direction:
    """Whether a printed score and the row next to it have the same direction. A printed score is
    kept if it is at least KEPT_SHARE of full attention's, a measured one by its paired verdict."""
    ours = line["ours"]
    if ours is None:
        return Direction.NO_ROW
    kept = KEPT.get(ours["quality_verdict"])
    if kept is None or _distance(line, ours) > BUDGET_FACTOR:
        return Direction.UNDECIDED
    printed = line["value"] >= KEPT_SHARE * line["full"]
    return Direction.SAME if printed == kept else Direction.OTHER


def direction_counts(lines: Iterable[Row]) -> list[str]:
    """For each method, how many of its printed scores have each direction."""
    found: dict[str, Counter[Direction]] = {}
    for line in lines:
        found.setdefault(line["method"], Counter())[direction(line)] += 1
    return [
        f"{method}: {', '.join(f'{counts[one]} {one}' for one in Direction if counts[one])}"
        for method, counts in found.items()
    ]


def _percent(value: float | None, full: float | None) -> str:
    return NONE if value is None or not full else f"{100 * value / full:.1f} %"


def _printed_budget(line: Row) -> str:
    share = f" ({line['share']:.3g})" if line["share"] else ""
    return f"{line['budget']}{share}" + ", question after" * bool(line["question"])


def _ours(line: Row) -> str:
    """The budget of the row, and its score as a share of vanilla's."""
    row = line["ours"]
    if row is None:
        return NONE
    budget = _budget(row)
    if row["experiment"] == PREFILLS["experiment"]:
        at = tokens(row["length"])
    else:
        at = f"{budget['bits']:g} bits" if line["bits"] else f"{budget['share']:.3g}"
    return f"{_percent(row['value'], row['base_value'])} at {at}"


PRINTED = Listing(
    columns={
        "method": "{method}",
        "printed for": "{model}, {task}",
        "tokens": lambda line: f"{int(line['length']):,}" if line["length"] else NONE,
        "budget (share)": _printed_budget,
        "÷ full attention": lambda line: _percent(line["value"], line["full"]),
        "ours ÷ vanilla": _ours,
        "direction": direction,
        "source": "{source}, {table}",
    },
    numbers=frozenset({2, 4}),
)


def choices(rows: Iterable[Row]) -> list[Row]:
    """The rows of caches that keep the board's needle, and of vanilla's, the smallest first. Each
    has its cost at the greatest length as `cost`, its row of questions after compression as `after`
    and of perplexity as `text`; oracles are left out."""
    listed = list(rows)
    costs = of_one_host(list(chosen(listed, COSTS)))
    longest = max((row["length"] for row in costs), default=0)

    def by_setting(rows: Iterable[Row], where: Where) -> dict[tuple[str, str], Row]:
        return {_setting(row): row for row in chosen(rows, where)}

    cost = by_setting(costs, {"length": longest})
    after = by_setting(listed, BOARD | {"question": "after"})
    text = by_setting(listed, BOARD | {"task": "perplexity"})
    kept = [
        row | {"cost": cost[own], "after": after.get(own), "text": text.get(own)}
        for row in chosen(listed, BOARD)
        if (own := _setting(row)) in cost and not row.get("oracle")
        and row["quality_verdict"] != QualityVerdict.LOWER
    ]  # fmt: skip
    return sorted(kept, key=lambda row: row["cost"]["kv_bytes_held"])


def _setting(row: Row) -> tuple[str, str]:
    """The method and its parameters without the kernel, on which a score doesn't depend."""
    given = dict(json_object(row["method_params"]))
    given.pop("kernel", None)
    return row["method"], json.dumps(given, sort_keys=True)


def _loss(row: Row) -> str:
    """The increase of the loss on text, marked if it is not significant."""
    text = row["text"]
    if text is None or text["value_diff"] is None:
        return NONE
    return f"{text['value_diff']:+.3f}{' ✓' * bool(KEPT.get(text['quality_verdict']))}"


def _token(row: Row) -> str:
    cost = row["cost"]
    if row["method"] == VANILLA:
        return f"{cost['tpot_median_ns'] / 1e6:.0f} ms"
    return "×{tpot_ratio:.2f} {tpot_verdict}".format_map(cost)


CHOICES = Listing(
    columns={
        "cache": "{method}",
        "needle, 1,024 tokens": "{value:.1f}",
        "question after": lambda row: f"{row['after']['value']:.1f}" if row["after"] else NONE,
        "text, nats": _loss,
        "each token ÷ vanilla's": _token,
        "bytes held ÷ 16 bits": "×{cost[kv_ratio_16bit]:.2f}",
        "bytes read ÷ vanilla's": lambda row: f"×{row['cost']['kv_read_ratio'] or 1:.2f}",
    },
    order=None,
    numbers=frozenset({1, 2, 3, 5, 6}),
)
