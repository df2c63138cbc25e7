"""H-Transformer-1D (Zhu and Soricut, arXiv 2107.11906): attention as a hierarchical matrix.

Neighbouring blocks of `rank` tokens attend exactly. Farther away, level l = 1, 2, … has queries and
keys averaged over 2^l tokens and values summed (§6.1); neighbouring blocks of rank · 2^l tokens are
read at this level, except pairs that a finer level reads (§6.2). One softmax runs over all levels.
O(n rank d): its coarse blocks have rank/2 averages each.

In a causal model queries are never averaged: an average would contain later queries, which would
change the output of earlier ones.

The official code wasn't found. lucidrains' h-transformer-1d 0.1.9 (MIT) differs from the paper:
each level's maximum is subtracted and never added back; only sibling blocks read each other, not
all neighbours; the coarsest level is missing, or in a causal model has holes.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from methods.base import AttentionCall, Method, SequenceInfo, Unsupported, Workload
from methods.h_transformer_1d.levels import Level, levels_of
from methods.parts.attention import per_head, widened
from methods.parts.parameters import Range
from methods.parts.partial import Partial, attend_in_groups, fused_in_groups
from methods.parts.sequence import padding_last

BIAS = "averaged queries and keys have no position that a position bias could be computed for"


@dataclass(frozen=True)
class HTransformer1D(Method):
    """Hierarchical attention; exact up to 2 · rank tokens.

    rank     tokens in a block (N_r); even, or 1
    queries  "coarse": averaged as keys are (the paper's); "fine": not averaged, which is closer to
             exact and always used in causal sequences

    No attention dropout. Raises Unsupported where scores have a position bias.
    """

    rank: Literal[1] | Annotated[int, Range(least=2, step=2)] = 16
    queries: Literal["coarse", "fine"] = "coarse"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.bias is not None:
            raise Unsupported(BIAS)
        return padding_last(self._attend, query, key, value, call)

    def unsupported(self, workload: Workload) -> str | None:
        return BIAS if workload.position_bias else None

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return workload.length <= 2 * self.rank

    def exact_limit(self) -> Method | None:
        return replace(self, rank=1024)

    def scaled_down(self) -> Method:
        return replace(self, rank=4)

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer's finest level, which are the largest."""
        pairs = workload.length * min(3 * self.rank, workload.length)
        return workload.bytes_per_element * workload.batch * workload.heads * pairs

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        inputs = [widened(x) for x in (query, *per_head(query, key, value))]
        n = query.shape[2]
        rank = min(self.rank, n + n % 2)  # a larger block would have empty slots
        finest, *coarser = levels_of(inputs, call.sequence, rank)
        if call.sequence.causal or self.queries == "fine":
            return self._of_fine_queries(finest, coarser, call).to(query.dtype)
        merged: Partial | None = None
        for level in (*reversed(coarser), finest):
            length, size = level.query.shape[2], level.key_tokens.shape[1] // 3
            groups = torch.arange(len(level.key_tokens) * size, device=query.device).view(-1, size)
            own = dataclasses.replace(call, sequence=level.sequence)
            part = attend_in_groups(
                level.query, level.key, level.value, own, groups, level.key_tokens
            )
            if merged is not None and merged.output.shape[2] != length:
                merged = merged.repeated(2, length)
            merged = part if merged is None else part.merged(merged)
        assert merged is not None
        return merged.output.to(query.dtype)

    def _of_fine_queries(self, finest: Level, coarser: list[Level], call: AttentionCall) -> Tensor:
        """Attention where each block of tokens reads its keys of all levels at once."""
        levels, blocks = [finest, *coarser], len(finest.key_tokens)
        place = torch.arange(blocks, device=finest.query.device)
        starts = itertools.accumulate((level.key.shape[2] for level in levels), initial=0)
        key_tokens = []
        for index, (level, start) in enumerate(zip(levels, starts, strict=False)):
            read = level.key_tokens[place >> max(0, index - 1)]
            exists = (read >= 0) & (read < level.key.shape[2])
            key_tokens.append((read + start).masked_fill(~exists, -1))
        rank = finest.key_tokens.shape[1] // 3
        tokens = torch.arange(blocks * rank, device=place.device).view(blocks, rank)
        keys, visible = torch.cat(key_tokens, 1), None
        if call.sequence.causal:  # coarse keys are averages of earlier tokens only
            later = keys[:, None, :] > tokens[:, :, None]
            visible = ~(later & (keys < finest.key.shape[2])[:, None, :])
        counts = torch.cat([level.log_counts for level in levels], 1)
        all_keys = dataclasses.replace(call, sequence=SequenceInfo(log_multiplicity=counts))
        key = torch.cat([level.key for level in levels], 2)
        value = torch.cat([level.value for level in levels], 2)
        return fused_in_groups(finest.query, key, value, all_keys, tokens, keys, visible)
