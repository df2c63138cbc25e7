"""vAttention (Desai et al., arXiv 2510.05688): a new token reads the entries with the largest
scores exactly, and a random sample of the others, whose size bounds the error.

The first entries, the last ones and those with the largest scores are read exactly. A base sample
of the other n_s entries estimates the deviation σ of exp(score) and, with the exact entries, the
denominator D of the softmax. Then m = (z_{1−δ} · σ · n_s / (ε · D))² of them are drawn with
replacement, and each counts n_s/m times in the numerator and in the denominator. If the estimates
of the base sample are right, the denominator is too large by more than a share ε with probability
δ, and too small likewise; the numerator has no bound. Since draws are with replacement, m = n_s
isn't exact. Each query head chooses and draws for itself. All entries are kept; the prompt is read
exactly, and so are several new tokens at once (`several`).

The largest scores are the true ones (the paper's oracle): a new token reads all keys, and the
values of the entries that it chose, so at least half of the cache. The paper also predicts the
largest scores by other methods, which read fewer keys.

Draws depend only on the seed, the layer and the number of tokens: repeated calls give the same
output, and a row gives the same output in a batch as alone.

Differs from the official code (skylight-org/sparse-attention-hub, Apache-2.0): the base sample is
drawn from the entries that are not read exactly (there from all between sinks and window).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import NormalDist
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from methods import kernels
from methods.base import AttentionCall
from methods.parts.attention import logits
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.sparse_reading import LayerEntries, Prompt, SparseReading

APART = 1_000_003
"""Seeds of layers and steps are this far apart."""
MOST = 1 << 63
"""Seeds are below this."""
LEAST = 2
"""Draws of a base sample: fewer have no deviation."""

Share = Annotated[float, Range(above=0, most=1)]


@dataclass(frozen=True)
class VAttention(SparseReading):
    """Reads the best entries and a sample of the others.

    budget   entries that each query head reads exactly (`Budget`): sinks, window and
             those with the largest scores; the sample is in addition
    sinks    first entries among these; the official configurations have 128 of 32,768
    window   last entries among these; official: 128 too
    base     share of the other entries in the base sample
    epsilon  relative error of the denominator
    delta    probability of a larger error
    seed     seed of the draws
    """

    sinks: NonNegative = 16
    window: Positive = 32
    base: Share = 0.02
    epsilon: Share = 0.1
    delta: Annotated[float, Range(above=0, most=0.5)] = 0.05
    seed: NonNegative = 0

    def layer(self, index: int, prompt: Prompt) -> LayerEntries:
        return Sampled(self, index, prompt)

    def least(self) -> int:
        return self.sinks + self.window

    def exact_limit(self) -> VAttention:
        return replace(self, budget=4096, prefill=None)

    def scaled_down(self) -> VAttention:
        return replace(self, budget=12, sinks=2, window=4, epsilon=0.5)


def sample_size(
    rest: Tensor | int, deviation: Tensor, total: Tensor, epsilon: float, delta: float
) -> Tensor:
    """How many of `rest` entries are drawn, from 1 to `rest`. `deviation` is that of their
    exponentials, `total` the sum of the exponentials of all entries."""
    root = NormalDist().inv_cdf(1 - delta) * deviation * rest / (epsilon * total)
    return root.square().clamp(min=1).minimum(torch.as_tensor(rest, device=root.device)).long()


class Sampled(LayerEntries):
    """The entries of one layer."""

    method: VAttention

    def __init__(self, method: VAttention, index: int, prompt: Prompt) -> None:
        super().__init__(method, prompt)
        self.index = index

    def step(self, query: Tensor, call: AttentionCall) -> Tensor:
        method, tokens = self.method, self.tokens()
        scores = self._scores(query, call.scale)
        number = torch.arange(self.seen, device=query.device) - self.of_rows(self.first)
        scores = scores.masked_fill(number < 0, -inf)
        kept = (number < method.sinks) & (number >= 0) | (
            number >= self.of_rows(tokens) - method.window
        )
        exact = [min(max(most, method.least()), n)
                 for most, n in zip(self.budget, tokens, strict=True)]  # fmt: skip
        place = self.best(scores.masked_fill(kept, inf), exact)
        read = place < self.seen
        place = place.where(read, place[..., :1])
        chosen = scores.gather(2, place).masked_fill(~read, -inf)
        if exact != tokens:
            drawn, sampled = self._sample(scores, place, chosen, exact)
            place = torch.cat((place, drawn.where(sampled > -inf, place[..., :1])), 2)
            chosen = torch.cat((chosen, sampled), 2)
        self._count(place)
        weights = chosen.softmax(-1)[:, :, None]
        return self.sums_at(weights, self._parts[1], place).to(query.dtype)

    def _scores(self, query: Tensor, scale: float) -> Tensor:
        """[B, H, n]: scores of a query [B, H, 1, d] with all keys."""
        grouped = query.view(*self.key.shape[:2], -1, query.shape[3])
        scores = self.natively(kernels.row_scores, grouped, self.key)
        if isinstance(scores, str):
            return logits(query, self.key, scale)[:, :, 0]
        return scores.mul_(scale).flatten(1, 2)

    def _sample(
        self, scores: Tensor, place: Tensor, chosen: Tensor, exact: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Draws some of the entries that are not at `place` [B, H, k], where the scores [B, H, n]
        are `chosen`: their indices [B, H, m], and their scores plus the log of how often each
        counts; -inf after the last entry that a head reads."""
        method, tokens = self.method, self.tokens()
        left = [n - count for n, count in zip(tokens, exact, strict=True)]
        base, rest = [max(LEAST, int(method.base * n)) for n in left], self.of_rows(left)
        others = (scores > -inf).scatter_(2, place, False).cumsum(2)
        draws = [
            torch.Generator().manual_seed(((method.seed * APART + self.index) * APART + n) % MOST)
            for n in (tokens if len(set(tokens)) > 1 else tokens[:1])
        ]

        def drawn(counts: Sequence[int]) -> Tensor:
            """Indices [B, H, m], `counts` of them in each row."""
            rows = [
                torch.rand(count, scores.shape[1], generator=draw, dtype=torch.float64)
                for draw, count in zip(draws, counts, strict=False)
            ]
            number = (pad_sequence(rows, batch_first=True).mT.to(scores.device) * rest).long()
            number = number.expand(*scores.shape[:2], -1).contiguous()
            return torch.searchsorted(others, number + 1).clamp_(max=self.seen - 1)

        at, count, top = drawn(base), self.of_rows(base), scores.amax(2, keepdim=True)
        inside = torch.arange(at.shape[2], device=at.device) < count
        size = (scores.gather(2, at) - top).exp()
        mean = size.where(inside, 0).sum(2, keepdim=True) / count
        variance = (size - mean).where(inside, 0).square().sum(2, keepdim=True) / (count - 1)
        total = (chosen - top).exp().sum(2, keepdim=True) + rest * mean
        m = sample_size(rest, variance.sqrt(), total, method.epsilon, method.delta)
        at = drawn([int(m.max())] * len(draws))
        behind = torch.arange(at.shape[2], device=at.device) >= m
        times = rest / m.to(torch.promote_types(scores.dtype, torch.float32))
        return at, (scores.gather(2, at) + times.log()).masked_fill(behind, -inf)

    def _count(self, place: Tensor) -> None:
        """Counts the bytes read: all keys, and the values that any query head of a group reads."""
        batch, heads, _, width = self.key.shape
        read = torch.zeros(batch, heads, self.seen, dtype=torch.bool, device=place.device)
        read.scatter_(2, place.view(batch, heads, -1), True)
        keys = heads * sum(self.tokens())
        self.read += (keys + int(read.sum())) * width * self.key.element_size()
