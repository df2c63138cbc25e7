"""Rank correlations between the scores of KV caches in two settings: whether the ranking for one
model, task or length holds for another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from bench.rows.quality_verdicts import has_toy_weights
from bench.status import Status
from reports.grids import Listing, chosen
from reports.looks import VANILLA
from reports.result_tables import kept_share
from reports.rows import Row
from reports.wording import NONE

SETTING = ("model", "task", "length", "question")
LEAST = 8
"""Caches that two settings need in common."""
RESAMPLES = 2_000
QUARTER = "keeps 1/4"


@dataclass(frozen=True)
class Ranking:
    """Scores of caches in one setting, higher is better, by method and kept share."""

    row: Row
    scores: Mapping[str, float]

    @property
    def name(self) -> str:
        after = ", question after" if self.row["question"] else ""
        toy = " (toy weights)" if has_toy_weights(self.row) else ""
        row = self.row
        return f"{row['model']}{toy}: {row['task']}, {row['length']:,} tokens{after}"


def rankings(rows: Iterable[Row]) -> list[Ranking]:
    """The settings of the cache experiments, in the order in which they were measured."""
    found: dict[tuple[object, ...], tuple[Row, dict[str, float]]] = {}
    for row in chosen(rows, {"experiment": ("kv", "kv_board"), "status": Status.OK}):
        if row["method"] == VANILLA or row.get("oracle") or row["value"] is None:
            continue
        sign = -1 if row["higher_is_better"] is False else 1
        name = f"{str(row['method']).partition('·')[0]} {kept_share(row)}"
        _, scores = found.setdefault(tuple(row[each] for each in SETTING), (row, {}))
        scores[name] = sign * row["value"]
    return [Ranking(row, scores) for row, scores in found.values()]


def correlations(rows: Iterable[Row]) -> list[Row]:
    """Spearman's rank correlation of each two settings with at least LEAST caches in common, with
    its 95 % interval over the caches: for all of them, and for those that keep a quarter."""
    found: list[Row] = []
    for one, other in itertools.combinations(rankings(rows), 2):
        common = sorted(one.scores.keys() & other.scores.keys())
        quarter = [name for name in common if name.endswith(QUARTER)]
        if len(common) >= LEAST:
            found.append(
                {"method": VANILLA, "place": len(found), "one": one.name, "other": other.name,
                 "caches": len(common), "rho": _spearman(one, other, common),
                 "rho_quarter": _spearman(one, other, quarter), "quarter": len(quarter)}
            )  # fmt: skip
    return found


def _spearman(
    one: Ranking, other: Ranking, caches: Sequence[str]
) -> tuple[float, float, float] | None:
    """The correlation and its interval; None for fewer than LEAST caches, or equal scores."""
    a, b = (np.array([each.scores[name] for name in caches]) for each in (one, other))
    if len(caches) < LEAST or a.std() == 0 or b.std() == 0:
        return None
    draws = np.random.default_rng(0).integers(len(a), size=(RESAMPLES, len(a)))
    [value] = _correlations(a[None], b[None])
    lo, hi = np.nanquantile(_correlations(a[draws], b[draws]), (0.025, 0.975))
    return float(value), float(lo), float(hi)


def _correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The rank correlation of each line of `a` with the line of `b`; NaN if all values of one are
    equal."""
    ranks, others = (pd.DataFrame(each).rank(axis=1) for each in (a, b))
    return ranks.corrwith(others, axis=1).to_numpy()


def _interval(name: str, row: Row) -> str:
    return NONE if row[name] is None else "{:.2f} ({:.2f} … {:.2f})".format(*row[name])


TRANSFER = Listing(
    columns={
        "ranking of": lambda row: row["one"],
        "and of": lambda row: row["other"],
        "caches": lambda row: str(row["caches"]),
        "rank correlation": partial(_interval, "rho"),
        "that keep 1/4": lambda row: str(row["quarter"]),
        "rank correlation ": partial(_interval, "rho_quarter"),
    },
    order=("place",),
    numbers=frozenset({2, 4}),
)
