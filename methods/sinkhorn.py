"""Sparse Sinkhorn attention: blocks attend to themselves and to a sorted block (Tay et al., arXiv
2002.11296, §3).

A sorting network gives each block logits over the N blocks: R_i = relu(W_B relu(W_P x_i + b_P) +
b_B) of the sum x_i of the block's hidden states. Sinkhorn balancing makes P of exp(R/τ): rows and
columns are normalised in turn. Block i attends to its own keys and to (P K)_i, values likewise,
under one softmax. O(n·b + N²·b).

Official code: google-research/long-range-arena (Apache-2.0).

Differs from the official code (LRA's): P multiplies the keys, and one softmax is over both blocks.
There (form="lra") P is a softmax, and its einsum sums keys and P separately, so that each sorted
block is the sum of all blocks and the sorting network has no effect; two softmaxes are added, so
that a value which all tokens share is read 1 + N times; and a block has every N-th token. Its
padding mask is for contiguous blocks; here rows are cut without their padding. Differs from the
paper: no Gumbel noise on R in training, and no causal form. The paper's causal form masks later
blocks while P is balanced, but a column's sum still contains the logits of later blocks that read
it, so that an output would depend on later tokens; how the paper excludes them wasn't found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, relu, scaled_dot_product_attention

from methods.base import AttentionCall, Method, OwnParameter, Sublayer, Unsupported, Workload
from methods.parts.attention import per_head, widened
from methods.parts.blocks import Blocks, counts_of, log_of
from methods.parts.parameters import Positive, Range
from methods.parts.sequence import without_padding

CAUSAL = (
    "Sinkhorn balancing divides a column by what later blocks put there, so a causal model would "
    "see its future"
)
BIAS = "Sinkhorn attention's sorted keys have no position for a position bias"


@dataclass(frozen=True)
class Sinkhorn(Method):
    """W_P and W_B are normally distributed at first, with standard deviation 1/√D; each head has a
    W_B.

    b           tokens in a block
    n           length of the longest input
    iterations  iterations of Sinkhorn balancing
    tau         temperature of R
    form        "paper", or "lra", which has no parameters and accepts inputs of any length

    A row is cut into blocks without its padding. Raises Unsupported for a causal sequence, a
    position bias and more than n tokens.
    """

    b: Positive = 32
    n: Positive = 4096
    iterations: Positive = 8
    tau: Annotated[float, Range(above=0)] = 0.75
    form: Literal["paper", "lra"] = "paper"

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        reason = self._reason(call.sequence.causal, call.bias is not None, hidden.shape[1])
        if reason:
            raise Unsupported(reason)
        query, key, value = (
            each(hidden) for each in (sublayer.query, sublayer.key, sublayer.value)
        )
        if self.form == "lra":
            return sublayer.output(without_padding(self._lra, query, key, value, call))
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
        if self.form == "lra":
            return {}
        size, heads, n_blocks = workload.hidden_size, workload.heads, -(-self.n // self.b)
        return {
            "W_P": OwnParameter((size, size), std=size**-0.5),
            "b_P": OwnParameter((size,)),
            "W_B": OwnParameter((heads, n_blocks, size), std=size**-0.5),
            "b_B": OwnParameter((heads, n_blocks)),
        }

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return self.form == "paper" and workload.length <= self.b

    def exact_limit(self) -> Method | None:
        return replace(self, b=2048, n=2048) if self.form == "paper" else None

    def scaled_down(self) -> Method:
        return replace(self, b=4, n=128)

    def unsupported(self, workload: Workload) -> str | None:
        return self._reason(workload.causal, workload.position_bias, workload.length)

    def state_bytes(self, workload: Workload) -> int:
        """Sorted keys and values, their concatenation with each block's own, and P of one layer;
        for "lra" queries, keys and values in blocks, and the sums."""
        n_blocks = -(-workload.length // self.b)
        numbers = 6 * workload.length * workload.head_size + n_blocks**2
        if self.form == "lra":
            numbers = (3 * workload.length + 2 * self.b) * workload.head_size
        return workload.bytes_per_element * workload.batch * workload.heads * numbers

    def _reason(self, causal: bool, biased: bool, n: int) -> str | None:
        longer = f"Sinkhorn's sorting network is for at most n={self.n} tokens, not {n}"
        too_long = n > self.n and self.form == "paper"
        return CAUSAL if causal else BIAS if biased else longer if too_long else None

    def _lra(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        """LRA's form, for rows without padding: attention to the own block, which has every N-th
        token, and to sums over N neighbours, the tokens with the same index in each block."""
        key, value = per_head(query, key, value)
        n, counts = query.shape[2], counts_of(call.sequence, query)
        size = min(self.b, n)
        n_blocks = -(-n // size)

        def in_places(x: Tensor) -> Tensor:
            """[B, H, n, d] → [B, H, places, N, d]"""
            x = pad(x, (0, 0, 0, n_blocks * size - n))
            return x.view(*x.shape[:2], size, n_blocks, x.shape[3])

        counts = in_places(counts)
        queries, keys, values = map(in_places, (query, key, value))
        key_bias = log_of(counts).transpose(2, 3).mT
        query_blocks, key_blocks, value_blocks = (
            x.transpose(2, 3) for x in (queries, keys, values)
        )
        own = scaled_dot_product_attention(
            query_blocks, key_blocks, value_blocks, key_bias, call.dropout, scale=call.scale
        )
        key_sums, value_sums = ((x * counts).sum(3) for x in (keys, values))
        filled = log_of((counts.sum(3) > 0).to(query.dtype)).mT
        summed = scaled_dot_product_attention(
            query, key_sums, value_sums, filled, call.dropout, scale=call.scale
        )
        return own.transpose(2, 3).flatten(2, 3)[:, :, :n] + summed


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
    mean of the tokens that P moves there, weighted by P, and its multiplicity is their total."""
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
