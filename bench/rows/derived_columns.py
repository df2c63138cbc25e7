"""The columns of quality, latency and memory that are computed from raw measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.errors import RequestError, errors_of
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.request.training_record import training_of
from bench.rows import chance_level, derived_decoding, quality_verdicts, witness
from bench.rows.columns import COLUMNS, FUSED_KERNEL, WIDENED_TO_ALONE, Row
from bench.rows.decoding_columns import NAMES, kv_agrees
from bench.rows.predictions import Predictions
from bench.rows.quality_verdicts import quality_verdict
from bench.rows.scoring import documents, scored
from bench.statistics import between_processes, scores
from bench.statistics import paired as stats
from bench.statistics.paired import ASSUMED_SD_PCT
from bench.status import Status, Verdict
from tasks.base import Task
from tasks.loading import truncation
from tasks.metrics import buckets

AGREE_SLACK_BYTES = 16 << 20

_SAME_NAME = (
    "ratio", "ratio_ci_lo", "ratio_ci_hi", "ratio_p", "n_pairs", "aa_noise_pct", "verdict",
)  # fmt: skip
TRAINING = {name: f"train_{name}" for name in _SAME_NAME} | {
    "n_processes": "train_n_processes",
    "process_sd_pct": "train_process_sd_pct",
    "pair_process": "train_pair_process",
    "lat_median_ns": "train_step_ns",
    "base_median_ns": "base_train_step_ns",
    "lat_samples_ns": "train_samples_ns",
    "base_samples_ns": "base_train_samples_ns",
    "ratio_reason": "train_reason",
    "large_memory_kept": "large_memory_kept",
    "timed_tokens": "timed_tokens",
    **{name: f"train_{name}" for name in NAMES if f"train_{name}" in COLUMNS},
}
"""Columns of a latency → their names where the samples are training steps."""


def quality_arms_of(cell: Cell, base: Cell) -> Row:
    """The columns about the weights of vanilla's quality, `base` being vanilla's cell."""
    own, other = (one.model["weights_sha256"] for one in (cell, base))
    training = training_of(base.model)
    return {
        "quality_comparison": quality_verdicts.compared(own, other),
        "base_weights_sha256": other,
        "base_training": json.dumps(training, sort_keys=True) if training else None,
    }


def derive(row: Mapping[str, Any], cell: Cell, results: Path) -> Row:
    """The row of a measured cell with all columns that follow from its raw measurements. `row` may
    also hold raw samples of training steps and of decoding, as `training_samples` and
    `decoding_samples`."""
    measured = dict(row)
    others = [
        (measured.pop("training_samples", None), TRAINING),
        (measured.pop("decoding_samples", None), derived_decoding.TPOT),
    ]
    columns = cast(Row, measured)
    if columns.get("tokens_in_mean") is not None:
        paired = cell.method["name"] != BASELINE
        try:
            with errors_of(f"task {cell.task['name']}", cell.task["target"]):
                columns |= quality(cell, results, paired)
                if paired:
                    columns |= quality_arms_of(cell, cell.baseline())
        except RequestError as error:
            # What was measured is kept; the same command scores the stored predictions again.
            failed = {"status": Status.ERROR, "status_stage": "score", "status_detail": str(error)}
            columns |= cast(Row, failed if columns.get("status") == Status.OK else {})
    if columns.get("lat_samples_ns"):
        columns |= latency(columns, cell.seed)
    for samples, names in others:
        if samples:
            timed = samples | latency(samples, cell.seed)
            columns |= cast(Row, {to: timed[name] for name, to in names.items() if name in timed})
    if columns.get("tpot_ns"):
        columns |= derived_decoding.whole_answer(columns)
    columns["mem_agree"] = mem_agree(columns)
    return columns


class _Scored(NamedTuple):
    """The stored predictions of a cell, scored by the task's official metric."""

    figures: dict[str, Any]
    each: list[float]
    estimate: scores.Estimate
    by_length: str | None
    sha256: str
    answer_cut_frac: float | None


def _scored(cell: Cell, task: Task, rows: Sequence[Any], predictions: Predictions) -> _Scored:
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
    return _Scored(
        figures=dict(figures),
        each=each,
        estimate=scores.mean(each, documents(rows), cell.seed),
        by_length=by_length,
        sha256=predictions.sha256([row.id for row in rows]),
        answer_cut_frac=_answer_cut_frac(rows, records, cell.length),
    )


