"""The code versions of the rows from which a figure is drawn."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence

import pandas as pd

from bench.request import plugins
from bench.units import counted

LEFT_OUT = "left out, as newer code has rows of the same settings"
BEHIND = "drawn, of older code than other rows of the method on the same host"
MOST_NAMED = 4


def of_newest_code(frame: pd.DataFrame, setting: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """For each method in each setting, the rows of its newest code, so that no mean or curve mixes
    two versions; and lines about rows that are left out or drawn in spite of older code. Versions
    are compared among rows of the same composition: a method that contains another method, such as
    snapkv with prefill=vertical_slash, has the code of both."""
    older = _older(frame, setting)
    left_out = frame.loc[older, "method"].value_counts().sort_index()
    kept = frame[~older]
    behind = kept.loc[_older(kept, ["host_id"]), "method"].value_counts().sort_index()
    said = [
        f"{what}: {counted(int(counts.sum()), 'row')} ({_listed(counts)})"
        for what, counts in ((LEFT_OUT, left_out), (BEHIND, behind))
        if len(counts)
    ]
    return kept, said


def _listed(counts: pd.Series[int]) -> str:
    named = [f"{name} {count}" for name, count in counts.nlargest(MOST_NAMED).items()]
    others = len(counts) - len(named)
    return ", ".join(named) + (f", {others} more methods" if others > 0 else "")


@functools.lru_cache(maxsize=4096)
def _composition(params: str) -> str:
    """The code that a method's version covers in addition to its own, from its parameters (JSON):
    the methods that it contains and the module that it runs."""
    values = json.loads(params)
    within = [value["target"] for value in values.values() if plugins.is_part(value)]
    return json.dumps([sorted(within), values.get(plugins.MODULE)])


def _older(frame: pd.DataFrame, by: Sequence[str]) -> pd.Series[bool]:
    """Which rows have older code than the newest row with the same method and the same `by`
    columns."""
    known = frame["method_version"].notna()
    ordered = frame[known].sort_values("created_utc", kind="stable")
    composition = ordered["method_params"].map(_composition, na_action="ignore")
    ordered = ordered.assign(composition=composition)
    groups = ordered.groupby(
        ["method", "composition", *by], dropna=False, sort=False, observed=True
    )
    newest = groups["method_version"].transform("last").reindex(frame.index)
    return known & frame["method_version"].ne(newest)
