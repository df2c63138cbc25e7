"""The fields of paired comparisons that follow from their samples: medians, ratios, verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.request.schema import VERDICT_TOKENS
from bench.rows.columns import FUSED_KERNEL, WIDENED_TO_ALONE
from bench.rows.comparison import Comparison
from bench.statistics import paired as stats
from bench.status import Verdict

SLOWED = 1.05
"""Times outside replace those inside only beyond this factor: calls timed outside begin with colder
caches and sleeping threads."""


def to_vanilla(raw: Comparison, seed: int) -> Comparison:
    """A comparison with vanilla from its samples. With a `reason` there is no verdict. Samples
    without equal pairs may have their `aa_noise_pct`."""
    if not raw.samples_ns:
        return raw
    found = replace(raw, **stats.summary(raw.samples_ns)._asdict())
    if not raw.base_samples_ns:
        return found
    aa = (raw.aa_first_samples_ns or [], raw.aa_second_samples_ns or [])
    alone = _alone(raw)
    shared = _ratio(raw, alone, seed)
    ratio, outside = witnessed(raw, shared.ratio)
    noise = stats.aa_noise_pct(*aa, ratio.n, seed) if aa[0] else raw.aa_noise_pct
    verdict = stats.verdict(ratio, noise)
    is_one_round = len(set(raw.outside_process or ())) == 1
    overruled = outside.get("note") and (
        is_one_round or stats.verdict(shared.ratio, noise) != verdict
    )
    ci_method = f"t over {shared.processes} processes"
    if shared.processes == 1:
        ci_method = f"one process, and {stats.ASSUMED_SD_PCT:g} % between processes"
    if alone is not None and ratio.ratio * alone in (ratio.ci_lo, ratio.ci_hi):
        ci_method = f"{ci_method}; {WIDENED_TO_ALONE}"
    return replace(
        found,
        base_median_ns=stats.summary(raw.base_samples_ns).median_ns,
        **_ratio_fields(ratio),
        ratio_ci_method=ci_method,
        n_pairs=ratio.n,
        n_processes=shared.processes,
        process_sd_pct=shared.sd_pct,
        aa_noise_pct=noise,
        aa_verdict=stats.verdict(stats.paired_ratio(*aa, seed), noise) if aa[0] else None,
        verdict=Verdict.UNDECIDED if overruled or raw.reason else verdict,
        **outside,
    )


def to_engine(raw: Comparison, vanilla: Comparison, seed: int) -> Comparison:
    """The comparison with exact attention on the method's own engine: from separate pairs, judged
    by the noise of vanilla's equal pairs; or, if vanilla runs on that engine, the comparison with
    `vanilla`."""
    if not raw.samples_ns:
        if raw.kernel != FUSED_KERNEL or vanilla.ratio is None:
            return raw
        names = ("median_ns", "base_median_ns", "ratio", "ratio_ci_lo", "ratio_ci_hi", "ratio_p")
        same = {name: getattr(vanilla, name) for name in (*names, "verdict")}
        return replace(raw, **same)
    ratio = _ratio(raw, _alone(vanilla), seed).ratio
    verdict = stats.verdict(ratio, vanilla.aa_noise_pct)
    return replace(
        raw,
        median_ns=stats.summary(raw.samples_ns).median_ns,
        base_median_ns=stats.summary(raw.base_samples_ns or []).median_ns,
        **_ratio_fields(ratio),
        verdict=Verdict.UNDECIDED if vanilla.reason else verdict,
    )


def of_answer(first: Comparison, token: Comparison, n: int) -> Comparison:
    """The comparison of a whole answer of `n` tokens: the first one and n − 1 further ones. Its
    ratio is the mean of the ratios of both parts, weighted by vanilla's time, and so are the ends
    of its interval, which covers the errors of both."""
    times = {
        name: before + (n - 1) * each
        for name in ("median_ns", "base_median_ns")
        if (before := getattr(first, name)) and (each := getattr(token, name))
    }
    if first.paired is None or token.paired is None:
        return Comparison(**times)
    assert first.base_median_ns is not None
    share = first.base_median_ns / times["base_median_ns"]
    ratio, lo, hi = (
        share * one + (1 - share) * other
        for one, other in zip(first.paired[:3], token.paired[:3], strict=True)
    )
    noises = (first.aa_noise_pct, token.aa_noise_pct)
    p = max(first.paired.p, token.paired.p)
    whole = stats.Ratio(ratio, lo, hi, p, token.paired.n)
    word = stats.verdict(whole, None if None in noises else max(noises))  # type: ignore[type-var]
    return Comparison(
        **times, ratio=ratio, ratio_ci_lo=lo, ratio_ci_hi=hi,
        verdict=word if n >= VERDICT_TOKENS else Verdict.UNDECIDED,
    )  # fmt: skip


def of_few_tokens(token: Comparison, engine: Comparison, n: int) -> tuple[Comparison, Comparison]:
    """Both comparisons of a new token, without a verdict if `n` tokens are too few for one."""
    if token.ratio is None or n >= VERDICT_TOKENS:
        return token, engine
    reason = f"{n} new tokens are too few for a verdict, which takes {VERDICT_TOKENS}"
    token = replace(token, verdict=Verdict.UNDECIDED, reason=reason)
    if engine.ratio is not None:
        engine = replace(engine, verdict=Verdict.UNDECIDED)
    return token, engine


def _ratio_fields(ratio: stats.Ratio) -> dict[str, Any]:
    return {
        "ratio": ratio.ratio,
        "ratio_ci_lo": ratio.ci_lo,
        "ratio_ci_hi": ratio.ci_hi,
        "ratio_p": ratio.p,
    }


def _alone(raw: Comparison) -> float | None:
    """The method's time without vanilla between its calls, as a share of its time in pairs in the
    same process, the first one."""
    if not raw.solo_median_ns or not raw.samples_ns:
        return None
    process = raw.pair_process or [0] * len(raw.samples_ns)
    first = [ns for ns, one in zip(raw.samples_ns, process, strict=True) if one == process[0]]
    return float(raw.solo_median_ns / stats.summary(first).median_ns)


def _ratio(raw: Comparison, alone: float | None, seed: int) -> stats.ProcessRatio:
    """The ratio of pairs; its interval includes the ratio with the method's `alone` time."""
    found = stats.ratio_over_processes(
        raw.samples_ns or [], raw.base_samples_ns or [], raw.pair_process, seed
    )
    if alone is None:
        return found
    ratio = found.ratio
    return found._replace(ratio=stats.widened(ratio, ratio.ratio * alone))


