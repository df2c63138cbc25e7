"""Is B better than A? Judging of a pair of rows, figure by figure: pure functions of rows.

Changes are those of B against A. Latency is compared as the ratio of two ratios, each against
vanilla in its own process, so a machine that got slower in between changes nothing. A verdict is
better or worse only when it survives Holm's correction over everything that was compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from bench import stats
from bench.cell import BASELINE
from bench.errors import RequestError, unknown
from bench.rows import Row

Verdict = Literal["better", "worse", "same", "undecided"]
FIGURES = ("quality", "latency", "memory")

SURE = 0.05
SAME_POINTS = 1.0
SAME_BYTES = 1 << 20
SCALE = 100.0
"""Scores lie in 0…100."""


class Finding(NamedTuple):
    """One figure of one pair. `a` and `b` are its values; `change`, `lo` and `hi` are in `unit`
    (% or points), `change_pct` in percent of A. None stands for what there is not, and `note`
    says why. `settled` is what the verdict is once `p` has proved good enough, `verdict` what it
    is if not."""

    figure: str
    a: float | None = None
    b: float | None = None
    change: float | None = None
    lo: float | None = None
    hi: float | None = None
    unit: str = "%"
    change_pct: float | None = None
    p: float | None = None
    n: int | None = None
    verdict: Verdict | None = None
    settled: Verdict | None = None
    note: str = ""

    @property
    def sure(self) -> bool:
        """Whether there is a change, however small. To be asked after `judged`."""
        if self.lo is None or self.hi is None:
            return bool(self.change) and self.settled != "undecided"
        return not self.lo <= 0 <= self.hi and (self.p is None or self.p < SURE)


def latency(a: Row, b: Row) -> Finding:
    """The ratio of the two ratios; vanilla's own ratio is 1."""
    none = Finding("latency")
    for side, row in (("A", a), ("B", b)):
        if row["method"] != BASELINE and row["ratio"] is None:
            return none._replace(note=_absent(side, row, row["ratio_reason"] or "not measured"))
    if a["method"] == b["method"] == BASELINE:
        return none._replace(note="both are vanilla, which latency is measured against")
    if a["host_id"] != b["host_id"]:
        return none._replace(note="measured on different hosts")
    ours, theirs = _ratio(a), _ratio(b)
    if ours is None or theirs is None:
        known = theirs or ours
        assert known is not None
        ratio = known if ours is None else _inverse(known)
    else:
        ratio = stats.ratio_of_ratios(ours, theirs)
    noise = [row["aa_noise_pct"] for row in (a, b) if row["method"] != BASELINE]
    resolution = None if None in noise else math.hypot(*noise)
    meaning: dict[str, Verdict] = {"faster": "better", "slower": "worse", "same": "same"}
    change = _pct(ratio.ratio)
    return Finding(
        "latency",
        1.0 if ours is None else ours.ratio,
        1.0 if theirs is None else theirs.ratio,
        change, _pct(ratio.ci_lo), _pct(ratio.ci_hi),
        change_pct=change, p=ratio.p, n=ratio.n,
        verdict="undecided",
        settled=meaning.get(stats.verdict(ratio, resolution), "undecided"),
        note="noisy host" if a["noisy"] or b["noisy"] else "",
    )  # fmt: skip


def _ratio(row: Row) -> stats.Ratio | None:
    """A row's ratio to vanilla; None for vanilla itself."""
    if row["ratio"] is None:
        return None
    columns = ("ratio", "ratio_ci_lo", "ratio_ci_hi", "ratio_p", "n_pairs")
    return stats.Ratio(*(row[name] for name in columns))


def _inverse(ratio: stats.Ratio) -> stats.Ratio:
    hi = 1 / ratio.ci_lo if ratio.ci_lo else math.inf
    return stats.Ratio(1 / ratio.ratio, 1 / ratio.ci_hi, hi, ratio.p, ratio.n)


def _pct(ratio: float) -> float:
    return (ratio - 1) * 100


def memory(a: Row, b: Row) -> Finding:
    """Peak of one cold forward. It is read once and repeats within 1 %, so there is no interval:
    2 % and 1 MiB make a difference."""
    column = "rss_peak_delta_bytes" if a["device"] == "cpu" else "gpu_alloc_delta_bytes"
    none = Finding("memory")
    for side, row in (("A", a), ("B", b)):
        if not row[column]:
            return none._replace(note=_absent(side, row, row["mem_reason"] or "not measured"))
    if a["mem_method"] != b["mem_method"]:
        return none._replace(note=f"read in two ways: {a['mem_method']}, {b['mem_method']}")
    ours, theirs = a[column], b[column]
    change = _pct(theirs / ours)
    small = abs(change) <= stats.SAME_PCT or abs(theirs - ours) <= SAME_BYTES
    found: Verdict = "same" if small else "worse" if change > 0 else "better"
    return Finding("memory", ours, theirs, change, change_pct=change, verdict=found, settled=found)


