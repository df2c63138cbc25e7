"""Exact attention through torch's fused kernel, or a model's own other attention; position biases
and padding masks never become an n×n tensor. Below it the softmax weights of keys, by which
eviction ranks them.

Shapes: B batch, H query heads, G key heads, n tokens, d head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from methods.parts.sequence import AttentionCall, SequenceInfo

GAPS = "a position bias, and gaps among the positions"
ROWS, GPU_WEIGHTS = 64, 1 << 25
"""Size of a chunk whose bias is computed at once. On a CPU, queries: larger masks don't fit in its
cache, and 256 queries take twice the time. On a GPU, attention weights: fewer chunks need fewer
kernel launches."""
WEIGHTS, CPU_WEIGHTS = 1 << 21, 1 << 19
"""Weights that are computed at a time; on a CPU, fewer: they stay in its cache."""


def exact_attention(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
    """softmax(q kᵀ · scale + bias + key bias) v, fused, without an n×n tensor.

    query [B, H, n, d], key and value [B, H or a divisor, n, d] → [B, H, n, d]; differentiable.
    A model with another attention (`call.model_attention`) computes that; the windows, soft caps
    and sinks of a call are applied. (Where the position bias is trained, torch has no fused kernel,
    and the backward pass stores n×n numbers.) Rows without a valid key come out finite.
    """
    if call.model_attention is not None:
        return call.model_attention(query, key, value, call)
    sequence, n = call.sequence, query.shape[2]
    key_bias = sequence.key_bias(query.dtype)
    if has_features(call, n):
        return _chunked(query, key, value, key_bias, call)
    if call.bias is None and (key_bias is None or not sequence.causal):
        return attend_masked(query, key, value, key_bias, call, causal=sequence.causal)
    _, contiguous = positions_of(sequence, n, query.device)
    diagonals = None
    if call.bias is not None and contiguous and query.device.type == "cpu":
        diagonals = call.bias.diagonals(n).to(query.dtype)
    if diagonals is None or diagonals.requires_grad or sequence.causal:
        return _chunked(query, key, value, key_bias, call)

    # Row r of this view of 2n-1 numbers is the bias of query n-1-r: the n×n bias without storage.
    # (CUDA kernels want aligned rows, and the view's gradient is slower than a gather's.)
    bias = diagonals.unfold(-1, n, 1)[None]
    query = query.flip(2)
    if key_bias is None:
        return attend_masked(query, key, value, bias, call).flip(2)
    outputs = [
        attend_masked(query[:, :, rows], key, value, add_key_bias(bias[:, :, rows], key_bias), call)
        for rows in _chunks(query)
    ]
    return torch.cat(outputs, 2).flip(2)


def per_head(query: Tensor, *shared: Tensor) -> list[Tensor]:
    """Keys and values [B, H/G, n, d] → [B, H, n, d], one for each of the query's heads."""
    groups = query.shape[1] // shared[0].shape[1]
    return [x if groups == 1 else x.repeat_interleave(groups, 1) for x in shared]


def bias_by_distance(call: AttentionCall, n: int, device: torch.device) -> Tensor | str | None:
    """A call's position bias as the argument of native kernels, [H, 2n-1] float32; None where it
    has none, or the reason why they can't take it."""
    if call.bias is None:
        return None
    _, contiguous = positions_of(call.sequence, n, device)
    return call.bias.diagonals(n).float() if contiguous else GAPS


def positions_of(sequence: SequenceInfo, n: int, device: torch.device) -> tuple[Tensor, bool]:
    """The positions, and whether they are consecutive in every row. Consecutive ones are returned
    as 0 … n-1, [1, n], whichever position a row begins at: a position bias depends only on
    distances."""
    positions = sequence.positions
    if positions is None or bool((positions.diff(dim=1) == 1).all()):
        return torch.arange(n, device=device)[None], True
    return positions, False


def add_key_bias(scores: Tensor, key_bias: Tensor, in_place: bool = False) -> Tensor:
    """Scores [B or 1, H, q, k] plus key_bias [B, 1, 1, k]; `in_place` is faster."""
    in_place = in_place and len(key_bias) == len(scores)
    scores = scores.add_(key_bias) if in_place else scores + key_bias
    if scores.dtype == torch.float16:  # the lowest number plus a bias rounds to -inf
        scores = scores.clamp(min=torch.finfo(torch.float16).min)
    return scores


def mask_future(scores: Tensor, first: int) -> Tensor:
    """Sets scores to the lowest number where the key comes after the query; row 0 is query
    `first`."""
    q, k = scores.shape[-2:]
    future = torch.ones(q, k, dtype=torch.bool, device=scores.device).triu(first + 1)
    return scores.masked_fill(future, torch.finfo(scores.dtype).min)


def has_features(call: AttentionCall, n: int) -> bool:
    """Whether attention to n tokens has any `methods.parts.workload.Feature`."""
    windowed = call.window is not None and call.window < n
    return windowed or call.softcap is not None or call.sinks is not None


def mask_past(scores: Tensor, first: int, call: AttentionCall) -> Tensor:
    """Sets scores to the lowest number where the key precedes the window of the query; row 0 is
    query `first`."""
    q, k = scores.shape[-2:]
    if call.window is None or call.window >= first + q:
        return scores
    past = torch.ones(q, k, dtype=torch.bool, device=scores.device).tril(first - call.window)
    return scores.masked_fill(past, torch.finfo(scores.dtype).min)


def capped(scores: Tensor, call: AttentionCall) -> Tensor:
    """Scores with the call's soft cap."""
    return scores if call.softcap is None else call.softcap * (scores / call.softcap).tanh()


