"""Is B better than A? The verdict on a pair of rows, figure by figure: pure functions of rows.

Changes are those of B relative to A. Latency is compared as the ratio of two ratios, each against
vanilla in its own process, so that a change of the machine's speed between the runs cancels. A
verdict is better or worse only if it survives Holm's correction over everything compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from bench.errors import RequestError, unknown
from bench.host.host import has_older_id
from bench.request.schema import BASELINE
from bench.rows.columns import Row, value_of
from bench.rows.comparison import Comparison, Name
from bench.rows.row_facts import kernel_names
from bench.statistics import paired, scores
from bench.status import QualityComparison, Status, Verdict
from bench.units import counted

TIMES: dict[str, Name] = {"latency": "lat", "tpot": "tpot"}
FIGURES = ("quality", *TIMES, "memory", "kv_held")
"""Scores, times of a call and of each new token, peak memory, bytes that a KV cache holds."""

SURE = 0.05
SAME_POINTS = 1.0
LOSS = "loss"
"""Unit of a score where lower is better, such as nats per token."""
SAME_BYTES = 1 << 20


class ChangeVerdict(StrEnum):
    """Verdict on the change of a figure from A to B."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    UNDECIDED = "undecided"


LATENCY_CHANGE = {
    Verdict.FASTER: ChangeVerdict.BETTER,
    Verdict.SLOWER: ChangeVerdict.WORSE,
    Verdict.SAME: ChangeVerdict.SAME,
    Verdict.UNDECIDED: ChangeVerdict.UNDECIDED,
}


class Difference(NamedTuple):
    """One figure of one pair of rows. `a` and `b` are its values; `change`, `lo` and `hi` are in
    `unit` (%, points or LOSS), `change_pct` in percent of A. Unknown values are None, and `note`
    gives the reason. A verdict of better or worse is final after `holm_corrected`.
    `comparison`: whether the two scores are of the same weights.
    """

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
    verdict: ChangeVerdict | None = None
    note: str = ""
    comparison: QualityComparison | None = None

    @property
    def sure(self) -> bool:
        """Whether there is a change, however small. Valid after `holm_corrected`."""
        if self.lo is None or self.hi is None:
            return bool(self.change) and self.verdict != ChangeVerdict.UNDECIDED
        return not self.lo <= 0 <= self.hi and (self.p is None or self.p < SURE)


def time(figure: str, a: Row, b: Row) -> Difference:
    """The ratio of the two ratios of one of TIMES; vanilla's own ratio is 1."""
    of_a, of_b = (Comparison.of(row, TIMES[figure]) for row in (a, b))
    for side, row, own in (("A", a, of_a), ("B", b, of_b)):
        if row["method"] != BASELINE and own.ratio is None:
            return Difference(figure, note=_why_missing(side, row, own.reason))
    if a["method"] == b["method"] == BASELINE:
        return Difference(figure, note=f"both are vanilla, which {figure} is measured against")
    if reason := _other_hosts(a, b):
        return Difference(figure, note=reason)
    ours, theirs = of_a.paired, of_b.paired
    if ours and theirs:
        ratio = paired.ratio_of_ratios(ours, theirs)
    elif ours:
        ratio = ours.inverse
    else:
        assert theirs is not None
        ratio = theirs
    noises = [own.aa_noise_pct for own in (of_a, of_b) if own.ratio is not None]
    known = [noise for noise in noises if noise is not None]
    noisy = "noisy host" if a["noisy"] or b["noisy"] else ""
    resolution = math.hypot(*known) if len(known) == len(noises) else None
    change = _pct(ratio.ratio)
    kernels = _other_kernels(a, b) if figure == "latency" else ""
    return Difference(
        figure,
        ours.ratio if ours else 1.0,
        theirs.ratio if theirs else 1.0,
        change, _pct(ratio.ci_lo), _pct(ratio.ci_hi),
        change_pct=change, p=ratio.p, n=ratio.n,
        verdict=LATENCY_CHANGE[paired.verdict(ratio, resolution)],
        note="; ".join(filter(None, (noisy, kernels))),
    )  # fmt: skip


