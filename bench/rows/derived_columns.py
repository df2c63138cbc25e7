"""The columns of quality, latency and memory that are computed from raw measurements."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, cast

from bench.errors import RequestError, errors_of
from bench.request.cell import Cell, data_of
from bench.request.weights import training_of
from bench.rows import quality_verdicts
from bench.rows.columns import Row, value_of
from bench.rows.comparison import ENGINE_OF, TIMED, TO_VANILLA, Comparison, Name
from bench.rows.derived_comparisons import of_answer, of_few_tokens, to_engine, to_vanilla
from bench.rows.engine import kv_agrees, kv_ratio_16bit, kv_read_agrees
from bench.rows.predictions import Predictions, documents
from bench.rows.quality_verdicts import quality_verdict
from bench.rows.store import PREDICTIONS
from bench.statistics import scores
from bench.status import Status
from tasks.base import Data, DataError, Task
from tasks.loading import truncation
from tasks.metrics import buckets, chance

AGREE_SLACK_BYTES = 16 << 20
ARM = ("value", "ci_lo", "ci_hi", "score_by_length", "predictions_sha256")
"""Columns that also exist for vanilla."""
OTHERS, FEWEST_OTHERS = 64, 16
"""Rows that aren't scored, on which the best constant answer is chosen; with fewer rows the
estimate is poor."""


def quality_arms_of(cell: Cell, base: Cell) -> Row:
    """The columns about the weights of vanilla's quality; `base` is vanilla's cell."""
    own, other = (one.model["weights_sha256"] for one in (cell, base))
    training = training_of(base.model)
    return {
        "quality_comparison": quality_verdicts.compared(own, other),
        "base_weights_sha256": other,
        "base_training": json.dumps(training, sort_keys=True) if training else None,
    }


def derive(row: Mapping[str, Any], cell: Cell, results: Path) -> Row:
    """The row of a measured cell with all columns that follow from its raw measurements. `row` may
    also contain comparisons under their names, as mappings of measured fields."""
    measured = dict(row)
    raw = {name: Comparison(**(measured.pop(name, None) or {})) for name in TIMED}
    columns = cast(Row, measured)
    if columns.get("tokens_in_mean") is not None:
        paired = not cell.is_baseline
        began = perf_counter_ns()
        try:
            with errors_of(f"task {cell.task['name']}", cell.task["target"]):
                arms = (cell, cell.baseline()) if paired else (cell,)
                columns |= quality(cell, results, [arm.prediction_key for arm in arms])
                columns["scoring_ns"] = perf_counter_ns() - began
                columns |= quality_arms_of(*arms) if paired else {}
        except RequestError as error:
            # Measurements are kept; the same command scores the stored predictions again.
            failed = {"status": Status.ERROR, "status_stage": "score", "status_detail": str(error)}
            columns |= cast(Row, failed if columns.get("status") == Status.OK else {})
    for name, value in times(raw, columns, cell.seed).items():
        if value is not None or name not in columns:  # a stage may have given a reason
            columns[name] = value  # type: ignore[literal-required]
    columns["mem_agree"] = mem_agree(columns)
    columns |= memory_ratios(columns)
    columns["kv_ratio_16bit"] = kv_ratio_16bit(columns)
    columns |= whole_peaks(columns)
    return columns


def times(raw: Mapping[Name, Comparison], row: Mapping[str, Any], seed: int) -> Row:
    """The columns of all comparisons, from their measured fields, and the columns that follow from
    them and the row's other columns."""
    found: dict[Name, Comparison] = {**raw, "answer": Comparison()}
    for name in TO_VANILLA:
        found[name] = to_vanilla(raw[name], seed)
    for name, engine in ENGINE_OF.items():
        found[engine] = to_engine(raw[engine], found[name], seed)
    columns: dict[str, Any] = {"tokens_per_s": None, "base_tokens_per_s": None}
    if found["tpot"].median_ns:
        n = row["new_tokens"]
        tokens = (found["tpot"], found["tpot_engine"])
        found["tpot"], found["tpot_engine"] = of_few_tokens(*tokens, n)
        found["answer"] = of_answer(found["lat"], found["tpot"], n)
        for arm in ("", "base_"):
            if each := getattr(found["tpot"], f"{arm}median_ns"):
                columns[f"{arm}tokens_per_s"] = row["batch"] * 1e9 / each
    for name, one in found.items():
        columns |= one.columns(name)
    return cast(Row, columns)


