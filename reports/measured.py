"""What stored rows say of a printed cell: the rows that could be it, and the figure in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from bench import stats
from bench.columns import COLUMNS
from bench.rows import Row, counting
from bench.store import Store
from reports.verdicts import SAME_READING, Measured, bounded_mean

VANILLA, UNFUSED = "vanilla", "vanilla_eager"
WANTED = (
    "row_id", "cell_key", "created_utc", "status", "status_stage", "status_detail", "method",
    "method_params", "task", "split", "data_source", "n_samples_planned", "n_samples_official",
    "n_scored", "at_chance", "model", "weights_kind", "length", "batch", "dtype", "device",
    "threads", "seed", "measure", "metric", "metrics", "value", "ci_lo", "ci_hi", "base_value",
    "value_diff_ci_lo", "value_diff_ci_hi", "ratio", "ratio_ci_lo", "ratio_ci_hi", "ratio_p",
    "n_pairs", "noisy", "attend_ns", "fid_rel_l2", "rss_base_bytes", "rss_peak_delta_bytes",
    "base_rss_base_bytes", "base_rss_peak_delta_bytes", "gpu_alloc_delta_bytes",
    "base_gpu_alloc_delta_bytes", "train_ratio", "train_ratio_ci_lo", "train_ratio_ci_hi",
    "train_ratio_p", "train_n_pairs", "train_steps", "train_peak_bytes",
    "base_train_peak_bytes", "host_id", "cpu_model", "cores_phys", "mem_total_bytes",
    "gpu_name", "torch", "code_sha",
)  # fmt: skip
READ = [name for name in WANTED if name in COLUMNS]
SAME_CELL = ("task", "model", "length", "batch", "dtype", "device", "threads", "host_id")
"""What a row and the row of unfused attention beside it must share."""
MAIN = {"squad_em_f1": "f1", "rouge_stemmed": "rougeLsum", "rougel_f1": "rougel"}
"""Metrics whose value is a figure of another name."""
FRACTIONS = ("rougel_f1", "rouge_pkg_stemmed")
"""Metrics whose figures, unlike their value, lie in 0…1."""

UNFUSED_MISSING = (
    "measured against fused attention, the paper's vanilla is unfused: the same cell with "
    "method=vanilla_eager is missing"
)


class Found(NamedTuple):
    """A figure of a row, what speaks against setting it beside the printed one, and whether it is a
    score that isn't clearly above the best constant answer's."""

    measured: Measured
    objections: tuple[str, ...] = ()
    at_chance: bool = False


class Rows:
    """The rows of some folders that are of the given methods and tasks: of each cell on each host
    the one that counts."""

    def __init__(self, folders: Iterable[Path], methods: set[str], tasks: set[str]) -> None:
        where = {"method": sorted(methods | {UNFUSED}), "task": sorted(tasks)}
        rows: list[Row] = []
        self.warnings: list[str] = []
        self.total = 0
        for folder in folders:
            store = Store(folder)
            rows += store.rows(READ, where).to_pylist()
            self.warnings += store.warnings
        self.rows = [dict.fromkeys(WANTED) | row for row in counting(rows)]
        self._by_cell: dict[tuple[str, str], list[Row]] = {}
        self._unfused: dict[tuple[Any, ...], Row] = {}
        for row in sorted(self.rows, key=lambda row: row["created_utc"] or ""):
            self._by_cell.setdefault((str(row["method"]), str(row["task"])), []).append(row)
            if row["method"] == UNFUSED and row["status"] == "ok":
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
    found: dict[str, Any] = row["method_params"]
    return found


def _object(text: str | None) -> dict[str, Any]:
    """A column's JSON object; nothing where it holds something else."""
    found = json.loads(text or "{}")
    return found if isinstance(found, dict) else {}


def of_size(row: Row, patterns: Iterable[str]) -> bool:
    """Whether the row's model has a name of one of these patterns."""
    return any(fnmatch((row["model"] or "").lower(), pattern) for pattern in patterns)


def score(row: Row, figures: Sequence[str]) -> Found | None:
    """A figure in 0…100; without names, the main one. Only the main one's interval is stored: of
    another the widest possible is taken."""
    if row["value"] is None:
        return None
    main = Measured(row["value"], row["ci_lo"], row["ci_hi"], row["n_scored"])
    if not figures:
        return Found(main)
    if MAIN.get(row["metric"], row["metric"]) in figures:
        return Found(main)
    stored = _object(row["metrics"])
    scale = 100 if row["metric"] in FRACTIONS else 1
    for name in figures:
        if isinstance(stored.get(name), int | float) and row["n_scored"]:
            return Found(bounded_mean(stored[name] * scale, row["n_scored"]))
    return None


