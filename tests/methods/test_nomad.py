"""NoMAD against loops over keys, by hand, and its kernel against torch."""

from dataclasses import replace

import pytest
import torch

from methods import kernels
from methods.nomad import CENTROIDS, NoMAD, learned, nearest
from tests.methods.decoder import KEY_HEADS, SCALE, call_of, decoded, inputs, stored, workload
from tests.methods.native import native


def prompt_of(*keys):
    """Query, key and value [1, 1, n, 1] of keys with one channel; values are their numbers."""
    key = torch.tensor(keys, dtype=torch.float64)[None, None, :, None]
    return torch.ones_like(key), key, torch.arange(len(keys), dtype=key.dtype)[None, None, :, None]


def test_by_hand():
    """Sixteen keys 0 … 15 are their own centroids, and a query of 1 has the products 0 … 15: in
    steps of 15/255 the numbers 0, 17, 34, … 255, without rounding. 0.3 has the code of 0."""
    query, key, value = prompt_of(*range(16))
    cache = NoMAD().kv_cache(workload(16, key_heads=1))
    cache.take(query, key, value, call_of(16))
    entries = cache.layers[0]
    assert entries.centroids.flatten().tolist() == [*range(16)]
    assert entries.codes.parts()[0].flatten().tolist() == [*range(16)]
    output = cache.decode(query[:, :, :1], key[:, :, :1] + 0.3, 16 + value[:, :, :1], call_of(17))
    assert entries.codes.parts()[0].flatten().tolist() == [*range(16)]  # 0 in the high half
    entries_of = torch.tensor([*range(16), 0]).double()
    expected = (entries_of * SCALE).softmax(0) @ torch.arange(17).double()
    assert output.item() == pytest.approx(expected.item())


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_equals_its_twin(channels):
    n, prompt = 70, 45
    query, key, value = inputs(n)
    cache, outputs = decoded(NoMAD(channels), query, key, value, prompt)
    centroids = cache.layers[0].centroids
    for at in range(prompt, n):
        for head in range(4):
            own, scores = centroids[0, head // 2], torch.zeros(at + 1)
            products = torch.stack([
                SCALE * own[s] @ query[0, head, at, s * channels : (s + 1) * channels]
                for s in range(8 // channels)
            ])  # fmt: skip
            step = (products.amax(1) - products.amin(1)).max() / 255
            for token in range(at + 1):
                for s in range(8 // channels):
                    part = key[0, head // 2, token, s * channels : (s + 1) * channels]
                    code = (own[s] - part).square().sum(1).argmin()
                    least = products[s].min()
                    scores[token] += least + step * ((products[s, code] - least) / step).round()
            expected = scores.double().softmax(0) @ value[0, head // 2, : at + 1]
            torch.testing.assert_close(outputs[0, head, at], expected, atol=1e-5, rtol=1e-5)


def test_few_distinct_keys_are_read_almost_exactly():
    query, key, value = inputs(60)
    key = key[:, :, :CENTROIDS].repeat(1, 1, 4, 1)[:, :, :60]
    _, outputs = decoded(NoMAD(), query, key, value, 48)
    weights = query.unflatten(1, (KEY_HEADS, -1)) @ key[:, :, None].mT * SCALE
    weights = weights.masked_fill(torch.ones(60, 60).triu(1).bool(), -torch.inf).softmax(-1)
    exact = (weights @ value[:, :, None]).flatten(1, 2)
    torch.testing.assert_close(outputs[:, :, 48:], exact[:, :, 48:], atol=0.1, rtol=0)


def test_more_centroids_a_channel_are_nearer():
    draw = torch.Generator().manual_seed(0)
    key = torch.randn(1, 2, 500, 16, generator=draw)
    errors = []
    for channels in (1, 2, 4):
        points = key.unflatten(3, (-1, channels)).transpose(2, 3)
        centroids = learned(key, channels)
        near = centroids.gather(3, nearest(points, centroids)[..., None].expand_as(points))
        errors.append(float((near - points).square().mean()))
    assert errors[0] < 0.015 and errors[0] < errors[1] < errors[2], "Lloyd-Max: .0095"


def test_a_key_takes_four_bits_for_each_group_of_channels():
    draw = torch.Generator().manual_seed(0)
    qkv = [torch.randn(1, 2, 640, 64, generator=draw) for _ in range(3)]
    for channels in (1, 4):
        cache, _ = decoded(NoMAD(channels), *qkv, 640, work=workload(640))
        room = stored(cache) - 2 * 640 * 64 * 4 - 2 * 640 * 64 // channels // 2 - 2 * 16 * 64 * 4
        assert 0 <= room <= 2 * 64 * 64 * 4 + 2 * 2 * 32 * 64
        before, codes = cache.read_bytes, 672 * 64 // channels // 2
        cache.decode(*(x[:, :, :1] for x in qkv), call_of(641))
        assert cache.read_bytes - before == 2 * (641 * 64 * 4 + codes + 16 * 64 * 4)


@native
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(
    ("n", "size", "heads", "dtype"),
    [
        (33, 16, 2, torch.float32),
        (200, 64, 6, torch.float32),
        (2100, 48, 4, torch.float32),
        (1100, 64, 6, torch.bfloat16),
    ],
)
def test_the_kernel_equals_torch(channels, n, size, heads, dtype):
    draw = torch.Generator().manual_seed(n)
    query, key, value = (
        torch.randn(2, h, n, size, generator=draw).to(dtype) for h in (heads, 2, 2)
    )
    found = []
    for kernel in ("native", "torch"):
        method = NoMAD(channels, kernel)
        work = replace(workload(n, 2), head_size=size, heads=heads)
        cache = method.kv_cache(work)
        prompt = n - 3
        cache.take(*(x[:, :, :prompt] for x in (query, key, value)), call_of(prompt))
        steps = [
            cache.decode(*(x[:, :, at : at + 1] for x in (query, key, value)), call_of(at + 1))
            for at in range(prompt, n)
        ]
        found.append(torch.cat(steps, 2))
        assert method.kernel_used == (kernels.name("int8") if kernel == "native" else "torch")
    # A product near the middle of two steps may be rounded to either.
    rounding = 5e-3 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(*found, atol=rounding, rtol=0)