def _answer_cut_frac(
    rows: Sequence[Any], records: Mapping[Any, Mapping[str, Any]], length: int
) -> float | None:
    """The share of rows whose answer stood in what truncation removed. None where texts were
    truncated and of none it is known, or no answer stood in one."""
    found = [
        truncation.answer_removed(row, record["removed"]) if "removed" in record else None
        for row in rows
        if "removed" in (record := records[row.id]) or (record.get("tokens_in") or 0) > length
    ]
    if found and all(each is None for each in found):
        return None
    return sum(each is True for each in found) / len(rows)


def quality(cell: Cell, results: Path, paired: bool) -> Row:
    """The quality columns from stored predictions, by the task's official metric, over all rows
    and by buckets of their length. `paired`: vanilla's predictions on the same rows, too."""
    task, loaded = cell.build_task(), cell.rows()
    rows = loaded.rows
    folder = results / "predictions"
    method = _scored(cell, task, rows, Predictions(folder, cell.prediction_key))
    low = method.estimate.lo
    columns: Row = {
        "metric": task.metric,
        "metric_version": str(task.metric_version),
        "higher_is_better": task.higher_is_better,
        "n_samples_available": loaded.n_available,
        "n_samples_official": cell.task.get("n", {}).get(cell.data["split"]),
        "value": method.figures["value"],
        "stderr": method.estimate.stderr,
        "ci_lo": low,
        "ci_hi": method.estimate.hi,
        "ci_method": method.estimate.how or None,
        "metrics": json.dumps(method.figures),
        "score_by_length": method.by_length,
        "answer_cut_frac": method.answer_cut_frac,
        "n_scored": len(rows),
        "n_failed": 0,
        "predictions_path": str(Path("predictions") / cell.prediction_key),
        "predictions_sha256": method.sha256,
    } | chance_level.columns(cell, task, rows, low)
    if paired:
        key = cell.baseline().prediction_key
        base = _scored(cell, task, rows, Predictions(folder, key))
        difference = scores.difference(method.each, base.each, documents(rows), cell.seed)
        columns |= {
            "base_value": base.figures["value"],
            "base_ci_lo": base.estimate.lo,
            "base_ci_hi": base.estimate.hi,
            "base_score_by_length": base.by_length,
            "base_predictions_sha256": base.sha256,
            "value_diff_ci_lo": difference.lo,
            "value_diff_ci_hi": difference.hi,
        }
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


def latency(samples: Mapping[str, Any], seed: int, widen: bool = True) -> Row:
    """The latency columns from raw samples: medians, ratio, verdict. `widen`: the intervals, by
    what their pairs don't show, which those of older rows lack. Samples with a `ratio_reason` give
    no verdict. Samples without equal pairs may have their `aa_noise_pct`."""
    mine = stats.summary(samples["lat_samples_ns"])
    columns: Row = {
        "lat_median_ns": mine.median_ns,
        "lat_p10_ns": mine.p10_ns,
        "lat_p90_ns": mine.p90_ns,
        "lat_p99_ns": mine.p99_ns,
        "lat_mad_ns": mine.mad_ns,
        "lat_min_ns": mine.min_ns,
    }
    base = samples.get("base_samples_ns")
    if not base:
        return columns
    aa = (samples.get("aa_first_samples_ns") or [], samples.get("aa_second_samples_ns") or [])
    alone = _alone(samples) if widen else None
    shared = _ratio(
        samples["lat_samples_ns"], base, samples.get("pair_process"), alone, seed, widen
    )
    inside = shared.ratio
    ratio, outside = witness.witnessed(samples, inside)
    noise = stats.aa_noise_pct(*aa, ratio.n, seed) if aa[0] else samples.get("aa_noise_pct")
    aa_verdict = stats.verdict(stats.paired_ratio(*aa, seed), noise) if aa[0] else None
    columns |= {
        "base_median_ns": stats.summary(base).median_ns,
        "ratio": ratio.ratio,
        "ratio_ci_lo": ratio.ci_lo,
        "ratio_ci_hi": ratio.ci_hi,
        "ratio_p": ratio.p,
        "n_pairs": ratio.n,
        "n_processes": shared.processes,
        "process_sd_pct": shared.sd_pct,
        "aa_noise_pct": noise,
        "verdict": Verdict(stats.verdict(ratio, noise)),
        "aa_verdict": Verdict(aa_verdict) if aa_verdict else None,
    }
    columns |= cast(Row, outside)
    if outside.get("ratio_note") and stats.verdict(inside, noise) != columns["verdict"]:
        columns["verdict"] = Verdict.UNDECIDED
    if widen:
        covers = f"t over {shared.processes} processes"
        if shared.processes == 1:
            covers = f"one process, and {ASSUMED_SD_PCT:g} % between processes"
        to_alone = alone is not None and ratio.ratio * alone in (ratio.ci_lo, ratio.ci_hi)
        columns["ratio_ci_method"] = f"{covers}; {WIDENED_TO_ALONE}" if to_alone else covers
    columns |= _same_engine(samples, columns, alone, seed, widen)
    if samples.get("ratio_reason"):  # the machine was too busy for a verdict
        columns["verdict"] = Verdict.UNDECIDED
        if columns.get("ratio_same_engine") is not None:
            columns["ratio_same_engine_verdict"] = Verdict.UNDECIDED
    return columns


