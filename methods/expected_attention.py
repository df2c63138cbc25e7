"""Expected attention (Devoto et al., arXiv 2510.00636, §3): the entries that future queries are
expected to attend to and that move the output most.

Queries before their rotary embedding are assumed Gaussian, with the mean μ and covariance Σ of the
prompt's queries; the mean rotation R of the next `future` positions turns them. An entry's expected
weight is softmax(Rμ·k s + kᵀRΣRᵀk s²/2) with the attention's scale s, over the entries after the
sinks, and its score is that weight times the length of its value. All tokens after the prompt are
kept.

Follows the authors' code (NVIDIA/kvpress, Apache-2.0) where it differs from the paper: a value
counts by its own length, without the output projection, which a cache doesn't have; all KV heads
keep the same number of entries; the sinks are left out of μ and Σ, and are kept. The class of that
code has ε = 0, the default here. The entry of kvpress's leaderboard has ε = 0.01 (`epsilon=0.01`)
and budgets that differ by head: that is Ada-KV with this method as its `scorer`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Self

import torch
from torch import Tensor

from methods.base import AttentionCall, Workload
from methods.parts.eviction import Evicting, Rows
from methods.parts.parameters import Budget, NonNegative, Positive, Range

NO_ROTATION = "expected attention needs a rotary embedding that can be turned; this model has none"


@dataclass(frozen=True)
class ExpectedAttention(Evicting):
    """Keeps the entries that future queries are expected to attend to.

    budget   entries of the prompt (`Budget`)
    future   positions after the prompt for which queries are expected
    sinks    first tokens, which are always kept
    epsilon  added to each weight before it is multiplied by the value's length
    """

    budget: Budget = 0.5
    future: Positive = 512
    sinks: NonNegative = 4
    epsilon: Annotated[float, Range(least=0)] = 0.0

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        scores = torch.zeros(key.shape[:3], device=key.device)
        if key.shape[2] > self.sinks:
            k, v = (x[:, :, self.sinks :].float() for x in (key, value))
            weights = self._expected_weights(*self._future_queries(query, call), k, call.scale)
            scores[:, :, self.sinks :] = (weights + self.epsilon) * v.norm(dim=-1)
        return scores

    def protected(self, token: Tensor, rows: Rows) -> Tensor:
        return token < rows.first + self.sinks

    def least(self) -> int:
        return self.sinks + 1

    def unsupported(self, workload: Workload) -> str | None:
        if workload.causal and not workload.rotatable:
            return NO_ROTATION
        return super().unsupported(workload)

    def scaled_down(self) -> Self:
        return replace(self, budget=12, sinks=2)

    def _future_queries(self, query: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Mean [B, H, d] and covariance [B, H, d, d] of the expected queries."""
        assert call.rotate is not None
        n = query.shape[2]
        places = call.sequence.positions
        if places is None:
            places = torch.arange(n, device=query.device)[None]
        plain = call.rotate(query, -places)[:, :, self.sinks :].float()
        mean = plain.mean(2)
        centred = plain - mean[:, :, None]
        covariance = centred.mT @ centred / centred.shape[2]
        turn = self._mean_rotation(query[:1, :1, :1], int(places.max()) + 1, call).float()
        return mean @ turn, turn.mT @ covariance @ turn

    def _mean_rotation(self, like: Tensor, start: int, call: AttentionCall) -> Tensor:
        """[d, d]: the mean rotation of the future positions, for row vectors on its left. The sum
        over 2m positions is that over m of them, and the same moved on by m."""
        rotate, d = call.rotate, like.shape[3]
        assert rotate is not None
        block, total = torch.eye(d, dtype=like.dtype, device=like.device), like.new_zeros(d, d)

        def moved(by: int) -> Tensor:
            return rotate(block[None, None], torch.full((1, d), by, device=like.device))[0, 0]

        length, left = 1, self.future
        while left:
            if left & length:
                total += moved(start)
                start, left = start + length, left - length
            block, length = block + moved(length), 2 * length
        return total / self.future

    def _expected_weights(
        self, mean: Tensor, covariance: Tensor, key: Tensor, scale: float
    ) -> Tensor:
        """Keys [B, G, m, d] → expected weights [B, G, m]."""
        groups, wide = key.shape[1], key[:, :, None]
        expected = mean.unflatten(1, (groups, -1)) @ key.mT * scale
        spread = covariance.unflatten(1, (groups, -1))
        variance = ((wide @ spread) * wide).sum(-1) * scale**2
        weights: Tensor = (expected + variance / 2).softmax(-1).mean(2)
        return weights