def _other_hosts(a: Row, b: Row) -> str:
    """Why the costs of two rows can't be compared as a ratio; empty if they can be compared."""
    if a["host_id"] == b["host_id"]:
        return ""
    older = has_older_id(a["host_id"]) != has_older_id(b["host_id"])
    return "measured on different hosts" + (", or with an older id of one host" if older else "")


def _other_kernels(a: Row, b: Row) -> str:
    """If two rows ran on different kernels, their names and each row's ratio to exact attention
    by its own kernel; otherwise empty."""
    used = [kernel_names(row.get("kernel")) for row in (a, b)]
    if not all(used) or used[0] == used[1]:
        return ""
    own = (Comparison.of(row, "engine").ratio for row in (a, b))
    beside = [
        f"{name} on {kernel}" + ("" if ratio is None else f" (×{ratio:.3f} of exact attention's)")
        for name, kernel, ratio in zip("AB", used, own, strict=True)
    ]
    return ", ".join(beside)


def _pct(ratio: float) -> float:
    return (ratio - 1) * 100


def memory(a: Row, b: Row) -> Difference:
    """Peak memory of one cold forward. It is measured once and repeats within 1 %, so it has no
    interval: a change counts from 2 % and 1 MiB."""
    column = "rss_peak_delta_bytes" if a["device"] == "cpu" else "gpu_alloc_delta_bytes"
    found = _bytes("memory", a, b, column, "mem_reason")
    reason = _other_hosts(a, b)
    if not reason and a["mem_method"] != b["mem_method"]:
        reason = f"read in two ways: {a['mem_method']}, {b['mem_method']}"
    return Difference("memory", note=reason) if reason and found.change is not None else found


def kv_held(a: Row, b: Row) -> Difference:
    """Bytes that the KV cache holds at the end of an answer, as counted. A change counts from the
    same thresholds as in `memory`."""
    return _bytes("kv_held", a, b, "kv_bytes_held", "kv_reason")


def _bytes(figure: str, a: Row, b: Row, column: str, reason: str) -> Difference:
    """The change of a column of bytes; `reason` is the column that explains a missing value."""
    for side, row in (("A", a), ("B", b)):
        if not value_of(row, column):
            return Difference(figure, note=_why_missing(side, row, value_of(row, reason)))
    ours, theirs = value_of(a, column), value_of(b, column)
    change = _pct(theirs / ours)
    few_bytes = abs(theirs - ours) <= SAME_BYTES
    verdict = ChangeVerdict.WORSE if change > 0 else ChangeVerdict.BETTER
    if few_bytes or abs(change) <= paired.SAME_PCT:
        verdict = ChangeVerdict.SAME
    note = f"a change counts from {SAME_BYTES >> 20} MiB; this is {abs(theirs - ours) >> 10} KiB"
    return Difference(figure, ours, theirs, change, change_pct=change, verdict=verdict,
                      note=note if few_bytes and abs(change) > paired.SAME_PCT else "")  # fmt: skip


def quality(
    a: Sequence[float],
    b: Sequence[float],
    higher_is_better: bool,
    margin: float = SAME_POINTS,
    documents: scores.Documents | None = None,
) -> Difference:
    """Scores of the same samples, in the same order. `margin` is in points, for a loss in percent
    of A's loss; `documents` as in `scores.mean`."""
    ours, theirs = np.asarray(a, float), np.asarray(b, float)
    estimate = scores.difference(theirs, ours, documents, bounded=higher_is_better)
    mean, change = float(ours.mean()), estimate.value
    difference = Difference(
        "quality", mean, float(theirs.mean()), change, estimate.lo, estimate.hi,
        "points" if higher_is_better else LOSS,
        100 * change / abs(mean) if mean else math.copysign(math.inf, change) if change else 0.0,
        n=len(ours), verdict=ChangeVerdict.UNDECIDED,
    )  # fmt: skip
    if estimate.lo is None or estimate.hi is None:
        return difference._replace(note="one sample has no interval")
    if not np.any(ours != theirs):
        difference = difference._replace(note="every sample scores the same")
    difference = difference._replace(p=scores.paired_p(a, b, documents))
    lo, hi = estimate.lo, estimate.hi
    margin *= 1 if higher_is_better else abs(mean) / 100
    if -margin <= lo and hi <= margin:
        return difference._replace(verdict=ChangeVerdict.SAME)
    if lo <= 0 <= hi:
        return difference
    better = (change > 0) == higher_is_better
    return difference._replace(verdict=ChangeVerdict.BETTER if better else ChangeVerdict.WORSE)


