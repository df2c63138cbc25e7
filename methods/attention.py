"""Exact attention through torch's fused kernel, or what a model has in its place; position biases
and padding masks never become an n×n tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from methods.sequence import AttentionCall, SequenceInfo

GAPS = "a position bias, and gaps among the positions"
ROWS = 64
"""Queries whose bias is computed at once: larger masks fall out of the cache; 256 take twice the
time."""


def exact_attention(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
    """softmax(q kᵀ · scale + bias + key bias) v, fused, without an n×n tensor.

    query [B, H, n, d], key and value [B, H or a divisor, n, d] → [B, H, n, d]; differentiable.
    A model that has another attention (`call.model_attention`) computes that.
    (Where the position bias itself is trained, torch has no fused kernel, and the backward pass
    keeps what it needs, n×n in all.) Rows without a single valid key come out finite.
    """
    if call.model_attention is not None:
        return call.model_attention(query, key, value, call)
    sequence, n = call.sequence, query.shape[2]
    key_bias = sequence.key_bias(query.dtype)
    attend = _Fused(key, value, call)
    if call.bias is None and (key_bias is None or not sequence.causal):
        return attend(query, key_bias, causal=sequence.causal)
    positions, contiguous = positions_of(sequence, n, query.device)
    diagonals = None
    if call.bias is not None and contiguous and query.device.type == "cpu":
        diagonals = call.bias.diagonals(n).to(query.dtype)
    if diagonals is None or diagonals.requires_grad or sequence.causal:
        return _chunked(query, attend, key_bias, positions, call)

    # Row r of this view of 2n-1 numbers is the bias of query n-1-r: the n×n bias without storage.
    # (CUDA kernels want aligned rows, and the view's gradient is slower than a gather's.)
    bias = diagonals.unfold(-1, n, 1)[None]
    query = query.flip(2)
    if key_bias is None:
        return attend(query, bias).flip(2)
    outputs = [
        attend(query[:, :, rows], add_key_bias(bias[:, :, rows], key_bias)) for rows in _chunks(n)
    ]
    return torch.cat(outputs, 2).flip(2)


def per_head(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Keys and values [B, H/G, n, d] → [B, H, n, d], one for each of the query's heads."""
    groups = query.shape[1] // shared[0].shape[1]
    return [x if groups == 1 else x.repeat_interleave(groups, 1) for x in shared]


def bias_by_distance(call: AttentionCall, n: int, device: torch.device) -> Tensor | str | None:
    """A call's position bias as the native kernels take it, [H, 2n-1] float32; None where it has
    none, or the reason why they can't take it."""
    if call.bias is None:
        return None
    _, contiguous = positions_of(call.sequence, n, device)
    return call.bias.diagonals(n).float() if contiguous else GAPS


def positions_of(sequence: SequenceInfo, n: int, device: torch.device) -> tuple[Tensor, bool]:
    """The positions, and whether they are consecutive in every row. Consecutive ones are returned
    as 0 … n-1, [1, n], wherever rows begin: a position bias depends on distances alone."""
    positions = sequence.positions
    if positions is None or bool((positions.diff(dim=1) == 1).all()):
        return torch.arange(n, device=device)[None], True
    return positions, False


def add_key_bias(scores: Tensor, key_bias: Tensor, in_place: bool = False) -> Tensor:
    """Scores [B or 1, H, q, k] plus key_bias [B, 1, 1, k]; `in_place` is faster."""
    in_place = in_place and len(key_bias) == len(scores)
    scores = scores.add_(key_bias) if in_place else scores + key_bias
    if scores.dtype == torch.float16:  # here a bias on top of the lowest number rounds to -inf
        scores = scores.clamp(min=torch.finfo(torch.float16).min)
    return scores


def mask_future(scores: Tensor, first: int) -> Tensor:
    """The lowest number where the key comes after the query; row 0 is query number `first`."""
    q, k = scores.shape[-2:]
    future = torch.ones(q, k, dtype=torch.bool, device=scores.device).triu(first + 1)
    return scores.masked_fill(future, torch.finfo(scores.dtype).min)


@dataclass(frozen=True)
class _Fused:
    key: Tensor
    value: Tensor
    call: AttentionCall

    def __call__(self, query: Tensor, bias: Tensor | None, causal: bool = False) -> Tensor:
        return scaled_dot_product_attention(
            query,
            self.key,
            self.value,
            attn_mask=bias,
            dropout_p=self.call.dropout,
            is_causal=causal,
            scale=self.call.scale,
            enable_gqa=query.shape[1] != self.key.shape[1],
        )


def _chunked(
    query: Tensor, attend: _Fused, key_bias: Tensor | None, positions: Tensor, call: AttentionCall
) -> Tensor:
    n = query.shape[2]
    outputs = []
    for rows in _chunks(n):
        bias = query.new_zeros(1, 1, rows.stop - rows.start, n)
        if call.bias is not None:
            bias = call.bias(positions[:, rows], positions).to(query.dtype)
        if key_bias is not None:
            bias = add_key_bias(bias, key_bias, in_place=not bias.requires_grad)
        if call.sequence.causal:
            bias = mask_future(bias, rows.start)
        outputs.append(attend(query[:, :, rows], bias))
    return torch.cat(outputs, 2)


def _chunks(n: int) -> list[slice]:
    return [slice(start, min(start + ROWS, n)) for start in range(0, n, ROWS)]
