"""H-Transformer-1D (Zhu and Soricut, arXiv 2107.11906): attention as a hierarchical matrix.

Neighbouring blocks of `rank` tokens attend exactly. Farther away, level l = 1, 2, … has queries and
keys averaged over 2^l tokens and values summed (§6.1); two neighbouring blocks of rank · 2^l tokens
are read there, but for what a finer level has read (§6.2). One softmax runs over all levels. O(n
rank d): its coarse blocks have rank/2 averages each.

In a causal model queries are never averaged: an average would hold later queries, and so give an
output that they change.

The official code wasn't found. lucidrains' h-transformer-1d 0.1.9 departs from the paper: each
level's maximum is taken away and never restored; only sibling blocks read each other, not all
neighbours; the coarsest level is missing, or in a causal model has holes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from methods.attention import per_head
from methods.base import AttentionCall, Method, SequenceInfo, Unsupported, Workload
from methods.parameters import check_choice, check_least
from methods.partial import Partial, attend_in_groups
from methods.pooling import block_means, counts_of
from methods.rows import without_padding

BIAS = "averaged queries and keys have no position that a position bias could be computed for"
FAR = ((-2, 2, 3), (-3, -2, 2))
"""Where the blocks are that an even and an odd block read at the next level: their pairs of blocks
are neighbours, and they themselves aren't."""
FAR_CAUSAL = ((0, -2), (-3, -2))
"""As FAR, without later blocks; 0: none."""


@dataclass(frozen=True)
class HTransformer1D(Method):
    """Hierarchical attention; exact up to 2 · rank tokens.

    rank     tokens in a block (N_r); even, or 1
    queries  "coarse", averaged as keys are (the paper's), or "fine", which is nearer to exact; a
             causal sequence has fine ones

    No attention dropout. Raises Unsupported where scores have a position bias.
    """

    rank: int = 16
    queries: str = "coarse"

    def __post_init__(self) -> None:
        check_choice("queries", self.queries, ("coarse", "fine"))
        check_least("rank", self.rank, 1)
        if self.rank % 2 and self.rank > 1:
            raise ValueError(f"rank is {self.rank}; it is even, or 1")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.bias is not None:
            raise Unsupported(BIAS)
        return without_padding(self._unpadded, query, key, value, call)

    def unsupported(self, workload: Workload) -> str | None:
        return BIAS if workload.position_bias else None

    def exact_limit(self) -> Method | None:
        return replace(self, rank=1024)

    def scaled_down(self) -> Method:
        return replace(self, rank=4)

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer's finest level, the largest."""
        pairs = workload.length * min(3 * self.rank, workload.length)
        return workload.bytes_per_element * workload.batch * workload.heads * pairs

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        *finer, merged = self._levels((query, *per_head(query, key, value)), call)
        for part in reversed(finer):
            length = part.output.shape[2]
            if length != merged.output.shape[2]:
                merged = merged.repeated(2, length)
            merged = part.merged(merged)
        return merged.output.to(query.dtype)

    def _levels(self, inputs: tuple[Tensor, ...], call: AttentionCall) -> Iterator[Partial]:
        """What is read at each level, tokens first; of averaged queries, or of two halves of them
        where an average is longer than a block (rank 1)."""
        query, key, value = inputs
        n, causal, device = query.shape[2], call.sequence.causal, query.device
        blocks, size = -(-n // self.rank), self.rank
        tokens = torch.arange(blocks * size, device=device).view(blocks, size)
        near = torch.cat((tokens - size, tokens, tokens + size), 1)
        yield attend_in_groups(query, key, value, call, tokens, near)

        fine = causal or self.queries == "fine"
        far = torch.tensor(FAR_CAUSAL if causal else FAR, device=device)
        counts, means = counts_of(call.sequence, query), [query, key, value]
        while blocks > 2:
            finer, below = counts, means
            counts, means = block_means(finer, 2, *below)
            level, sizes, part = means, counts, self.rank // 2
            if self.rank == 1:
                halves = [x.repeat_interleave(2, 2)[:, :, : finer.shape[2]] for x in means[:2]]
                level, sizes, part = [*halves, below[2]], finer, 1
            queries = query if fine else level[0]
            group = size if fine else part
            own = torch.arange(blocks, device=device)[:, None]
            read = own + far[own[:, 0] % 2]
            keys = (read * part)[..., None] + torch.arange(part, device=device)
            keys = keys.masked_fill((read == own)[..., None], -1).flatten(1)
            groups = torch.arange(blocks * group, device=device).view(blocks, group)
            sequence = SequenceInfo(log_multiplicity=sizes.log()[:, 0, :, 0])
            coarse = dataclasses.replace(call, sequence=sequence)
            yield attend_in_groups(queries, level[1], level[2], coarse, groups, keys)
            blocks, size = -(-blocks // 2), 2 * size
