"""Intervals of mean scores and of paired differences between them.

Scores are one number for each sample. Samples of one document aren't independent draws, so whole
documents are resampled.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from bench.statistics.paired import FLIPS, SCALE, Floats, student_t_quantile

Documents = Sequence[Hashable]

FEWEST_VARIED = 10
"""Documents that must differ from the most common score for resampling to be accurate: the rule of
np ≥ 10 for proportions."""
RESAMPLES = 2000
DRAWS = 500_000
"""Random numbers in a distribution-free interval."""
TAIL = 0.025
POWER = 0.8


class Estimate(NamedTuple):
    """A mean with its standard error and 95 % interval, and the method of the interval, which is
    None for a single document whose scores have no known bounds."""

    value: float
    stderr: float | None
    lo: float | None
    hi: float | None
    how: str = ""


def mean(
    scores: ArrayLike, documents: Documents | None = None, seed: int = 0, bounded: bool = True
) -> Estimate:
    """The mean of `scores`; `documents[i]` names the document of sample i, None: each has its own.
    `bounded`: scores can't lie outside 0 to SCALE.

    The interval is Hesterberg's expanded percentile interval (2015, The American Statistician 69)
    over documents. If almost all have the same score, so that resampling would return an interval
    without width, it is Gaffke's for bounded scores (2005, Universität Magdeburg, Preprint 05-14):
    random weights on the scores and on one more at the bound. For right or wrong answers this is
    Clopper and Pearson's. Unbounded scores of a few documents get Student's interval, because
    resampling never leaves the range of their scores. Raises ValueError without a score.
    """
    return _estimate(np.asarray(scores, float), documents, (0.0, SCALE), seed, bounded)


def difference(
    a: ArrayLike,
    b: ArrayLike,
    documents: Documents | None = None,
    seed: int = 0,
    bounded: bool = True,
) -> Estimate:
    """mean(a) − mean(b) over samples on which both were scored, in the same order; see `mean`."""
    if np.shape(a) != np.shape(b):
        raise ValueError(f"paired scores differ in number: {np.shape(a)} and {np.shape(b)}")
    differences = np.asarray(a, float) - np.asarray(b, float)
    return _estimate(differences, documents, (-SCALE, SCALE), seed, bounded)


def detectable(lo: float, hi: float) -> float:
    """The smallest difference that samples show with probability 0.8, from the 95 % interval of a
    difference that they gave."""
    normal = NormalDist()
    return (hi - lo) / 2 * (1 + normal.inv_cdf(POWER) / normal.inv_cdf(1 - TAIL))


def paired_p(a: ArrayLike, b: ArrayLike, documents: Documents | None = None) -> float:
    """p-value that scores of the same samples, in the same order, have the same mean: McNemar's for
    right or wrong answers on one document each, else that of swapping the two scores of a
    document's samples."""
    ours, theirs = np.asarray(a, float), np.asarray(b, float)
    alone = documents is None or len(set(documents)) == len(documents)
    values = {*ours.tolist(), *theirs.tolist()}
    if alone and (values <= {0.0, 1.0} or values <= {0.0, SCALE}):
        return mcnemar(ours > 0, theirs > 0)
    return sign_flip_p(_by_document(ours - theirs, documents)[0])


def sign_flip_p(differences: ArrayLike) -> float:
    """Two-sided p-value that paired differences are 0 on average: the share of random flips of
    their signs with a sum at least as far from 0 as the observed one."""
    difference = np.asarray(differences, float)
    difference = difference[difference != 0]
    random = np.random.default_rng(0)
    distance = abs(difference.sum()) * (1 - 1e-12)
    count, block = 0, 1 + 1_000_000 // max(1, len(difference))
    for done in range(0, FLIPS, block):
        signs = random.integers(0, 2, (min(block, FLIPS - done), len(difference))) * 2.0 - 1
        sums = np.abs(np.einsum("fn,n->f", signs, difference))
        count += int(np.count_nonzero(sums >= distance))
    return float(1 + count) / (1 + FLIPS)


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """Exact two-sided p-value that two columns of right (1) and wrong (0) have equal accuracy."""
    first, second = np.asarray(a), np.asarray(b)
    if first.shape != second.shape or not set(np.unique([first, second])) <= {0, 1}:
        raise ValueError("mcnemar needs two equal columns of 0 and 1")
    only_a = int(np.count_nonzero(first > second))
    discordant = only_a + int(np.count_nonzero(first < second))
    fewer = min(only_a, discordant - only_a)
    tail = sum(math.comb(discordant, k) for k in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**discordant))


