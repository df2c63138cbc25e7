"""Rows in the form for plots: one line for each cell, including vanilla, grouped by setting."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from bench.errors import RequestError
from bench.request import plugins
from bench.rows.columns import COLUMNS
from bench.rows.query import named, select
from bench.rows.store import Store
from bench.status import Status
from reports.figures import style
from reports.figures.code_versions import of_newest_code
from reports.figures.statistics import Interval
from reports.looks import GREY, VANILLA, Look, base_name, looks
from reports.oracles import is_oracle

SETTING = (
    "benchmark", "task", "split", "data_source", "model", "weights_kind", "batch", "dtype",
    "device", "threads", "question", "turns", "prompt", "filled", "host_id",
)  # fmt: skip
"""What two cells must share to be drawn in one panel, whatever their method and length."""
CELL = (*SETTING, "method", "method_params", "length", "seed", "n_samples_planned")
STUDIES = "studies"
"""The folder, next to the rows, of what bench recall and bench spectrum stored."""
FAILED = ("oom_host", "oom_device", "timeout")
BASE = {
    "base_value": "value",
    "base_ci_lo": "ci_lo",
    "base_ci_hi": "ci_hi",
    "lat_base_median_ns": "lat_median_ns",
    "base_rss_base_bytes": "rss_base_bytes",
    "base_rss_peak_delta_bytes": "rss_peak_delta_bytes",
    "base_gpu_alloc_delta_bytes": "gpu_alloc_delta_bytes",
    "base_kv_bytes_held": "kv_bytes_held",
    "base_kv_bytes_read_per_token": "kv_bytes_read_per_token",
    "base_whole_peak_bytes": "whole_peak_bytes",
    "tpot_base_median_ns": "tpot_median_ns",
}
"""Columns about vanilla in a method's row → vanilla's own column."""
FIGURES = (
    *BASE.values(), "metric", "metrics", "higher_is_better", "value_diff", "value_diff_ci_lo",
    "value_diff_ci_hi", "quality_comparison", "chance", "at_chance", "lat_ratio",
    "lat_ratio_ci_lo", "lat_ratio_ci_hi", "attend_ns", "mem_ratio", "fid_rel_l2", "cpu_model",
    "gpu_name", "instruction_sets", "tpot_ratio", "tpot_ratio_ci_lo", "tpot_ratio_ci_hi",
    "kv_held_ratio", "kv_read_ratio", "kv_ratio_16bit", "whole_peak_ratio", "quality_verdict",
)  # fmt: skip
READ = tuple(
    dict.fromkeys(
        (*CELL, *FIGURES, *BASE, "method_version", "baseline_status", "status", "created_utc",
         "attempt", "cell_key", "row_id")
    )
)  # fmt: skip
Panel = pd.DataFrame


@dataclass(frozen=True)
class FigureRows:
    """The cells of a folder, each once: `cells` has a line for each, newest first, with the columns
    of CELL and FIGURES, `peak_bytes`, `status`, and `failed` (how a cell without figures ended).
    `names` are all methods of the folder, also those that a filter left out; `oracles` are the
    methods among them that show a ceiling and aren't compared. `foremost` are the methods with
    their own look; None: all."""

    folder: Path
    cells: pd.DataFrame
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    oracles: frozenset[str] = frozenset()
    foremost: frozenset[str] | None = None

    @cached_property
    def looks(self) -> dict[str, Look]:
        found = looks(self.names)
        found |= {name: found[name]._replace(color=GREY) for name in self.oracles}
        if self.foremost is None:
            return found
        others = (name for name in found if base_name(name) not in self.foremost)
        return found | {name: style.OTHERS._replace(rank=found[name].rank) for name in others}

    def emphasised(self, panels: Iterable[Panel]) -> FigureRows:
        """The same cells; vanilla and the methods with the most cells in the panels have their own
        look, and the others share one."""
        counts: Counter[str] = Counter({VANILLA: len(self.cells)})
        for panel in panels:
            counts.update(map(base_name, panel["method"]))
        ranks = {base_name(name): look.rank for name, look in looks(self.names).items()}
        order = sorted(counts, key=lambda name: (-counts[name], ranks[name]))
        return replace(self, foremost=style.foremost(order))

    def where(self, **wanted: Any) -> FigureRows:
        """The cells whose columns have these values (or one of a list of them)."""
        kept = self.cells
        for name, value in wanted.items():
            kept = kept[kept[name].isin(value if isinstance(value, (list, tuple)) else [value])]
        return replace(self, cells=kept)

    def settings(
        self,
        *more: str,
        having: pd.Series[bool] | None = None,
        apart: str | None = None,
        of: Sequence[str] = (),
    ) -> Settings:
        """The cells of each setting (and value of the columns `more`), settings with the most
        methods first. With `having`, only settings with at least two such cells; with `apart` too,
        only those in which these cells have at least two values of that column in one group `of`
        columns."""
        by = [*SETTING, *more]
        cells = self.cells.assign(
            setting=self.cells.groupby(by, dropna=False, sort=True, observed=True).ngroup()
        )
        # With whole columns, since few of many thousand settings are drawn.
        if having is not None:
            some = cells[having]
            if apart is None:
                counts = some.groupby("setting").size()
            else:
                values = some.groupby(["setting", *of], dropna=False, sort=False)[apart].nunique()
                counts = values.groupby("setting").max()
            cells = cells[cells["setting"].isin(counts.index[counts >= 2])]
        groups = cells.groupby("setting")
        sizes = pd.DataFrame({"methods": groups["method"].nunique(), "cells": groups.size()})
        order = sizes.sort_values(["methods", "cells"], ascending=False, kind="stable").index
        heads = groups[by].first(skipna=False).assign(methods=sizes["methods"]).loc[order]
        indices = groups.indices
        return Settings(cells.drop(columns="setting"), heads, [indices[i] for i in order])

    def arms(self, panel: Panel) -> Iterator[tuple[str, str, Panel]]:
        """(method, the parameters that distinguish its variants, cells) in the order of legends."""
        by = ["method", "method_params"]
        groups: dict[Any, Panel] = dict(iter(panel.groupby(by, sort=False)))
        for name in sorted(set(panel["method"]), key=lambda name: self.looks[name].rank):
            variants = variant_labels([params for method, params in groups if method == name])
            for params, label in variants.items():
                yield name, label, groups[name, params]


class Settings(Sequence[Panel]):
    """Panels that are selected on access, since few of many thousands are drawn. `heads` has a line
    for each, with the values that its cells share and its number of methods."""

    def __init__(self, cells: pd.DataFrame, heads: pd.DataFrame, where: list[Any]) -> None:
        self.cells, self.heads, self.where = cells, heads, where

    def __len__(self) -> int:
        return len(self.where)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self.cells.iloc[lines] for lines in self.where[index]]
        return self.cells.iloc[self.where[index]]


def spread(panels: Settings, most: int) -> list[Panel]:
    """For each setting the length with the most methods (the longest of several), then for each the
    second such length, until there are enough; in the order of settings and lengths."""
    texts = zip(*(panels.heads[name].map(str) for name in SETTING), strict=True)
    heads = panels.heads.reset_index(drop=True)
    heads = heads.assign(setting=list(map("\0".join, texts)), place=range(len(panels)))
    heads = heads.sort_values(["methods", "length"], ascending=False, kind="stable")
    heads = heads.assign(turn=heads.groupby("setting").cumcount())
    kept = heads.sort_values("turn", kind="stable").head(most)
    return [panels[i] for i in kept.sort_values(["setting", "length"], kind="stable")["place"]]


def variant_labels(variants: Sequence[str]) -> dict[str, str]:
    """Parameters (JSON) → the few that differ between them, such as "k=8"; in their order."""
    parsed = {text: json.loads(text or "{}") for text in variants}
    names = sorted({name for one in parsed.values() for name in one})
    differ = [n for n in names if len({json.dumps(one.get(n)) for one in parsed.values()}) > 1]
    order = sorted(variants, key=lambda text: [_sortable(parsed[text].get(n)) for n in differ])
    return {
        text: " ".join(
            value if isinstance(value := parsed[text][n], str) else f"{n}={value}"
            for n in differ if n in parsed[text]
        )
        for text in order
    }  # fmt: skip


def _sortable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)):
        return (0, float(value), "")
    return (1, 0.0, json.dumps(value))


def load(folder: Path, words: Sequence[str] = ()) -> FigureRows:
    """The cells of a folder that match the words (filters as in `bench results`).

    Raises RequestError if there are none, with a command that makes some.
    """
    how = "make some: bench run -m method=vanilla,vcc length=1024,4096"
    if not folder.exists():
        raise RequestError(f"no folder {folder}; {how}")
    store = Store(folder)
    wanted = named(words)
    frame: pd.DataFrame = store.rows(READ).to_pandas()
    # As plain objects, texts are in one block: selecting lines takes a tenth of the time.
    frame = frame.astype(
        {name: object for name in READ if COLUMNS[name].type in ("string", "json")}
    )
    if frame.empty and not any(folder.glob(f"**/{STUDIES}/*.csv")):
        aside = f" ({'; '.join(store.warnings)})" if store.warnings else ""
        raise RequestError(f"no rows in {folder}{aside}; {how}")
    counts = frame["status"].ne(Status.RETIRED)
    gone = () if counts.all() else (f"left out: {(~counts).sum()} retired rows",)
    frame, older = of_newest_code(frame[counts], SETTING)
    labels = list(map(plugins.method_label, frame["method"], frame["method_params"]))
    known = zip(labels, frame["method"], frame["method_params"], strict=True)
    oracles = frozenset(label for label, *own in known if label and is_oracle(*own))
    frame = frame.assign(method=pd.Series(labels, frame.index, object))
    names = tuple(sorted({VANILLA, *frame["method"].dropna()}))
    if wanted:
        read = [*READ, *(name for name in wanted if name in COLUMNS)]
        ids = {row["row_id"] for row in select(words, folder, list(dict.fromkeys(read)))[0]}
        frame = frame[frame["row_id"].isin(ids)]
        if frame.empty:
            raise RequestError(f"no row in {folder} fits '{' '.join(words)}'")
    return FigureRows(
        folder,
        cells(frame),
        names,
        (*(f"set aside {warning}" for warning in store.warnings), *gone, *older),
        oracles,
    )


def cells(frame: pd.DataFrame) -> pd.DataFrame:
    """One line for each cell, from rows: the values of its newest ok row. Missing values come from
    older rows and, for vanilla, from the rows of other methods."""
    frame = frame.dropna(subset=["method", "task", "length"])
    method_params = frame["method_params"].fillna("{}")
    bad = ~frame["status"].eq("ok")
    frame = frame.assign(method_params=method_params, bad=bad, newest=_newest(frame))
    timed_beside = frame[list(BASE)].notna().any(axis=1) | frame["baseline_status"].isin(FAILED)
    base = frame[frame["method"].ne(VANILLA) & timed_beside]
    base = base.drop(columns=[name for name in FIGURES if name not in _KEPT]).rename(columns=BASE)
    # The parameters of the vanilla with which methods are paired: the most frequent of its rows.
    of_vanilla = frame.loc[frame["method"] == VANILLA, "method_params"].mode()
    base = base.assign(
        method=VANILLA,
        method_params=str(of_vanilla.iloc[0]) if len(of_vanilla) else "{}",
        status=base["baseline_status"].fillna("ok"),
        **dict.fromkeys(TIME_RATIOS),
    )
    frame = frame.drop(columns=list(BASE)).sort_values(
        ["bad", *NEWEST], ascending=[True, False, False], kind="stable"
    )
    base = base.sort_values(NEWEST, ascending=False, kind="stable")
    known = [name for name in frame.columns if name in base.columns]
    frame = pd.concat([frame, base[known]], ignore_index=True) if len(base) else frame
    frame["failed"] = frame["status"].where(frame["status"].isin(FAILED))
    groups = frame.groupby(list(CELL), dropna=False, sort=False, observed=True)
    kept = groups[[*FIGURES, "failed", "status", "created_utc"]].first().reset_index()
    on_cpu = kept["device"].eq("cpu")
    gpu = pd.to_numeric(kept["gpu_alloc_delta_bytes"])
    kept["peak_bytes"] = pd.to_numeric(kept["rss_peak_delta_bytes"]).where(on_cpu, gpu)
    vanilla = kept["method"].eq(VANILLA)
    for name, cost in RATIOS.items():
        kept[name] = pd.to_numeric(kept[name]).mask(vanilla & kept[cost].notna(), 1.0)
    return kept


NEWEST = ["newest", "attempt"]
TIME_RATIOS = {
    f"{name}_ratio{end}": f"{name}_median_ns"
    for name in ("lat", "tpot")
    for end in ("", "_ci_lo", "_ci_hi")
}
RATIOS = TIME_RATIOS | {
    "mem_ratio": "peak_bytes",
    "whole_peak_ratio": "whole_peak_bytes",
    "kv_held_ratio": "kv_bytes_held",
    "kv_read_ratio": "kv_bytes_read_per_token",
}
"""Column of a ratio to vanilla → the cost that it is of: vanilla's own is 1 where that is known."""
_KEPT = ("metric", "higher_is_better", "cpu_model", "gpu_name", "instruction_sets")


