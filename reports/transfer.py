"""Rank correlations between the scores of KV caches in two settings: whether the ranking for one
model, task or length holds for another."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd

from bench.rows.row_facts import has_toy_weights
from bench.status import Status
from reports.grids import Listing, chosen
from reports.kv_board import FLOAT32, kept_share
from reports.looks import VANILLA, without_setting
from reports.rows import Row
from reports.wording import NONE

LEAST = 8
"""Caches that two settings need in common."""
RESAMPLES = 2_000
QUARTER = "keeps 1/4"


def rankings(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Setting of the cache experiments, in the order in which they were measured → scores, higher
    is better, by method and kept share."""
    found: dict[str, dict[str, float]] = {}
    for row in chosen(rows, {"experiment": ("kv", "kv_board"), "status": Status.OK}):
        if row["method"] == VANILLA or row.get("oracle") or row["value"] is None:
            continue
        after = ", question after" if row["question"] else ""
        toy = " (toy weights)" if has_toy_weights(row) else ""
        dtype = "" if row["dtype"] == FLOAT32 else f", {row['dtype']}"
        setting = f"{row['model']}{toy}: {row['task']}, {row['length']:,} tokens{after}{dtype}"
        cache = f"{without_setting(row['method'])} {kept_share(row)}"
        sign = -1 if row["higher_is_better"] is False else 1
        found.setdefault(setting, {})[cache] = sign * row["value"]
    return found


def correlations(rows: Iterable[Row]) -> list[Row]:
    """Spearman's rank correlation of each two settings with at least LEAST caches in common, with
    its 95 % interval over the caches: for all of them, and for those that keep a quarter."""
    found: list[Row] = []
    for (name, one), (other_name, other) in itertools.combinations(rankings(rows).items(), 2):
        common = sorted(one.keys() & other.keys())
        quarter = [cache for cache in common if cache.endswith(QUARTER)]
        if len(common) >= LEAST:
            found.append(
                {"one": name, "other": other_name, "caches": len(common), "quarter": len(quarter),
                 "rho": _spearman(one, other, common),
                 "rho_quarter": _spearman(one, other, quarter)}
            )  # fmt: skip
    return found


def _spearman(
    one: Mapping[str, float], other: Mapping[str, float], caches: Sequence[str]
) -> tuple[float, float, float] | None:
    """The correlation and its interval; None for fewer than LEAST caches, or equal scores."""
    a, b = (np.array([each[cache] for cache in caches]) for each in (one, other))
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
        "ranking of": "{one}",
        "and of": "{other}",
        "caches": "{caches}",
        "rank correlation": partial(_interval, "rho"),
        "that keep 1/4": "{quarter}",
        "rank correlation ": partial(_interval, "rho_quarter"),
    },
    order=None,
    numbers=frozenset({2, 4}),
)
