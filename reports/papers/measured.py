"""The stored rows that may stand beside a printed cell, and the figure that each of them holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from bench.statistics import paired
from bench.status import Status
from bench.store.quality_arms import comparison_text
from bench.store.query import counting
from bench.store.store import Store
from reports.papers.verdicts import REPEATABILITY, Measured, bounded_mean
from reports.rows import Row

UNFUSED = "vanilla_eager"
WANTED = (
    "row_id", "cell_key", "attempt", "created_utc", "status", "status_stage", "status_detail",
    "method", "method_params", "task", "split", "data_source", "n_samples_planned",
    "n_samples_official", "n_scored", "at_chance", "model", "weights_kind", "length", "batch",
    "dtype", "device", "threads", "seed", "measure", "metric", "metrics", "value", "ci_lo", "ci_hi",
    "base_value", "base_ci_lo", "value_diff_ci_lo", "value_diff_ci_hi", "higher_is_better",
    "chance", "quality_comparison", "cell", "ratio", "ratio_ci_lo",
    "ratio_ci_hi", "ratio_p", "n_pairs", "noisy", "attend_ns", "fid_rel_l2", "rss_base_bytes",
    "rss_peak_delta_bytes",
    "base_rss_base_bytes", "base_rss_peak_delta_bytes", "gpu_alloc_delta_bytes",
    "base_gpu_alloc_delta_bytes", "train_ratio", "train_ratio_ci_lo", "train_ratio_ci_hi",
    "train_ratio_p", "train_n_pairs", "train_steps", "train_peak_bytes",
    "base_train_peak_bytes", "host_id", "cpu_model", "cores_phys", "mem_total_bytes",
    "gpu_name", "torch", "code_sha", "verdict", "kernel", "ratio_same_engine",
    "ratio_same_engine_verdict",
)  # fmt: skip
SAME_CELL = ("task", "model", "length", "batch", "dtype", "device", "threads", "host_id")
"""What a row and the row of unfused attention beside it must share."""
MAIN = {"squad_em_f1": "f1", "rouge_stemmed": "rougeLsum", "rougel_f1": "rougel"}
"""Metrics whose value is a figure of another name."""
FRACTIONS = ("rougel_f1", "rouge_pkg_stemmed")
"""Metrics whose figures, unlike their value, lie in 0…1."""

UNFUSED_MISSING = (
    "measured against fused attention while the paper's vanilla is unfused: the same cell with "
    "method=vanilla_eager is missing"
)


class Reading(NamedTuple):
    """A figure of a row, the objections to comparing it with the printed one, whether it is a score
    that isn't clearly above the best constant answer's, and, of a score against vanilla's, with
    which weights both were measured."""

    measured: Measured
    objections: tuple[str, ...] = ()
    at_chance: bool = False
    comparison: str = ""


class StoredRows:
    """The rows of the given methods and tasks in some folders, one row for each cell and host."""

    def __init__(self, folders: Iterable[Path], methods: set[str], tasks: set[str]) -> None:
        where = {"method": sorted(methods | {UNFUSED}), "task": sorted(tasks)}
        rows: list[Row] = []
        self.warnings: list[str] = []
        for folder in folders:
            store = Store(folder)
            rows += store.rows(list(WANTED), where).to_pylist()
            self.warnings += store.warnings
        self.rows = counting(rows)
        self._by_cell: dict[tuple[str, str], list[Row]] = {}
        self._unfused: dict[tuple[Any, ...], Row] = {}
        for row in sorted(self.rows, key=lambda row: row["created_utc"] or ""):
            self._by_cell.setdefault((str(row["method"]), str(row["task"])), []).append(row)
            if row["method"] == UNFUSED and row["status"] == Status.OK:
                self._unfused[tuple(row[name] for name in SAME_CELL)] = row

    def of(self, method: str, task: str) -> Sequence[Row]:
        return self._by_cell.get((method, task), ())

    def unfused(self, row: Row) -> Row | None:
        """The row of unfused attention at the same cell, on the same host."""
        return self._unfused.get(tuple(row[name] for name in SAME_CELL))


def parameters(row: Row) -> dict[str, Any]:
    """The method's own parameters, read once."""
    if not isinstance(row["method_params"], dict):
        row["method_params"] = _object(row["method_params"])
    params: dict[str, Any] = row["method_params"]
    return params


def _object(text: str | None) -> dict[str, Any]:
    """A column's JSON object; empty where it holds something else."""
    value = json.loads(text or "{}")
    return value if isinstance(value, dict) else {}


def of_size(row: Row, patterns: Iterable[str]) -> bool:
    """Whether the row's model has a name of one of these patterns."""
    return any(fnmatch((row["model"] or "").lower(), pattern) for pattern in patterns)


