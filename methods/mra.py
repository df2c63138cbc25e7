"""MRA-2 (Zeng et al., arXiv 2207.10284): the largest blocks of attention exactly, the others by
their means.

Queries and keys are averaged in blocks of b; μ = exp(q̄ k̄ᵀ) approximates every pair of tokens of
two blocks (§4.1). In the m pairs of blocks with the largest μ, the exact exponentials replace it
(§4.3); all are normalised together (§4.4). MRA-2-s drops the others. O(m b² d + (n/b)² d).

Official codes: mlpen/mra-attention (no licence found) and transformers' (Apache-2.0).

Differs from official code:
- Pairs of blocks are ranked by μ over the whole sequence, as in the paper; there after each row's
  largest is subtracted (`ranking`), so that the best of all rows tie.
- In MRA-2-s a row in which no block is chosen keeps its means; there its output is 0.
- A row is cut into blocks without its padding.
- transformers' version without its CUDA kernel returns zeros.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import AttentionCall, Method, Unsupported, Workload
from methods.parts.attention import per_head, widened
from methods.parts.blocks import block_means, counts_of, log_of
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.partial import Partial
from methods.parts.sequence import padding_last

CAUSAL = "a block's mean would show a causal model its future"
BIAS = "blocks' means have no position that a position bias could be computed for"


@dataclass(frozen=True)
class MRA(Method):
    """Attention at two resolutions.

    b         tokens in a block
    per_row   exact pairs of blocks, for each block of queries on average: m = per_row · n/b
    first     first blocks: all pairs with one of these as a block of queries or of keys are chosen
              before other pairs
    diagonal  blocks of keys around each block of queries, which are chosen like those of `first`
    sparse    MRA-2-s: the pairs that aren't exact are dropped
    ranking   "global", or "rows" as in the official code

    No attention dropout. Raises Unsupported for a causal sequence or a position bias.
    """

    b: Positive = 32
    per_row: Annotated[float, Range(least=0)] = 4
    first: NonNegative = 0
    diagonal: NonNegative = 0
    sparse: bool = False
    ranking: Literal["global", "rows"] = "global"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        return padding_last(self._attend, query, key, value, call)

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else BIAS if workload.position_bias else None

    def reads_all(self, workload: Workload, layer: int) -> bool:
        blocks = -(-workload.length // self.b)
        return self._exact_pairs(blocks) == blocks**2

    def exact_limit(self) -> Method | None:
        return replace(self, per_row=2048)

    def scaled_down(self) -> Method:
        return replace(self, b=4, per_row=2)

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer, for blocks and for the exact pairs."""
        blocks = -(-workload.length // self.b)
        scores = blocks**2 + self._exact_pairs(blocks) * self.b**2
        return workload.bytes_per_element * workload.batch * workload.heads * scores

    def _exact_pairs(self, blocks: int) -> int:
        return min(round(self.per_row * blocks), blocks**2)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        q, k, v = (widened(x) for x in (query, *per_head(query, key, value)))
        counts = counts_of(call.sequence, q)
        totals, (q_means, k_means, v_means) = block_means(counts, self.b, q, k, v)
        coarse = q_means @ k_means.transpose(2, 3) * call.scale
        chosen, taken = self._largest(coarse.detach(), totals[:, 0, :, 0] > 0)
        dropped = torch.zeros_like(coarse, dtype=torch.bool).flatten(2)
        dropped = dropped.scatter(2, chosen, taken).view_as(coarse)
        if self.sparse:
            dropped = dropped.any(-1, keepdim=True).expand_as(dropped)
        scores = coarse + log_of(totals).transpose(2, 3)
        scores = scores.masked_fill(dropped, torch.finfo(scores.dtype).min)
        exact = self._exact(q, k, v, log_of(counts), call.scale, chosen, taken)
        means = Partial.from_scores(scores, v_means).repeated(self.b, exact.output.shape[2])
        output = exact.merged(means).output
        return output[:, :, : query.shape[2]].to(query.dtype)

    def _largest(self, coarse: Tensor, filled: Tensor) -> tuple[Tensor, Tensor]:
        """[B, H, m] twice: the chosen pairs of blocks, as indices in [N, N], and which of them are
        taken: a row's number of pairs depends on its `filled` [B or 1, N] blocks."""
        blocks, lowest = coarse.shape[-1], torch.finfo(coarse.dtype).min
        exists = (filled[:, :, None] & filled[:, None, :])[:, None]
        if self.ranking == "rows":
            coarse = coarse - coarse.masked_fill(~exists, lowest).amax(-1, keepdim=True)
        place = torch.arange(blocks, device=coarse.device)
        front = (place < self.first).int()
        prior = front[:, None] + front[None, :]
        if self.diagonal:
            prior = prior + ((place[:, None] - place[None, :]).abs() <= self.diagonal // 2)
        # The pairs that come first are ranked too, since there may be more than m.
        largest = coarse.masked_fill(~exists, 0).abs().amax((-1, -2), keepdim=True)
        ranked = coarse.double() + prior * (2 * largest.double() + 1)
        ranked = ranked.masked_fill(~exists, -math.inf).flatten(2)
        pairs = [self._exact_pairs(row) for row in filled.sum(1).tolist()]
        chosen = ranked.topk(max(pairs)).indices
        own = torch.tensor(pairs, device=coarse.device)[:, None, None]
        return chosen, (torch.arange(max(pairs), device=coarse.device) < own).expand_as(chosen)

    def _exact(
        self, query: Tensor, key: Tensor, value: Tensor, log_counts: Tensor, scale: float,
        chosen: Tensor, taken: Tensor,
    ) -> Partial:  # fmt: skip
        """Attention over the chosen pairs of blocks that are taken; the number of tokens is a
        multiple of b."""
        batch, heads, n, _ = query.shape
        missing, blocks = -n % self.b, -(-n // self.b)

        def in_blocks(x: Tensor, empty: float = 0) -> Tensor:
            x = pad(x, (0, 0, 0, missing), value=empty).expand(batch, heads, -1, -1)
            return x.reshape(-1, self.b, x.shape[3])

        first = torch.arange(batch * heads, device=query.device).view(batch, heads, 1) * blocks
        rows, columns = ((first + x).flatten() for x in (chosen // blocks, chosen % blocks))
        lowest = torch.finfo(query.dtype).min
        bias = in_blocks(log_counts, lowest)[columns].transpose(1, 2)
        bias = bias.masked_fill(~taken.flatten()[:, None, None], lowest)
        scores = in_blocks(query)[rows] @ in_blocks(key)[columns].transpose(1, 2) * scale + bias

        size = (batch * heads * blocks, self.b)
        largest = scores.detach().amax(-1)
        most = scores.new_full(size, lowest)
        most = most.scatter_reduce(0, rows[:, None].expand_as(largest), largest, "amax")
        weights = (scores - most[rows][..., None]).exp()
        total = weights.new_zeros(size).index_add(0, rows, weights.sum(-1))
        total = total.clamp(min=torch.finfo(total.dtype).tiny)[..., None]
        read = weights @ in_blocks(value)[columns]
        output = read.new_zeros(*size, read.shape[2]).index_add(0, rows, read) / total
        parts = output, most[..., None] + total.log()
        return Partial(*(x.view(batch, heads, -1, x.shape[2]) for x in parts))
