"""The stored rows that may be compared with a printed cell, and the figure in each of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from bench.request import plugins
from bench.request.schema import MEASURES
from bench.rows.comparison import Comparison
from bench.rows.query import counting, select
from bench.rows.row_facts import comparison_text
from bench.rows.store import Store
from bench.status import Status
from reports.intervals import Measured, bounded_mean
from reports.papers.to_unfused import PAIRED, Reading, whole_answer
from reports.rows import Row, created, grouped, json_object

UNFUSED, FUSED = "vanilla_eager", "vanilla"
WANTED = (
    "row_id", "cell_key", "attempt", "created_utc", "status", "status_stage", "status_detail",
    "method", "method_params", "task", "split", "data_source", "n_samples_planned",
    "n_samples_official", "n_scored", "at_chance", "model", "weights_kind", "length", "batch",
    "weights_format", "filled", "timed_tokens", "dtype", "device", "threads", "seed", "measure",
    "metric", "metrics", "value", "ci_lo", "ci_hi",
    "base_value", "base_ci_lo", "value_diff_ci_lo", "value_diff_ci_hi", "higher_is_better",
    "chance", "quality_comparison", "cell", "lat_ratio", "lat_ratio_ci_lo",
    "lat_ratio_ci_hi", "lat_ratio_p", "lat_n_pairs", "noisy", "large_memory_kept",
    "attend_samples_ns", "encode_samples_ns", "lat_base_median_ns", "decode_ns_per_token",
    "fid_rel_l2", "rss_base_bytes",
    "rss_peak_delta_bytes",
    "base_rss_base_bytes", "base_rss_peak_delta_bytes", "gpu_alloc_delta_bytes",
    "base_gpu_alloc_delta_bytes", "train_ratio", "train_ratio_ci_lo", "train_ratio_ci_hi",
    "train_ratio_p", "train_n_pairs", "train_steps", "train_peak_bytes",
    "base_train_peak_bytes", "host_id", "cpu_model", "cores_phys", "mem_total_bytes",
    "gpu_name", "torch", "code_sha", "lat_verdict", "kernel", "engine_ratio",
    "engine_verdict",
)  # fmt: skip
SAME_CELL = (
    "model", "length", "filled", "batch", "dtype", "device", "threads", "host_id",
)  # fmt: skip
"""Columns that must be equal in a row and its row of vanilla, and the task."""
_ITSELF = Comparison(ratio=1.0, ratio_ci_lo=1.0, ratio_ci_hi=1.0, ratio_p=1.0, n_pairs=0)
TO_ITSELF = {
    column: value
    for name in ("lat", "train")
    for column, value in _ITSELF.columns(name).items()
    if value is not None
}
"""Ratios of fused vanilla, against which those of every row are."""
MAIN = {"squad_em_f1": "f1", "rouge_stemmed": "rougeLsum", "rougel_f1": "rougel"}
"""Metrics whose value is a figure of another name."""
FRACTIONS = ("rougel_f1", "rouge_pkg_stemmed")
"""Metrics whose figures, unlike their value, lie in 0…1."""


class StoredRows:
    """The rows of the given methods and tasks in some folders, one row for each cell and host.
    `words` filter them as in bench results; a filter of methods keeps both baselines."""

    def __init__(
        self, folders: Iterable[Path], methods: set[str], tasks: set[str], words: Sequence[str] = ()
    ) -> None:
        names = {name for method in methods | {UNFUSED, FUSED} for name in same_class(method)}
        where = {"method": sorted(names), "task": sorted(tasks)}
        rows: list[Row] = []
        self.warnings: list[str] = []
        for folder in folders:
            store = Store(folder)
            found: list[Row] = store.rows(list(WANTED), where).to_pylist()
            self.warnings += store.warnings
            if words:
                others = [word for word in words if not word.startswith("method")]
                both = ({row["row_id"] for row in select(w, folder)[0]} for w in (words, others))
                own, base = both
                found = [
                    row for row in found
                    if row["row_id"] in (base if row["method"] in (UNFUSED, FUSED) else own)
                ]  # fmt: skip
            rows += found
        self.rows = counting(rows)
        by_time = sorted(self.rows, key=created)
        self._by_cell = grouped(by_time, itemgetter("method", "task"))
        self._unfused, self._failed_unfused, self._fused = (
            {
                cell: row
                for row in by_time
                if row["method"] == method and (row["status"] == Status.OK) == done
                for cell in _cells(row)
            }
            for method, done in ((UNFUSED, True), (UNFUSED, False), (FUSED, True))
        )

    def of(self, method: str, task: str) -> Sequence[Row]:
        """The rows of a method, under all names of its class."""
        names = same_class(method)
        return [row for name in names for row in self._by_cell.get((name, task), ())]

    def unfused(self, row: Row) -> Row | None:
        """The row of unfused attention at the same cell, on the same host. For filled inputs, which
        have one length, the row of another task is accepted: the cost doesn't depend on the
        question."""
        return _first(self._unfused, row)

    def fused(self, row: Row) -> Row:
        """The row of fused attention at the same cell, on the same host. If none is stored, the row
        contains only its ratios."""
        found = _first(self._fused, row) or dict.fromkeys(WANTED)
        return {**found, **TO_ITSELF}

    def failed_unfused(self, row: Row) -> Row | None:
        """The row of unfused attention that failed there, for example since memory ran out, if no
        other row has its figures."""
        return None if self.unfused(row) else _first(self._failed_unfused, row)


def _cells(row: Row) -> list[tuple[Any, ...]]:
    """The values that a row shares with its vanilla; for filled inputs also without the task."""
    config = json.dumps(model_config(row), sort_keys=True)
    tasks = (row["task"], None) if row["filled"] else (row["task"],)
    return [(task, *(row[name] for name in SAME_CELL), config) for task in tasks]


def _first(rows: Mapping[tuple[Any, ...], Row], row: Row) -> Row | None:
    return next((rows[cell] for cell in _cells(row) if cell in rows), None)


@cache
def same_class(method: str) -> tuple[str, ...]:
    """The method and the other names of its class, such as the name with a benchmark's settings."""
    targets = {name: plugins.conf("method", name)["target"] for name in plugins.available("method")}
    others = [name for name in targets if targets[name] == targets.get(method) and name != method]
    return (method, *others)


