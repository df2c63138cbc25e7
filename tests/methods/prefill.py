"""Shared parts of the tests of sparse prefill: each method against dense attention under its
mask."""

import dataclasses

import torch
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import AttentionCall, SequenceInfo
from tests.methods.hand import padded

SCALE = 0.4


def inputs(n, batch=1, heads=4, groups=2, d=16, dtype=torch.float64):
    """Query [B, H, n, d], key and value [B, H / groups, n, d], which drift: blocks differ."""
    make = torch.Generator().manual_seed(n)
    counts = (heads, heads // groups, heads // groups)
    query, key, value = (
        torch.randn(batch, count, n, d, generator=make, dtype=torch.float64) for count in counts
    )
    for x in (query, key):
        x += torch.randn(batch, x.shape[1], n, d, generator=make, dtype=x.dtype).cumsum(2) / 8
    return [x.to(dtype) for x in (query, key, value)]


def turning(n, batch=1, dtype=torch.float32):
    """Inputs whose scores fall with the distance of query and key."""
    query, key, value = inputs(n, batch, dtype=torch.float64)
    angle = torch.arange(n, dtype=torch.float64) / 150
    for x in (query, key):
        x *= 0.2
        x[..., 0], x[..., 1] = 4 * angle.cos(), 4 * angle.sin()
    return [x.to(dtype) for x in (query, key, value)]


def by_token(blocks, n):
    """[n, n]: the pairs up to the diagonal in these blocks of 8 tokens."""
    return blocks.repeat_interleave(8, 0).repeat_interleave(8, 1)[:n, :n].tril()


def twin(seen, query, key, value, forced=True):
    """Dense attention of one row, [H, n, d], to the pairs `seen(query, key, scale)` [n, n] of each
    head; with `forced`, each token reads itself."""
    groups, rows = len(query) // len(key), []
    for head, one in enumerate(query):
        k, v = key[head // groups], value[head // groups]
        mask = seen(one, k, SCALE)
        assert (mask.diagonal().all() or not forced) and not mask.triu(1).any()
        rows.append(scaled_dot_product_attention(one, k, v, attn_mask=mask, scale=SCALE))
    return torch.stack(rows)


def check_twin(method, seen, lengths=(1, 2, 53, 64, 131), forced=True):
    """Checks the method in torch, for a batch with padding, in float64."""
    method = dataclasses.replace(method, kernel="torch")
    for n in lengths:
        parts, valid = inputs(n, 3), padded(n)
        call = AttentionCall(SequenceInfo(valid=valid, causal=True), SCALE, 0)
        output = method.attend(*parts, call)
        for row, kept in enumerate(valid):
            if kept.any():
                expected = twin(seen, *(x[row][:, kept] for x in parts), forced)
                torch.testing.assert_close(output[row][:, kept], expected)
            assert output[row][:, ~kept].eq(0).all()


def check_kernels(method, n=331):
    """Checks that the native kernel's numbers equal torch's, and that some keys are left out."""
    parts = inputs(n, 2, dtype=torch.float32)
    call = AttentionCall(SequenceInfo(causal=True), SCALE, 0)
    native = dataclasses.replace(method, kernel="native")
    output, plain = (
        m.attend(*parts, call) for m in (native, dataclasses.replace(method, kernel="torch"))
    )
    assert native.kernel_used == kernels.name()
    torch.testing.assert_close(output, plain, rtol=1e-4, atol=1e-5)
    exact = scaled_dot_product_attention(*parts, is_causal=True, scale=SCALE, enable_gqa=True)
    assert not torch.allclose(output, exact, rtol=1e-2, atol=1e-2)
