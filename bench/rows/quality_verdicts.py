"""Interprets a row's quality: the weights and training of both arms, and whether the method keeps
vanilla's quality."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.request.schema import BASELINE
from bench.statistics.paired import SCALE
from bench.status import QualityComparison, QualityVerdict, Status, Verdict

NOT_RECORDED = "not recorded"
UNKNOWN_WEIGHTS = f"weights {NOT_RECORDED}"
TOY_KINDS = ("embedded", "random")


def has_toy_weights(row: Mapping[str, Any]) -> bool:
    """Whether a row's weights are this project's shipped ones, or random: nobody uses them."""
    return row.get("weights_kind") in TOY_KINDS


OF_FILE = '"weights": "file"'
"""Part of the parameters of an engine that computes with a GGUF file's own number formats."""


def labelled(name: Any, row: Mapping[str, Any]) -> str:
    """The name with notes: "toy weights", or the number format from which weights were dequantised
    or in which an engine computes; "retired", for a row that no longer counts."""
    weights = "toy weights" if has_toy_weights(row) else row.get("weights_format")
    if weights and OF_FILE in (row.get("method_params") or ""):
        weights = weights.removeprefix("dequantised from ")
    retired = Status.RETIRED if row.get("status") == Status.RETIRED else None
    notes = ", ".join(note for note in (weights, retired) if isinstance(note, str))
    return f"{name} ({notes})" if notes else str(name)


def compared(own: str | None, other: str | None) -> QualityComparison | None:
    """The kind of comparison between scores of weights with these hashes; None if unknown."""
    if own is None or other is None:
        return None
    same = own == other
    return QualityComparison.SAME_WEIGHTS if same else QualityComparison.TRAINED_EACH


def comparison(row: Mapping[str, Any]) -> QualityComparison | None:
    """The kind of comparison between a row's score and vanilla's; None: not recorded, or there is
    no score of vanilla."""
    stored = row.get("quality_comparison")
    return stored and QualityComparison(stored)


def comparison_text(row: Mapping[str, Any]) -> str:
    """The word shown with each difference of a row's score from vanilla's; empty if there is
    none."""
    if row.get("base_value") is None:
        return ""
    return comparison(row) or UNKNOWN_WEIGHTS


def training_text(training: str | None) -> str:
    """A column of training as text: 'from t5, 1.6 h, answers'."""
    record = json.loads(training or "{}")
    parts = (record.get("from") and f"from {record['from']}", _amount(record))
    return ", ".join(filter(None, (*parts, record.get("supervision")))) or NOT_RECORDED


def training_amount(training: str | None) -> str:
    """Length of the training in a column of training: '200 steps, 1.2 min'."""
    return _amount(json.loads(training or "{}")) or NOT_RECORDED


def _amount(record: Mapping[str, Any]) -> str:
    steps, hours = record.get("steps"), record.get("hours")
    times = None if hours is None else f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
    return ", ".join(filter(None, (None if steps is None else f"{steps:,} steps", times)))


# Whether a method keeps vanilla's quality, by the scores of both arms and their difference.

KEPT_SHARE = 0.99
"""Share of vanilla's score that MLPerf Inference requires in its closed division."""
CEILING_POINTS = 1.0
SEED_SDS = 2
SEEDS_UNKNOWN = "seed spread unknown"


def quality_verdict(row: Mapping[str, Any]) -> QualityVerdict | None:
    """Verdict by the interval of the difference from vanilla; None if there is no interval.

    If vanilla's own score isn't clearly above that of one constant answer, or is within a point of
    the best possible, the rows can't distinguish methods, unless the difference is significant.
    """
    base, lo, hi = (row.get(n) for n in ("base_value", "value_diff_ci_lo", "value_diff_ci_hi"))
    if base is None or lo is None or hi is None:
        return None
    upwards = row.get("higher_is_better") is not False
    lo, hi = (lo, hi) if upwards else (-hi, -lo)
    if vanilla_at_chance(row):
        return QualityVerdict.HIGHER if lo > 0 else QualityVerdict.UNTELLABLE
    kept = lo >= -(1 - KEPT_SHARE) * abs(base)
    if not kept and hi < 0:
        return QualityVerdict.LOWER
    if upwards and base >= SCALE - CEILING_POINTS:
        return QualityVerdict.UNTELLABLE
    if kept:
        return QualityVerdict.HIGHER if lo > 0 else QualityVerdict.KEPT
    return QualityVerdict.UNDECIDED


def stated_verdict(row: Mapping[str, Any], seed_sd: float | None = None) -> str | None:
    """The verdict as text. If each arm was trained separately, the interval is that of one seed's
    weights: it is widened by SEED_SDS standard deviations of the difference between seeds; if these
    are unknown, no verdict is stated."""
    if quality_verdict(row) is None or comparison(row) != QualityComparison.TRAINED_EACH:
        return quality_verdict(row)
    if seed_sd is None:
        return SEEDS_UNKNOWN
    ends = {"value_diff_ci_lo": -SEED_SDS, "value_diff_ci_hi": SEED_SDS}
    wider = {name: row[name] + sds * seed_sd for name, sds in ends.items()}
    return f"{quality_verdict({**row, **wider})}, seeds ± {seed_sd:.1f}"


def keeps_quality(row: Mapping[str, Any]) -> bool:
    """Whether a row's score is at least KEPT_SHARE of vanilla's, or its interval shows that it is.
    False if no score was measured, or vanilla's isn't clearly above chance."""
    value, base = row.get("value"), row.get("base_value")
    if value is None or base is None or vanilla_at_chance(row):
        return False
    if quality_verdict(row) in (QualityVerdict.KEPT, QualityVerdict.HIGHER):
        return True
    upwards = row.get("higher_is_better") is not False
    return bool(value >= KEPT_SHARE * base if upwards else value <= base / KEPT_SHARE)


def faster_as_good(row: Mapping[str, Any]) -> bool:
    """Whether a row's speed-up counts: faster than vanilla, at vanilla's quality."""
    return row.get("lat_verdict") == Verdict.FASTER and keeps_quality(row)


def vanilla_at_chance(row: Mapping[str, Any]) -> bool:
    """Whether vanilla's score, in its own row or in another method's, isn't clearly above chance.
    Such rows are not ranked."""
    if row.get("method") == BASELINE:
        return bool(row.get("at_chance"))
    chance, low = row.get("chance"), row.get("base_ci_lo")
    return chance is not None and low is not None and low <= chance