# Quality: the official metric of a task, applied to stored predictions. Its results are checked,
# since a plugin may define it.


def scored(
    task: Task, answers: Sequence[Any], references: Sequence[Sequence[str]]
) -> tuple[Mapping[str, Any], list[float]]:
    """The figures of `Task.score` and the numbers of `Task.score_each`. Raises RequestError if the
    metric raises, or returns something else."""
    name, target = f"metric {task.metric} of task {task.name}", type(task).__module__
    with errors_of(name, target):
        figures = task.score(answers, references)
        if not isinstance(figures, Mapping) or not _is_number(figures.get("value")):
            raise ValueError(f"score gave {figures!r:.200}; expected figures with a number 'value'")
        each = list(task.score_each(answers, references))
        if len(each) != len(answers) or not all(map(_is_number, each)):
            raise ValueError(
                f"score_each gave {each!r:.200}; expected a number for each of {len(answers)} rows"
            )
    return figures, each


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _scored(
    cell: Cell, task: Task, rows: Sequence[Any], predictions: Predictions
) -> tuple[list[float], Row]:
    """The score of each row by the task's official metric, and the columns of one arm."""
    records = predictions.done()
    references = [row.references for row in rows]
    answers = [records[row.id]["prediction"] for row in rows]
    lengths = [n for row in rows if (n := records[row.id].get("tokens_in")) is not None]
    figures, each = scored(task, answers, references)
    by_length = None
    if len(lengths) == len(rows):
        by_length = json.dumps(
            buckets.scores(lambda *a: task.score(*a)["value"], lengths, answers, references)
        )
    estimate = scores.mean(each, documents(rows), cell.seed, task.higher_is_better)
    return each, {
        "value": figures["value"],
        "stderr": estimate.stderr,
        "ci_lo": estimate.lo,
        "ci_hi": estimate.hi,
        "ci_method": estimate.how or None,
        "metrics": json.dumps(dict(figures)),
        "score_by_length": by_length,
        "answer_cut_frac": _answer_cut_frac(rows, records, cell.length),
        "batched_answers": sum("batched" in records[row.id] for row in rows) or None,
        "predictions_sha256": predictions.sha256([row.id for row in rows]),
    }


def _answer_cut_frac(
    rows: Sequence[Any], records: Mapping[Any, Mapping[str, Any]], length: int
) -> float | None:
    """The share of rows whose answer was in the text that truncation removed. None if texts were
    truncated and this is unknown for all of them, for example because no answer is in a text."""
    found = [
        truncation.answer_removed(row, record["removed"]) if "removed" in record else None
        for row in rows
        if "removed" in (record := records[row.id]) or (record.get("tokens_in") or 0) > length
    ]
    if found and all(each is None for each in found):
        return None
    return sum(each is True for each in found) / len(rows)


def quality(cell: Cell, results: Path, keys: Sequence[str]) -> Row:
    """The quality columns from stored predictions, by the task's official metric, over all rows
    and by buckets of their length. `keys` are those of the method's predictions and, for a
    comparison, of vanilla's on the same rows."""
    task, loaded = cell.build_task(), cell.rows()
    rows = loaded.rows
    arms = [Predictions(results / PREDICTIONS, key) for key in keys]
    (each, own), *base = (_scored(cell, task, rows, predictions) for predictions in arms)
    columns: Row = {
        "metric": task.metric,
        "metric_version": str(task.metric_version),
        "higher_is_better": task.higher_is_better,
        "n_samples_available": loaded.n_available,
        "n_samples_official": cell.task.get("n", {}).get(cell.data["split"]),
        "n_scored": len(rows),
        "n_failed": 0,
        "predictions_path": str(Path(PREDICTIONS) / keys[0]),
    }
    columns |= own | chance_columns(cell, task, rows, own["ci_lo"])
    for base_each, theirs in base:
        difference = scores.difference(
            each, base_each, documents(rows), cell.seed, task.higher_is_better
        )
        columns |= cast(Row, {f"base_{name}": value_of(theirs, name) for name in ARM})
        columns |= {"value_diff_ci_lo": difference.lo, "value_diff_ci_hi": difference.hi}
        columns |= compared_scores(columns)
    return columns