def unpaired_quality(a: Row, b: Row) -> Difference:
    """Two stored scores whose samples are not known: the interval of a difference of independent
    ones, from those of both (Newcombe, 1998, method 10), wider than that of paired samples."""
    ours, theirs = (np.array([row["value"], row["ci_lo"], row["ci_hi"]], float) for row in (a, b))
    higher_is_better = a["higher_is_better"] is not False
    change = float(theirs[0] - ours[0])
    difference = Difference(
        "quality", float(ours[0]), float(theirs[0]), change,
        unit="points" if higher_is_better else LOSS,
        change_pct=100 * change / abs(ours[0]) if ours[0] else None,
        n=min(a["n_scored"] or 0, b["n_scored"] or 0), verdict=ChangeVerdict.UNDECIDED,
    )  # fmt: skip
    if np.isnan([ours, theirs]).any():
        return difference
    down = math.hypot(theirs[0] - theirs[1], ours[2] - ours[0])
    up = math.hypot(theirs[2] - theirs[0], ours[0] - ours[1])
    error = (down if change > 0 else up) / NormalDist().inv_cdf(1 - SURE / 2)
    p = 2 * NormalDist().cdf(-abs(change) / error) if error else float(not change)
    difference = difference._replace(lo=change - down, hi=change + up, p=p)
    if change - down <= 0 <= change + up:
        return difference
    better = (change > 0) == higher_is_better
    return difference._replace(verdict=ChangeVerdict.BETTER if better else ChangeVerdict.WORSE)


def _why_missing(side: str, row: Row, reason: str | None) -> str:
    failed = row["status"] != Status.OK
    return f"{side}: {row['status'] if failed else reason or 'not measured'}"


def holm_corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with p-values corrected over all of them, and their final verdicts: better
    and worse need p below 0.05; same, which comes from the interval, needs none."""
    tested = [d.p for d in differences if d.p is not None]
    adjusted = iter(paired.holm(tested))
    result = []
    for difference in differences:
        if difference.p is not None:
            p = next(adjusted)
            difference = difference._replace(p=p)
            if p >= SURE and difference.verdict in (ChangeVerdict.BETTER, ChangeVerdict.WORSE):
                note = f"{difference.note}; " if difference.note else ""
                note += f"p = {p:.2g} after Holm's correction for {counted(len(tested), 'test')}"
                difference = difference._replace(verdict=ChangeVerdict.UNDECIDED, note=note)
        result.append(difference)
    return result


class Limit(NamedTuple):
    """The largest change accepted: `figure` up to `pct` (`sign` 1), or down to it (-1)."""

    figure: str
    sign: int
    pct: float
    text: str

    def exceeded_by(self, difference: Difference) -> bool:
        """Whether the change is beyond the limit and sure. Memory is sure without an interval."""
        return (
            difference.figure == self.figure
            and difference.change_pct is not None
            and self.sign * (difference.change_pct - self.pct) > 0
            and difference.sure
        )


def parse_limit(text: str) -> Limit:
    """A limit from a text such as 'latency > 5%' or 'quality < -2%'. Raises RequestError."""
    match = re.fullmatch(r"\s*(\w+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*", text)
    if not match:
        raise RequestError(
            f"can't read the limit '{text}': it is {', '.join(FIGURES)}, > or <, and a percent, "
            "such as 'latency > 5%' or 'quality < -2%'"
        )
    figure, sign, pct = match[1], 1 if match[2] == ">" else -1, float(match[3])
    if figure not in FIGURES:
        raise unknown("figure", figure, FIGURES)
    if sign * pct < 0:
        accepted = "0 or more after >" if sign > 0 else "0 or less after <"
        raise RequestError(
            f"can't judge by '{text}': a limit is a change of B against A in percent, {accepted}, "
            f"such as '{figure} {match[2]} {'5' if sign > 0 else '-2'}%'"
        )
    return Limit(figure, sign, pct, " ".join(text.split()))