def score_kept(row: Row, figures: Sequence[str]) -> Found | None:
    """The main score in percent of vanilla's on the same rows."""
    base = row["base_value"]
    if row["value"] is None or not base:
        return None
    ends = (row["value_diff_ci_lo"], row["value_diff_ci_hi"])
    lo, hi = (None if end is None else 100 * (1 + end / base) for end in ends)
    return Found(Measured(100 * row["value"] / base, lo, hi, row["n_scored"]))


def paired(row: Row, unfused: Row | None, prefix: str, pairs: str) -> Found | None:
    """method / unfused vanilla, from the ratios that each has to fused vanilla."""
    mine = _ratio(row, prefix, pairs)
    if mine is None:
        return None
    busy = ("the host was too busy for a fair measurement",) if row["noisy"] else ()
    base = _ratio(unfused, prefix, pairs) if unfused else None
    if base is None:
        return Found(_as_measured(mine), (UNFUSED_MISSING, *busy))
    return Found(_as_measured(stats.ratio_of_ratios(base, mine)), busy)


def _ratio(row: Row, prefix: str, pairs: str) -> stats.Ratio | None:
    middle, lo, hi = (row[f"{prefix}ratio{end}"] for end in ("", "_ci_lo", "_ci_hi"))
    if middle is None or lo is None or hi is None:
        return None
    return stats.Ratio(middle, lo, hi, row[f"{prefix}ratio_p"] or 1.0, row[pairs] or 0)


def _as_measured(ratio: stats.Ratio) -> Measured:
    return Measured(ratio.ratio, ratio.ci_lo, ratio.ci_hi, ratio.n)


def peak(names: Sequence[str]) -> Callable[[Row, Row | None], Found | None]:
    """method / unfused vanilla of a sum of bytes, or against fused where there is no other."""

    def ratio(row: Row, unfused: Row | None) -> Found | None:
        mine = _sum(row, names)
        base = _sum(unfused, names) if unfused else None
        objections: tuple[str, ...] = ()
        if base is None:
            base = _sum(row, [f"base_{name}" for name in names])
            objections = (UNFUSED_MISSING,)
        if not mine or not base:
            return None
        value = mine / base
        return Found(
            Measured(value, value / (1 + SAME_READING), value * (1 + SAME_READING)), objections
        )

    return ratio


def _sum(row: Mapping[str, Any], names: Sequence[str]) -> int | None:
    values = [row[name] for name in names]
    return None if None in values else sum(values)


def attention(row: Row, unfused: Row | None) -> Found | None:
    """Time inside the attention, method / unfused vanilla. Each was read in its own process."""
    if not row["attend_ns"] or not unfused or not unfused["attend_ns"]:
        return None
    why = "time inside attention isn't measured in pairs, so it has no interval"
    return Found(Measured(row["attend_ns"] / unfused["attend_ns"], None, None), (why,))


def memory(row: Row, unfused: Row | None) -> Found | None:
    """Peak of one cold forward above the loaded model, method / unfused vanilla."""
    on_gpu = row["gpu_alloc_delta_bytes"] is not None
    return peak(["gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"])(row, unfused)


RATIOS: dict[str, Callable[[Row, Row | None], Found | None]] = {
    "latency": lambda row, unfused: paired(row, unfused, "", "n_pairs"),
    "training": lambda row, unfused: paired(row, unfused, "train_", "train_n_pairs"),
    "attention": attention,
    "memory": memory,
    "process_memory": peak(["rss_base_bytes", "rss_peak_delta_bytes"]),
    "training_memory": peak(["train_peak_bytes"]),
}
SCORES: dict[str, Callable[[Row, Sequence[str]], Found | None]] = {
    "score": score,
    "score_kept": score_kept,
}


def figure(row: Row, measure: str, figures: Sequence[str], rows: Rows) -> Found | None:
    """What the row says of a metric that is measured as `measure` (reports.definitions.MEASURES);
    None when the row doesn't have it."""
    if measure in SCORES:
        found = SCORES[measure](row, figures)
        return found and found._replace(at_chance=bool(row["at_chance"]))
    if measure == "fidelity":
        value = row["fid_rel_l2"]
        return None if value is None else Found(Measured(value, None, None))
    return RATIOS[measure](row, rows.unfused(row))