def compared_scores(columns: Row) -> Row:
    """The columns that follow from both scores and the interval of their difference."""
    value, base = columns["value"], columns.get("base_value")
    lo, hi = columns.get("value_diff_ci_lo"), columns.get("value_diff_ci_hi")
    return {
        "value_diff": None if value is None or base is None else value - base,
        "value_diff_detectable": None if lo is None or hi is None else scores.detectable(lo, hi),
        "quality_verdict": quality_verdict(columns),
    }


# The best constant answer, chosen on rows on which the cell isn't scored.


def chance_columns(cell: Cell, task: Task, rows: Sequence[Any], low: float | None) -> Row:
    """The columns of chance level; `low` is the lower end of the score's interval. All are null for
    a task without answers."""
    found: Row = {"chance": None, "chance_reason": None, "at_chance": None}
    if not task.constants(rows):
        return found
    others = other_rows(cell, task, rows)
    if len(others) < FEWEST_OTHERS:
        reason = f"it is chosen on {FEWEST_OTHERS} rows that aren't scored, and the data have "
        return {**found, "chance_reason": f"{reason}{len(others)} other rows"}
    level = chance.chance(task, rows, others)
    return {**found, "chance": level, "at_chance": None if low is None else low <= level}


def other_rows(cell: Cell, task: Task, rows: Sequence[Any]) -> Sequence[Any]:
    """Up to OTHERS rows that the cell doesn't have: those after its own in their split, else the
    first of the training split. Fewer than FEWEST_OTHERS if the data have no more."""
    data = data_of(vars(cell))
    later = _rows(cell, task, data, len(rows) + OTHERS)[len(rows) :]
    if len(later) >= FEWEST_OTHERS or data.split == "train":
        return later
    return _rows(cell, task, replace(data, split="train"), OTHERS) or later


def _rows(cell: Cell, task: Task, data: Data, n: int) -> Sequence[Any]:
    """The rows; empty if the data have no such split."""
    try:
        return task.load(data, n, cell.length, cell.seed).rows
    except DataError:
        return ()


# Memory.


def mem_agree(columns: Mapping[str, Any]) -> bool | None:
    """Whether measured, traced and theoretical memory agree: resident and traced peaks within a
    factor of two, and at most twice the theoretical peak; and the held and read bytes of a cache.
    None if nothing can be compared."""
    both = (columns.get("rss_peak_delta_bytes"), columns.get("alloc_peak_bytes"))
    peaks = [peak for peak in both if peak is not None]
    theory = columns.get("state_theory_bytes")
    checks = [kv_agrees(columns), kv_read_agrees(columns)]
    if len(peaks) == 2 or (peaks and theory is not None):
        near = max(peaks) <= 2 * min(peaks) + AGREE_SLACK_BYTES
        checks.append(near and (theory is None or max(peaks) <= 2 * theory + AGREE_SLACK_BYTES))
    known = [agree for agree in checks if agree is not None]
    return all(known) if known else None


def memory_ratios(columns: Mapping[str, Any]) -> Row:
    """The ratios of memory, method / vanilla; None where either is unknown."""
    on_gpu = columns.get("gpu_alloc_delta_bytes") is not None
    found: dict[str, Any] = {}
    for ratio, name in (
        ("mem_ratio", "gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"),
        ("kv_held_ratio", "kv_bytes_held"),
        ("kv_read_ratio", "kv_bytes_read_per_token"),
        ("train_mem_ratio", "train_peak_bytes"),
    ):
        own, base = columns.get(name), columns.get(f"base_{name}")
        found[ratio] = own / base if own is not None and base else None
    return cast(Row, found)


def whole_peaks(columns: Row) -> Row:
    """The peak memory of whole processes, and their ratio: resident memory before a forward plus
    the rise during it, unless the peak of an engine was read."""

    def whole(before: int | None, delta: int | None) -> int | None:
        return None if before is None or delta is None else before + delta

    own = columns.get("whole_peak_bytes")
    if own is None:
        own = whole(columns.get("rss_base_bytes"), columns.get("rss_peak_delta_bytes"))
    base = whole(columns.get("base_rss_base_bytes"), columns.get("base_rss_peak_delta_bytes"))
    ratio = own / base if own and base else None
    return {"whole_peak_bytes": own, "base_whole_peak_bytes": base, "whole_peak_ratio": ratio}