def quality(
    a: Sequence[float], b: Sequence[float], higher_is_better: bool, margin: float = SAME_POINTS
) -> Finding:
    """Scores of the same samples, in the same order. `margin` is in points."""
    ours, theirs = np.asarray(a, float), np.asarray(b, float)
    estimate = stats.paired_difference(theirs, ours)
    mean, change = float(ours.mean()), estimate.value
    finding = Finding(
        "quality", mean, float(theirs.mean()), change, estimate.lo, estimate.hi, "points",
        100 * change / abs(mean) if mean else math.copysign(math.inf, change) if change else 0.0,
        n=len(ours), verdict="undecided", settled="undecided",
    )  # fmt: skip
    if estimate.lo is None or estimate.hi is None:
        return finding._replace(note="one sample tells nothing of others")
    if not np.any(ours != theirs):
        # A bootstrap of equal scores has no width; n samples still leave room for others to differ.
        reach = SCALE * (1 - 0.05 ** (1 / len(ours)))
        finding = finding._replace(lo=-reach, hi=reach, note="every sample scores the same")
    finding = finding._replace(p=paired_p(a, b))
    lo, hi = finding.lo or 0.0, finding.hi or 0.0
    if stats.equivalent(lo, hi, margin):
        return finding._replace(verdict="same", settled="same")
    if lo <= 0 <= hi:
        return finding
    return finding._replace(settled="better" if (change > 0) == higher_is_better else "worse")


def paired_p(a: Sequence[float], b: Sequence[float]) -> float:
    """p-value that scores of the same samples, in the same order, have the same mean: McNemar's
    for right or wrong, else that of swapping the two scores of a sample."""
    ours, theirs = np.asarray(a, float), np.asarray(b, float)
    values = {*ours.tolist(), *theirs.tolist()}
    binary = values <= {0.0, 1.0} or values <= {0.0, SCALE}
    return stats.mcnemar(ours > 0, theirs > 0) if binary else stats.sign_flip_p(ours, theirs)


def _absent(side: str, row: Row, reason: str) -> str:
    return f"{side}: {reason if row['status'] == 'ok' else row['status']}"


def judged(findings: Sequence[Finding]) -> list[Finding]:
    """Findings with Holm's p over all of them, and the verdict that it allows: what was found
    better or worse is undecided when p is not below 0.05; sameness needs no p."""
    tested = [finding for finding in findings if finding.p is not None]
    adjusted = iter(stats.holm([f.p for f in tested if f.p is not None]))
    result = []
    for finding in findings:
        p = None if finding.p is None else next(adjusted)
        passes = p is None or p < SURE or finding.settled == "same"
        verdict = finding.settled if passes else finding.verdict
        chance = "" if verdict == finding.settled else f"p = {p:.2g} after Holm's correction"
        note = "; ".join(filter(None, (finding.note, chance)))
        result.append(finding._replace(p=p, verdict=verdict, note=note))
    return result


class Limit(NamedTuple):
    """A change that is too much: `figure` beyond `pct`, above it (`sign` 1) or below it (-1)."""

    figure: str
    sign: int
    pct: float
    text: str

    def fails(self, finding: Finding) -> bool:
        """Whether the change is beyond the limit and sure. Memory is sure without an interval."""
        return (
            finding.figure == self.figure
            and finding.change_pct is not None
            and self.sign * (finding.change_pct - self.pct) > 0
            and finding.sure
        )


def limit(text: str) -> Limit:
    """A limit from words such as 'latency > 5%' or 'quality < -2%'. Raises RequestError."""
    found = re.fullmatch(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", text)
    if not found:
        raise RequestError(
            f"can't read the limit '{text}': it is quality, latency or memory, > or <, and a "
            "percent, such as 'latency > 5%' or 'quality < -2%'"
        )
    figure, sign, pct = found[1], 1 if found[2] == ">" else -1, float(found[3])
    if figure not in FIGURES:
        raise unknown("figure", figure, FIGURES)
    if sign * pct < 0:
        wanted = "0 or more after >" if sign > 0 else "0 or less after <"
        raise RequestError(
            f"can't judge by '{text}': a limit is a change of B against A in percent, {wanted}, "
            f"such as '{figure} {found[2]} {'5' if sign > 0 else '-2'}%'"
        )
    return Limit(figure, sign, pct, " ".join(text.split()))