def _alone(samples: Mapping[str, Any]) -> float | None:
    """The method's time without vanilla between its calls, as a share of that in pairs in the same
    process, the first."""
    solo_ns, paired_ns = samples.get("solo_median_ns"), samples["lat_samples_ns"]
    if not solo_ns:
        return None
    process = samples.get("pair_process") or [0] * len(paired_ns)
    first = [ns for ns, number in zip(paired_ns, process, strict=True) if number == process[0]]
    return float(solo_ns / stats.summary(first).median_ns)


def _ratio(
    method_ns: Sequence[int],
    base_ns: Sequence[int],
    process: Sequence[int] | None,
    alone: float | None,
    seed: int,
    widen: bool,
) -> between_processes.ProcessRatio:
    """The ratio of pairs; its interval holds what it would be with the method's time `alone`."""
    assumed_pct = ASSUMED_SD_PCT if widen else 0.0
    found = between_processes.paired_ratio(method_ns, base_ns, process, seed, assumed_pct)
    if alone is None:
        return found
    ratio = found.ratio
    return found._replace(ratio=between_processes.widened(ratio, ratio.ratio * alone))


def _same_engine(
    samples: Mapping[str, Any], against_vanilla: Row, alone: float | None, seed: int, widen: bool
) -> Row:
    """The columns of the ratio to exact attention by the method's own engine: from pairs of their
    own, judged by the noise of vanilla's equal pairs; or, where that engine is vanilla's, copied
    from the ratio to vanilla."""
    twin_ns = samples.get("engine_samples_ns")
    if not twin_ns:
        if samples.get("engine_kernel") != FUSED_KERNEL:
            return {}
        return {
            "engine_median_ns": against_vanilla["base_median_ns"],
            "ratio_same_engine": against_vanilla["ratio"],
            "ratio_same_engine_ci_lo": against_vanilla["ratio_ci_lo"],
            "ratio_same_engine_ci_hi": against_vanilla["ratio_ci_hi"],
            "ratio_same_engine_p": against_vanilla["ratio_p"],
            "ratio_same_engine_verdict": against_vanilla["verdict"],
        }
    process = samples.get("engine_pair_process")
    ratio = _ratio(samples["engine_lat_samples_ns"], twin_ns, process, alone, seed, widen).ratio
    return {
        "engine_median_ns": stats.summary(twin_ns).median_ns,
        "ratio_same_engine": ratio.ratio,
        "ratio_same_engine_ci_lo": ratio.ci_lo,
        "ratio_same_engine_ci_hi": ratio.ci_hi,
        "ratio_same_engine_p": ratio.p,
        "ratio_same_engine_verdict": Verdict(stats.verdict(ratio, against_vanilla["aa_noise_pct"])),
    }


def mem_agree(columns: Mapping[str, Any]) -> bool | None:
    """Whether measured, traced and theoretical memory agree: resident and traced peaks within a
    factor of two, and at most twice the theoretical peak; and those of a cache. None where nothing
    can be compared."""
    known = [each for each in (_peaks_agree(columns), kv_agrees(columns)) if each is not None]
    return all(known) if known else None


def _peaks_agree(columns: Mapping[str, Any]) -> bool | None:
    measured, traced = columns.get("rss_peak_delta_bytes"), columns.get("alloc_peak_bytes")
    theory = columns.get("state_theory_bytes")
    peaks = [peak for peak in (measured, traced) if peak is not None]
    if len(peaks) < 2 and (theory is None or not peaks):
        return None
    near = max(peaks) <= 2 * min(peaks) + AGREE_SLACK_BYTES
    return near and (theory is None or max(peaks) <= 2 * theory + AGREE_SLACK_BYTES)