def score(row: Row, figures: Sequence[str]) -> Reading | None:
    """A figure in 0…100; without names, the main one. Only the main one's interval is stored: of
    another the widest possible is taken."""
    if row["value"] is None:
        return None
    main = Measured(row["value"], row["ci_lo"], row["ci_hi"], row["n_scored"])
    if not figures or MAIN.get(row["metric"], row["metric"]) in figures:
        return Reading(main)
    stored = _object(row["metrics"])
    scale = 100 if row["metric"] in FRACTIONS else 1
    for name in figures:
        if isinstance(stored.get(name), int | float) and row["n_scored"]:
            return Reading(bounded_mean(stored[name] * scale, row["n_scored"]))
    return None


def score_kept(row: Row, figures: Sequence[str]) -> Reading | None:
    """The main score in percent of vanilla's on the same rows."""
    base = row["base_value"]
    if row["value"] is None or not base:
        return None
    ends = (row["value_diff_ci_lo"], row["value_diff_ci_hi"])
    lo, hi = (None if end is None else 100 * (1 + end / base) for end in ends)
    kept = Measured(100 * row["value"] / base, lo, hi, row["n_scored"])
    return Reading(kept, comparison=comparison_text(row))


def paired_figure(row: Row, unfused: Row | None, prefix: str, pairs: str) -> Reading | None:
    """method / unfused vanilla, from the ratios that each has to fused vanilla."""
    mine = _ratio(row, prefix, pairs)
    if mine is None:
        return None
    busy = ("the host was too busy for a fair measurement",) if row["noisy"] else ()
    base = _ratio(unfused, prefix, pairs) if unfused else None
    if base is None:
        return Reading(_as_measured(mine), (UNFUSED_MISSING, *busy))
    return Reading(_as_measured(paired.ratio_of_ratios(base, mine)), busy)


def _ratio(row: Row, prefix: str, pairs: str) -> paired.Ratio | None:
    middle, lo, hi = (row[f"{prefix}ratio{end}"] for end in ("", "_ci_lo", "_ci_hi"))
    if middle is None or lo is None or hi is None:
        return None
    return paired.Ratio(middle, lo, hi, row[f"{prefix}ratio_p"] or 1.0, row[pairs] or 0)


def _as_measured(ratio: paired.Ratio) -> Measured:
    return Measured(ratio.ratio, ratio.ci_lo, ratio.ci_hi, ratio.n)


def peak(names: Sequence[str]) -> Callable[[Row, Row | None], Reading | None]:
    """method / unfused vanilla of a sum of bytes, or against fused where there is no other."""

    def ratio(row: Row, unfused: Row | None) -> Reading | None:
        mine = _sum(row, names)
        base = _sum(unfused, names) if unfused else None
        objections: tuple[str, ...] = ()
        if base is None:
            base = _sum(row, [f"base_{name}" for name in names])
            objections = (UNFUSED_MISSING,)
        if not mine or not base:
            return None
        value = mine / base
        return Reading(
            Measured(value, value / (1 + REPEATABILITY), value * (1 + REPEATABILITY)), objections
        )

    return ratio


def _sum(row: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = [row[name] for name in names]
    return None if None in values else sum(values)


def attention(row: Row, unfused: Row | None) -> Reading | None:
    """Time inside the attention, method / unfused vanilla. Each was read in its own process."""
    if not row["attend_ns"] or not unfused or not unfused["attend_ns"]:
        return None
    why = "time inside attention isn't measured in pairs and has no interval"
    return Reading(Measured(row["attend_ns"] / unfused["attend_ns"], None, None), (why,))


def memory(row: Row, unfused: Row | None) -> Reading | None:
    """Peak of one cold forward above the loaded model, method / unfused vanilla."""
    on_gpu = row["gpu_alloc_delta_bytes"] is not None
    return peak(["gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"])(row, unfused)


RATIOS: dict[str, Callable[[Row, Row | None], Reading | None]] = {
    "latency": lambda row, unfused: paired_figure(row, unfused, "", "n_pairs"),
    "training": lambda row, unfused: paired_figure(row, unfused, "train_", "train_n_pairs"),
    "attention": attention,
    "memory": memory,
    "process_memory": peak(["rss_base_bytes", "rss_peak_delta_bytes"]),
    "training_memory": peak(["train_peak_bytes"]),
}
SCORES: dict[str, Callable[[Row, Sequence[str]], Reading | None]] = {
    "score": score,
    "score_kept": score_kept,
}


def figure(row: Row, measure: str, figures: Sequence[str], rows: StoredRows) -> Reading | None:
    """The row's figure for a metric that is measured as `measure` (definitions.MEASURES); None
    when the row doesn't have it."""
    if measure in SCORES:
        reading = SCORES[measure](row, figures)
        return reading and reading._replace(at_chance=bool(row["at_chance"]))
    if measure == "fidelity":
        value = row["fid_rel_l2"]
        return None if value is None else Reading(Measured(value, None, None))
    return RATIOS[measure](row, rows.unfused(row))