def _newest(frame: pd.DataFrame) -> pd.Series[int]:
    """A rank by time, in which an attempt isn't older than earlier attempts at the same cell (as in
    bench.rows.query.oldest_first)."""
    times = pd.Series(pd.factorize(frame["created_utc"], sort=True)[0], frame.index)
    attempts = pd.DataFrame({"attempt": frame["attempt"].fillna(1), "time": times})
    cell = [frame[name].fillna("") for name in ("cell_key", "host_id")]
    return attempts.sort_values(["attempt", "time"])["time"].groupby(cell, sort=False).cummax()


def failures(panel: pd.DataFrame, cost: str) -> pd.DataFrame:
    """The cells that ended before their cost (a column) was known."""
    return panel[panel["failed"].notna() & panel[cost].isna()]


def records(panel: pd.DataFrame) -> Iterator[Any]:
    """Each cell, with its columns as attributes."""
    return iter(panel.itertuples())


def interval(cell: Any, value: str, lo: str, hi: str) -> Interval:
    """A figure of one cell; its ends are infinite if it has no interval."""
    ends = [getattr(cell, name) for name in (value, lo, hi)]
    low, high = (
        e if pd.notna(e) else s * float("inf") for e, s in zip(ends[1:], (-1, 1), strict=True)
    )
    return Interval(float(ends[0]), float(low), float(high))