def model_config(row: Row) -> dict[str, Any]:
    """The configuration from which the row's model was built; empty for a checkpoint."""
    if not isinstance(row["cell"], dict):  # parsed once
        row["cell"] = json_object(row["cell"])
    config = row["cell"].get("model", {}).get("config")
    return config if isinstance(config, dict) else {}


def of_size(row: Row, patterns: Iterable[str]) -> bool:
    """Whether the row's model has a name of one of these patterns."""
    return any(fnmatch((row["model"] or "").lower(), pattern) for pattern in patterns)


def score(row: Row, figures: Sequence[str]) -> Reading | None:
    """A figure in 0…100; without names, the main one. Only the main figure's interval is stored;
    for others the widest possible interval is taken."""
    if row["value"] is None:
        return None
    main = Measured(row["value"], row["ci_lo"], row["ci_hi"], row["n_scored"])
    if not figures or MAIN.get(row["metric"], row["metric"]) in figures:
        return Reading(main)
    stored = json_object(row["metrics"])
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


RATIOS = (*PAIRED, "whole_answer")
SCORES: dict[str, Callable[[Row, Sequence[str]], Reading | None]] = {
    "score": score,
    "score_kept": score_kept,
}


def would_hold(row: Row, measure: str) -> bool:
    """Whether a row that failed or was skipped would have had the figure: a `measure=` without
    quality has no score."""
    plan = MEASURES.get(row["measure"] or "")
    return measure not in SCORES or plan is None or plan.quality


def figure(
    row: Row, measure: str, figures: Sequence[str], rows: StoredRows, answer: int = 0
) -> Reading | None:
    """The row's figure for a metric that is measured as `measure` (definitions.MEASURES); None if
    the row doesn't have it. `answer` is the number of tokens of a whole answer."""
    if measure in SCORES:
        reading = SCORES[measure](row, figures)
        return reading and reading._replace(at_chance=bool(row["at_chance"]))
    if measure == "fidelity":
        value = row["fid_rel_l2"]
        return None if value is None else Reading(Measured(value, None, None))
    of_answer = measure == "whole_answer"
    against = partial(whole_answer, tokens=answer) if of_answer else PAIRED[measure]
    reading, to_fused = against(row, rows.unfused(row)), against(row, rows.fused(row))
    return reading and reading._replace(to_fused=to_fused and to_fused.measured.value)
