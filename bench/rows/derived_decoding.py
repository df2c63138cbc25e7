"""The columns of decoding that are computed from the times of first tokens and of further ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bench.request.schema import VERDICT_TOKENS
from bench.rows.columns import Row
from bench.rows.decoding_columns import NAMES
from bench.statistics import paired as stats
from bench.status import Verdict

TPOT = {
    "lat_median_ns": "tpot_ns",
    "base_median_ns": "base_tpot_ns",
    "solo_median_ns": "tpot_solo_ns",
    "ratio": "tpot_ratio",
    "ratio_ci_lo": "tpot_ratio_ci_lo",
    "ratio_ci_hi": "tpot_ratio_ci_hi",
    "ratio_p": "tpot_ratio_p",
    "ratio_ci_method": "tpot_ratio_ci_method",
    "ratio_reason": "tpot_reason",
    "verdict": "tpot_verdict",
    "aa_noise_pct": "tpot_aa_noise_pct",
    "aa_verdict": "tpot_aa_verdict",
    "n_pairs": "tpot_n_pairs",
    "n_processes": "tpot_n_processes",
    "process_sd_pct": "tpot_process_sd_pct",
    "process_reason": "tpot_process_reason",
    "large_memory_kept": "large_memory_kept",
    "calls_per_sample": "steps_per_sample",
    "lat_samples_ns": "tpot_samples_ns",
    "base_samples_ns": "base_tpot_samples_ns",
    "aa_first_samples_ns": "tpot_aa_first_samples_ns",
    "aa_second_samples_ns": "tpot_aa_second_samples_ns",
    "pair_order": "tpot_pair_order",
    "pair_process": "tpot_pair_process",
    "engine_kernel": "tpot_engine_kernel",
    "engine_median_ns": "tpot_engine_ns",
    "ratio_same_engine": "tpot_ratio_same_engine",
    "ratio_same_engine_ci_lo": "tpot_ratio_same_engine_ci_lo",
    "ratio_same_engine_ci_hi": "tpot_ratio_same_engine_ci_hi",
    "ratio_same_engine_p": "tpot_ratio_same_engine_p",
    "ratio_same_engine_verdict": "tpot_ratio_same_engine_verdict",
    "ratio_same_engine_reason": "tpot_ratio_same_engine_reason",
    **{name: f"tpot_{name}" for name in NAMES},
}
"""Columns of a latency → their names where the samples are steps of decoding."""


def whole_answer(columns: Mapping[str, Any]) -> Row:
    """Tokens a second, and the whole answer: the first token and N − 1 further ones. The answer's
    ratio to vanilla is the mean of the ratios of both parts, weighted by vanilla's time, and so are
    the ends of its interval, which covers the errors of both."""
    n, batch = columns["new_tokens"], columns["batch"]
    found: dict[str, Any] = {}
    for arm, median in (("", "lat_median_ns"), ("base_", "base_median_ns")):
        first, each = columns.get(median), columns.get(f"{arm}tpot_ns")
        if first and each:
            found[f"{arm}tokens_per_s"] = batch * 1e9 / each
            found[f"{arm}answer_ns"] = first + (n - 1) * each
    if columns.get("tpot_ratio") is None:
        return cast(Row, found)
    if n < VERDICT_TOKENS:
        reason = f"{n} new tokens are too few for a verdict, which takes {VERDICT_TOKENS}"
        found |= {"tpot_verdict": Verdict.UNDECIDED, "tpot_reason": reason}
        if columns.get("tpot_ratio_same_engine") is not None:
            found["tpot_ratio_same_engine_verdict"] = Verdict.UNDECIDED
    if columns.get("ratio") is None:
        return cast(Row, found)
    share = columns["base_median_ns"] / found["base_answer_ns"]
    ratio, lo, hi = (
        share * columns[f"ratio{end}"] + (1 - share) * columns[f"tpot_ratio{end}"]
        for end in ("", "_ci_lo", "_ci_hi")
    )
    noises = (columns["aa_noise_pct"], columns["tpot_aa_noise_pct"])
    p, pairs = max(columns["ratio_p"], columns["tpot_ratio_p"]), columns["tpot_n_pairs"]
    whole = stats.Ratio(ratio, lo, hi, p, pairs)
    word = stats.verdict(whole, None if None in noises else max(noises))
    found |= {
        "answer_ratio": ratio,
        "answer_ratio_ci_lo": lo,
        "answer_ratio_ci_hi": hi,
        "answer_verdict": Verdict(word) if n >= VERDICT_TOKENS else Verdict.UNDECIDED,
    }
    return cast(Row, found)
