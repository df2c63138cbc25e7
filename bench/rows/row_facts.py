"""What a row's columns mean: the weights and training of both arms, whether the method keeps
vanilla's quality, the kernels that ran, whether only the engine made it faster, its inputs, the
longest input that fits, and its memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from bench.request.schema import BASELINE, MEASURES
from bench.rows.columns import Row
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
    from bench.statistics.paired import SCALE  # loads numpy, which takes a tenth of a second

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


# The kernels.

ENGINE_ONLY = "by its engine only"
PERHAPS = "perhaps "
"""Prefix of ENGINE_ONLY if the ratio to exact attention on the same engine is undecided."""
NEXT = re.compile(r"; (?=native |torch\b)")


def engine_only(row: Mapping[str, Any]) -> str:
    """ENGINE_ONLY if a row is faster than vanilla but not faster than exact attention on its own
    engine; empty otherwise, and if either ratio is missing."""
    own = row.get("engine_verdict")
    if row.get("lat_verdict") != Verdict.FASTER or own in (None, Verdict.FASTER):
        return ""
    return f"{PERHAPS}{ENGINE_ONLY}" if own == Verdict.UNDECIDED else ENGINE_ONLY


def kernels(used: str | None) -> list[tuple[str, str]]:
    """The kernels of a `kernel` column, each with the reason that follows it, if any."""
    parts = (part.partition(" (") for part in NEXT.split(used or "") if part)
    return [(name, reason.removesuffix(")")) for name, _, reason in parts]


def kernel_names(used: str | None, words: int | None = None) -> str:
    """The kernels without reasons, each once, at most `words` words of each: with one word, native
    or torch. Empty if none is known."""
    names = (" ".join(name.split()[:words]) for name, _ in kernels(used))
    return ", ".join(dict.fromkeys(names))


# The inputs, and the longest one that fits, as text.


def input_words(row: Mapping[str, Any]) -> list[str]:
    """Labels in tables for a row whose inputs differ from a task's unchanged inputs with one
    question each, in the prompt."""
    filled = ["inputs filled to the length"] if row.get("filled") else []
    after = ["question after the cache is made"] if row.get("question") else []
    return [*filled, *after, *([f"{row['turns']:.0f} turns"] if row.get("turns") else [])]


def longest_input(row: Mapping[str, Any]) -> str | None:
    """Text such as 14,848 tokens or, if time and not memory ended the search, at least 65,536
    tokens in time; with "in a training step" if these were tested. None for a row without a search.
    """
    if row.get("max_length_fit") is None:
        return None
    found = f"{row['max_length_fit']:,} tokens"
    found = f"at least {found} in time" if is_lower_bound(row) else found
    plan = MEASURES.get(row.get("measure") or "")
    return f"{found}, in a training step" if plan and plan.training else found


def is_lower_bound(row: Mapping[str, Any]) -> bool:
    """Whether a longer input reached the deadline, so that it may have fitted."""
    return bool(row.get("max_length_end") == Status.TIMEOUT)


# Memory, and the cache of keys and values.

KV_AGREE, KV_SLACK_BYTES, READ_AGREE_PCT = 1.05, 1 << 20, 5
AGREE_SLACK_BYTES = 16 << 20
HALVES = {"float64": 4, "float32": 2, "bfloat16": 1, "float16": 1}
"""Number format → its size in units of 16 bits."""


def kv_ratio_16bit(columns: Mapping[str, Any]) -> float | None:
    """The bytes that a cache holds / those of the keys and values of all tokens in 16 bits, in
    which most models run: relative to float32, a quantised cache would seem half as large."""
    held, full = columns.get("kv_bytes_held"), columns.get("kv_bytes_full")
    return HALVES[columns["dtype"]] * held / full if held is not None and full else None


def kv_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether a cache's resident memory is at most 5 % above the bytes that it reports as held:
    storage kept for growth isn't resident. None if either is unknown."""
    held, resident = columns.get("kv_bytes_held"), columns.get("kv_bytes_resident")
    if held is None or resident is None:
        return None
    return bool(resident <= KV_AGREE * held + KV_SLACK_BYTES)


def kv_read_agrees(columns: Mapping[str, Any]) -> bool | None:
    """Whether the bytes that a cache reports as read by a step equal the counted ones within 5 %.
    None if they weren't counted."""
    reported = columns.get("kv_read_reported_pct")
    return None if reported is None else bool(abs(reported - 100) <= READ_AGREE_PCT)


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
