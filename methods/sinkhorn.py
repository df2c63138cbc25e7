"""Sparse Sinkhorn attention: blocks attend to themselves and to a sorted block (Tay et al., arXiv
2002.11296, §3).

A sorting network gives each block logits over the N blocks: R_i = relu(W_B relu(W_P x_i + b_P) +
b_B) of the sum x_i of the block's hidden states. Sinkhorn balancing makes P of exp(R/τ): rows and
columns are normalised in turn. Block i attends to its own keys and to (P K)_i, values likewise,
under one softmax. O(n·b + N²·b).

Differs from the official code (LRA's): P multiplies the keys (there its einsum sums both apart, so
that every sorted block is the sum of all), and one softmax is over both blocks (there two are
added). Differs from the paper: no Gumbel noise on R in training, and no causal form. That masks
later blocks while P is balanced, but a column's sum still has the logits of the later blocks that
read it, so that an output would depend on later tokens; how the paper keeps them out wasn't found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import linear, relu, scaled_dot_product_attention

from methods.base import AttentionCall, Method, OwnParameter, Sublayer, Unsupported, Workload
from methods.parts.attention import per_head
from methods.parts.blocks import Blocks
from methods.parts.parameters import Positive, Range
from methods.parts.partial import widened

CAUSAL = (
    "Sinkhorn balancing divides a column by what later blocks put there, so a causal model would "
    "see its future"
)
BIAS = "Sinkhorn attention's sorted keys have no position for a position bias"


@dataclass(frozen=True)
class Sinkhorn(Method):
    """W_P and W_B are initially normal with standard deviation 1/√D; each head has a W_B.

    b           tokens in a block
    n           the longest input
    iterations  of Sinkhorn balancing
    tau         temperature of R

    A row is cut into blocks without its padding. Raises Unsupported for a causal sequence, a
    position bias and more than n tokens.
    """

    b: Positive = 32
    n: Positive = 4096
    iterations: Positive = 8
    tau: Annotated[float, Range(above=0)] = 0.75

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        reason = self._reason(call.sequence.causal, call.bias is not None, hidden.shape[1])
        if reason:
            raise Unsupported(reason)
        query, key, value = (
            each(hidden) for each in (sublayer.query, sublayer.key, sublayer.value)
        )
        blocks, own = Blocks.of(call.sequence, hidden, self.b), call.parameters
        split = blocks.split(hidden)
        inner = relu(linear((blocks.count[..., None] * split).sum(2), own["W_P"], own["b_P"]))
        n_blocks = split.shape[1]
        logits = torch.einsum("bne,hme->bhnm", inner, own["W_B"][:, :n_blocks])
        logits = relu(logits + own["b_B"][:, None, :n_blocks])
        filled = blocks.count.sum(2) > 0
        sorting = balanced(widened(logits) / self.tau, filled, self.iterations)
        return sublayer.output(sorted_attention(query, key, value, sorting, blocks, call))

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        size, heads, n_blocks = workload.hidden_size, workload.heads, -(-self.n // self.b)
        return {
            "W_P": OwnParameter((size, size), std=size**-0.5),
            "b_P": OwnParameter((size,)),
            "W_B": OwnParameter((heads, n_blocks, size), std=size**-0.5),
            "b_B": OwnParameter((heads, n_blocks)),
        }

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return workload.length <= self.b

    def exact_limit(self) -> Method:
        return replace(self, b=2048, n=2048)

    def scaled_down(self) -> Method:
        return replace(self, b=4, n=128)

    def unsupported(self, workload: Workload) -> str | None:
        return self._reason(workload.causal, workload.position_bias, workload.length)

    def state_bytes(self, workload: Workload) -> int:
        """Sorted keys and values, those beside a block's own, and P of one layer."""
        n_blocks = -(-workload.length // self.b)
        numbers = 6 * workload.length * workload.head_size + n_blocks**2
        return workload.bytes_per_element * workload.batch * workload.heads * numbers

    def _reason(self, causal: bool, biased: bool, n: int) -> str | None:
        longer = f"Sinkhorn's sorting network is for at most n={self.n} tokens, not {n}"
        return CAUSAL if causal else BIAS if biased else longer if n > self.n else None


def balanced(logits: Tensor, filled: Tensor, iterations: int) -> Tensor:
    """exp(logits [B, H, N, N]) with rows, then columns, normalised in turn; 0 in the rows and
    columns of blocks that aren't `filled` [B or 1, N]."""
    empty = ~(filled[:, None, :, None] & filled[:, None, None, :])
    lowest = torch.finfo(logits.dtype).min / 2
    logits = logits.masked_fill(empty, lowest)
    for _ in range(iterations):
        for dim in (-1, -2):
            logits = (logits - logits.logsumexp(dim, keepdim=True)).masked_fill(empty, lowest)
    return logits.exp()


def sorted_attention(
    query: Tensor, key: Tensor, value: Tensor, sorting: Tensor, blocks: Blocks, call: AttentionCall
) -> Tensor:
    """query [B, H, n, d], key and value, and P [B, H, N, N] → [B, H, n, d]. A sorted slot is the
    mean of the tokens that P puts there, weighted by P, and counts as many tokens as they do."""
    query, key, value = map(blocks.split, (query, *per_head(query, key, value)))
    own = widened(blocks.count)[:, None].expand(*key.shape[:4])
    count = sorting @ own  # [B, H, N, b]
    scale = sorting.sum(-1, keepdim=True) / count.clamp(min=1e-9)
    moved = [
        ((sorting @ (x * own[..., None]).flatten(3)).view_as(x) * scale[..., None]).to(x.dtype)
        for x in (key, value)
    ]
    counts = torch.cat((own, count / sorting.sum(-1, keepdim=True).clamp(min=1e-9)), -1)
    lowest = torch.finfo(query.dtype).min
    bias = counts.clamp(min=1e-9).log().masked_fill(counts < 1e-6, lowest)[..., None, :]
    bias = bias.to(query.dtype)
    keys, values = (torch.cat(pair, 3) for pair in zip((key, value), moved, strict=True))
    read = scaled_dot_product_attention(
        query.flatten(0, 2)[:, None], keys.flatten(0, 2)[:, None], values.flatten(0, 2)[:, None],
        bias.flatten(0, 2)[:, None], call.dropout, scale=call.scale,
    )  # fmt: skip
    return blocks.joined(read.view(*query.shape[:4], -1))