# The comparison with calls timed by the supervisor's clock: vanilla may be slower next to the
# method, and the method's process may have reported times that are too short.


def witnessed(raw: Comparison, ratio: stats.Ratio) -> tuple[stats.Ratio, dict[str, Any]]:
    """The ratio of the samples and the fields of the times outside; no fields without such times.
    If the times outside give a ratio larger by more than its interval and SLOWED, it replaces the
    ratio and `note` contains the reason; if by more than SLOWED only, the interval is widened to
    the end of theirs. A slow-down of both arms changes nothing. On a machine that was too busy for
    a verdict the ratio stays, without a verdict.

    A single round doesn't show how much the next one would differ. If it replaces the ratio, there
    is no verdict. Otherwise, if one process timed all pairs and several turns, the interval
    includes the upper end of the ratio of these turns."""
    if not raw.outside_process:
        return ratio, {}
    inside = raw.pair_process or [0] * len(raw.base_samples_ns or ())
    base_inside, mine_inside = (raw.base_samples_ns or (), inside), (raw.samples_ns or (), inside)
    base = (raw.base_outside_samples_ns or (), raw.outside_process)
    mine = (raw.outside_samples_ns or (), raw.outside_process)
    slowed = stats.ratio_of_rounds([base_inside], [base])
    without = stats.ratio_of_rounds([mine], [base])
    larger = stats.ratio_of_rounds([mine, base_inside], [base, mine_inside])
    found: dict[str, Any] = {"base_outside_ns": stats.summary(base[0]).median_ns}
    for name, one in (("base_inside_outside_ratio", slowed), ("outside_ratio", without)):
        found |= {name: one.ratio, f"{name}_ci_lo": one.ci_lo, f"{name}_ci_hi": one.ci_hi}
    note = None
    if larger.ratio > SLOWED and larger.ci_lo > 1 and not raw.reason:
        note = f"by the supervisor's clock the method takes ×{larger.ratio:.2f} of its time"
        if slowed.ratio > SLOWED and slowed.ci_lo > 1:
            note = f"vanilla was slowed next to the method, ×{slowed.ratio:.2f}"
        ratio = stats.ratio_of_ratios(larger.inverse, ratio)
    else:
        end = without.ci_hi if larger.ratio > SLOWED else 0.0
        if len({*inside, *raw.outside_process}) == 1 and len(mine[0]) > 1:
            turns = stats.ratio_over_processes(mine[0], base[0]).ratio
            end = max(end, turns.ci_hi)
        ratio = stats.widened(ratio, end)
    return ratio, found | {"note": note}