def softmax(scores: Tensor, call: AttentionCall) -> Tensor:
    """The weights of scores [B, H, q, k]; with sinks they add up to less than 1."""
    if call.sinks is None:
        return scores.softmax(-1)
    sinks = call.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


def widened(x: Tensor) -> Tensor:
    """x in float32 if it is in half precision, in which a softmax is too coarse."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def attend_masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    call: AttentionCall,
    causal: bool = False,
) -> Tensor:
    """query [B, H, q, d], key and value [B, H or a divisor, k, d] → [B, H, q, d], with the scale,
    dropout, soft cap and sinks of the call. mask [B or 1, H or 1, q or 1, k]: bool, True where a
    query reads a key, or numbers to add to the scores. Fused if there is no cap and no sink."""
    if call.softcap is None and call.sinks is None:
        if query.shape[2] == 1 and query.shape[1] != key.shape[1] and not causal:
            return _by_group(query, key, value, mask, call)
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=call.dropout,
            is_causal=causal,
            scale=call.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    key, value = per_head(query, key, value)
    scores = capped(query @ key.mT * call.scale, call)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    return dropout(softmax(scores, call), call.dropout) @ value


def _by_group(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: AttentionCall
) -> Tensor:
    """Attention of one query a head, where heads share keys: the queries of a key head are one
    matrix, so that its keys are read once instead of once for each query."""
    groups = key.shape[1]
    if mask is not None and mask.shape[1] > 1:
        mask = mask.unflatten(1, (groups, -1)).flatten(2, 3)
    output = scaled_dot_product_attention(
        query.unflatten(1, (groups, -1)).flatten(2, 3),
        key,
        value,
        mask,
        call.dropout,
        scale=call.scale,
    )
    return output.reshape(*query.shape[:3], -1)


def _chunked(
    query: Tensor, key: Tensor, value: Tensor, key_bias: Tensor | None, call: AttentionCall
) -> Tensor:
    """Attention of some queries at a time; with a window, to the keys within reach of any of
    them."""
    n = query.shape[2]
    positions, _ = positions_of(call.sequence, n, query.device)
    outputs = []
    for rows in _chunks(query):
        keys = slice(0, n)
        if call.window is not None and call.sequence.causal:
            keys = slice(max(0, rows.start - call.window + 1), rows.stop)
        bias = query.new_zeros(1, 1, rows.stop - rows.start, keys.stop - keys.start)
        if call.bias is not None:
            bias = call.bias(positions[:, rows], positions[:, keys]).to(query.dtype)
        if key_bias is not None:
            own = key_bias[..., keys]
            bias = add_key_bias(bias, own, in_place=not bias.requires_grad)
        first = rows.start - keys.start
        if call.sequence.causal:
            bias = mask_future(bias, first)
        bias = mask_past(bias, first, call)
        outputs.append(
            attend_masked(query[:, :, rows], key[:, :, keys], value[:, :, keys], bias, call)
        )
    return torch.cat(outputs, 2)


def _chunks(query: Tensor) -> list[slice]:
    """Chunks of the queries [B, H, n, d]."""
    batch, heads, n, _ = query.shape
    rows = ROWS
    if query.device.type != "cpu":
        rows = max(ROWS, GPU_WEIGHTS // max(1, batch * heads * n))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]


def logits(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """q kᵀ · scale of query [B, H, t, d], key [B, G, m, d] → [B, H, t, m] in float32 or wider."""
    keys = key.flatten(0, 1)
    queries = query.reshape(len(keys), -1, query.shape[3])
    if keys.dtype.itemsize == 2:
        scores = widened(batched_product(queries, keys.mT)) * scale
    else:
        scores = torch.baddbmm(queries.new_empty(()), queries, keys.mT, beta=0, alpha=scale)
    return scores.view(*query.shape[:3], key.shape[2])


def batched_product(a: Tensor, b: Tensor) -> Tensor:
    """a [m, q, k] @ b [m, k, n]. On a CPU, torch copies a batch in half precision with gaps between
    its matrices, such as storage with room; these are multiplied one by one."""
    if b.dtype.itemsize > 2 or b.device.type != "cpu" or b.stride(0) == b.shape[1] * b.shape[2]:
        return a @ b
    return torch.stack([x @ y for x, y in zip(a, b, strict=True)])


def attention_received(query: Tensor, key: Tensor, call: AttentionCall, last: int) -> Tensor:
    """The softmax weights of the last queries on each key, summed over these queries: query
    [B, H, n, d], key [B, G, n, d], causal, without padding → [B, H, n] in float32 or wider.
    Computed in blocks of queries, without an n×n tensor."""
    n = query.shape[2]
    weights = CPU_WEIGHTS if query.device.type == "cpu" else WEIGHTS
    rows = max(1, weights // (query.shape[0] * query.shape[1] * n))
    total = widened(query.new_zeros(*query.shape[:2], n))
    for start in range(max(0, n - last), n, rows):
        end = min(start + rows, n)
        first = 0 if call.window is None else max(0, start + 1 - call.window)
        scores = capped(logits(query[:, :, start:end], key[:, :, first:end], call.scale), call)
        scores[..., start - first :] = mask_future(scores[..., start - first :], 0)
        scores = mask_past(scores, start - first, call)
        total[:, :, first:end] += softmax(scores, call).sum(2)
    return total


def per_key_head(x: Tensor, key: Tensor) -> Tensor:
    """Means over the query heads [B, H, …] that share a key head [B, G, …] → [B, G, …]."""
    means: Tensor = x.unflatten(1, (key.shape[1], -1)).mean(2)
    return means