def _estimate(
    values: Floats,
    documents: Documents | None,
    bounds: tuple[float, float],
    seed: int,
    bounded: bool,
) -> Estimate:
    if not values.size:
        raise ValueError("no scores to average")
    sums, counts = _by_document(values, documents)
    m, centre = len(sums), float(values.mean())
    stderr = None
    if m > 1:
        stderr = float(np.sqrt(m / (m - 1) * np.sum((sums - centre * counts) ** 2))) / values.size
    within = bounded and bounds[0] <= values.min() and values.max() <= bounds[1]
    _, common = np.unique(sums / counts, return_counts=True)
    random = np.random.default_rng(seed)
    if within and m - common.max() < FEWEST_VARIED:
        tails = zip(bounds, (TAIL, 1 - TAIL), strict=True)
        drawn = [_gaffke(sums, counts, bound, tail, random) for bound, tail in tails]
        ends = np.clip(drawn, *bounds)  # rounding may exceed a bound
        how = "distribution-free"
    elif stderr is not None and not bounded and m < FEWEST_VARIED:
        reach = student_t_quantile(m - 1) * stderr
        ends = np.array([centre - reach, centre + reach])
        how = "Student's t"
    elif m > 1:
        ends = _percentiles(sums, counts, random)
        how = "bootstrap"
    else:
        return Estimate(centre, None, None, None)
    lo, hi = map(float, ends)
    unit = "samples" if m == values.size else f"{m:,} documents"
    return Estimate(centre, stderr, lo, hi, f"{how} over {unit}")


def _by_document(values: Floats, documents: Documents | None) -> tuple[Floats, Floats]:
    """The sum and number of the samples of each document."""
    if documents is None:
        return values, np.ones_like(values)
    if len(documents) != len(values):
        raise ValueError(f"{len(values)} scores, and documents of {len(documents)}")
    numbers: dict[Hashable, int] = {}
    places = [numbers.setdefault(one, len(numbers)) for one in documents]
    return cast(tuple[Floats, Floats], (np.bincount(places, values), np.bincount(places)))


def _percentiles(sums: Floats, counts: Floats, random: np.random.Generator) -> Floats:
    m = len(sums)
    # Student's t and n-1 correct the percentiles of few documents, which are too narrow.
    reach = student_t_quantile(m - 1) * math.sqrt(m / (m - 1))
    tail = NormalDist().cdf(-reach) * 100
    means = np.empty(RESAMPLES)
    block = 1 + DRAWS // m
    for start in range(0, RESAMPLES, block):
        drawn = random.integers(0, m, (min(block, RESAMPLES - start), m))
        means[start : start + block] = sums[drawn].sum(1) / counts[drawn].sum(1)
    return np.percentile(means, (tail, 100 - tail))


def _gaffke(
    sums: Floats, counts: Floats, bound: float, tail: float, random: np.random.Generator
) -> float:
    """The `tail` quantile of the mean with Dirichlet weights on the documents and on a further one
    of average size at `bound`."""
    size = float(counts.mean())
    units, repeats = np.unique(np.stack([sums, counts]), axis=1, return_counts=True)
    units = np.column_stack([units, (bound * size, size)])
    weights = random.standard_gamma((*repeats, 1), (DRAWS // units.shape[1], units.shape[1]))
    total, weight = units @ weights.T
    return float(np.quantile(total / weight, tail))
