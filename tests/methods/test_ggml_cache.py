"""llama.cpp's KV caches against the gguf package, against dense attention, and by hand."""

import pytest
import torch

from methods.ggml_cache import BLOCK, GGMLCache, hadamard, quantised, restored
from methods.parts.kv_cache import BLOCK as ROOM
from methods.vanilla import Vanilla
from tests.methods.decoder import PROMPT, VALID, N, call_of, decoded, inputs, stored, workload

METHODS = [
    GGMLCache(),
    GGMLCache("q4_0", "q4_0"),
    GGMLCache("q8_0", "q4_0", hadamard=True),
    GGMLCache("full", "q4_0"),
]


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_by_hand():
    """Eight numbers are one block. q4_0: -4 is farthest from 0, so the scale is .5, and .8 is 1.6
    steps, rounded to 2. q8_0: 127 steps of .5 reach 63.5, and .8 is 1.6 of them."""
    x = torch.tensor([[[[-4, 0.8, 3.5, 0, 0.2, -0.3, 1, -1]]]], dtype=torch.float64)
    codes, scale = quantised(x, "q4_0")
    assert scale.flatten().tolist() == [0.5] and codes.shape == (1, 1, 1, 1, 4)
    assert codes.flatten().tolist() == [0 | 10 << 4, 15 | 8 << 4, 8 | 7 << 4, 10 | 6 << 4]
    back = [-4, 1, 3.5, 0, 0, -0.5, 1, -1]
    assert restored([codes, scale], x.dtype).flatten().tolist() == back
    x[0, 0, 0, 0] = -63.5
    codes, scale = quantised(x, "q8_0")
    assert scale.flatten().tolist() == [0.5]
    assert codes.flatten().tolist() == [-127, 2, 7, 0, 0, -1, 2, -2]


def test_a_positive_extreme_is_met_exactly_and_zeros_stay_zeros():
    """The sign of q4_0's scale is the opposite of the extreme's: its code is 0, of -8 steps."""
    x = torch.tensor([8, -7, 1, 0]).repeat(8).double().view(1, 1, 1, 32)
    codes, scale = quantised(x, "q4_0")
    assert scale.item() == -1 and torch.equal(restored([codes, scale], x.dtype), x)
    for form in ("q8_0", "q4_0"):
        assert not restored(quantised(x * 0, form), x.dtype).any()


@pytest.mark.parametrize("form", ["q8_0", "q4_0"])
def test_numbers_are_those_of_gguf(form):
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType[form.upper()]
    x = normal(2, 3, 5, 64)
    ours = restored(quantised(x, form), x.dtype)
    theirs = gguf.dequantize(gguf.quantize(x.numpy(), kind), kind)
    assert torch.equal(ours, torch.from_numpy(theirs))


def test_hadamard_is_orthonormal_and_spreads_an_outlier():
    turn = hadamard(64, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(turn @ turn, torch.eye(64, dtype=torch.float64))
    assert turn.unique().tolist() == [-0.125, 0.125] and torch.equal(turn, turn.mT)
    x = normal(1, 1, 100, 64, dtype=torch.float64)
    x[..., 5] *= 30
    plain, turned = x - restored(quantised(x, "q4_0"), x.dtype), x @ turn
    turned = turned - restored(quantised(turned, "q4_0"), x.dtype)
    assert turned.norm() < 0.7 * plain.norm()


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_its_twin(method, window, chunk):
    """Exact attention over keys and values that were quantised and restored, each row as if alone;
    in a wide decoder with two blocks a head."""
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, N, 64, generator=draw, dtype=torch.float64) for heads in (4, 2, 2)
    )
    turn = torch.eye(64, dtype=key.dtype)
    if method.hadamard:
        turn = hadamard(64, key.dtype, key.device)
    _, outputs = decoded(method, query, key, value, PROMPT, chunk, valid=VALID, window=window)
    keys = restored(quantised(key @ turn, method.keys), key.dtype) @ turn
    values = restored(quantised(value, method.values), key.dtype)
    expected = Vanilla().attend(query, keys, values, call_of(N, VALID, window=window))
    exact = Vanilla().attend(query, key, value, call_of(N, VALID, window=window))
    for row, valid in enumerate(VALID):
        new, old = valid.clone(), valid.clone()
        new[:PROMPT], old[PROMPT:] = False, False
        torch.testing.assert_close(outputs[row][:, new], expected[row][:, new])
        torch.testing.assert_close(outputs[row][:, old], exact[row][:, old])
        assert not torch.allclose(outputs[row][:, new], exact[row][:, new])


def test_its_limit_is_exact():
    qkv = inputs(N, 3)
    method = GGMLCache(hadamard=True).exact_limit()
    for features in ({}, {"window": 9, "softcap": 3.0, "sinks": torch.zeros(4).double()}):
        _, outputs = decoded(method, *qkv, PROMPT, valid=VALID, **features)
        expected = Vanilla().attend(*qkv, call_of(N, VALID, **features))
        for row, valid in enumerate(VALID):
            torch.testing.assert_close(outputs[row][:, valid], expected[row][:, valid])
    assert method.reads_all(workload(), 0) and not METHODS[3].reads_all(workload(), 0)


@pytest.mark.parametrize(
    ("keys", "values", "of_a_pair"),
    [("q8_0", "q8_0", 2 * 1.0625), ("q4_0", "q4_0", 2 * 0.5625), ("q8_0", "q4_0", 1.625)],
)
def test_bytes_held_and_read_are_those_of_the_formats(keys, values, of_a_pair):
    n, width, groups = 2 * ROOM, 2 * BLOCK, 2
    qkv = [normal(1, groups, n, width, dtype=torch.bfloat16) for _ in range(3)]
    cache, _ = decoded(GGMLCache(keys, values), *qkv, n)
    assert stored(cache) == groups * n * width * of_a_pair
    cache.decode(*(x[:, :, :1] for x in qkv), call_of(n + 1))
    assert cache.read_bytes == groups * (n + 1) * width * of_a_pair


def test_frees_what_left_a_window():
    cache, _ = decoded(GGMLCache(), *inputs(200), 150, window=16)
    assert cache.layers[0].size <= 16 + ROOM


def test_bfloat16_decodes_in_bfloat16():
    """A rotation rounded to bfloat16 would scale all scores by the same factor."""
    qkv = [normal(1, 2, N, 128, dtype=torch.float64) for _ in range(3)]
    half = [x.bfloat16() for x in qkv]
    method = GGMLCache(hadamard=True)
    _, outputs = decoded(method, *half, PROMPT)
    _, expected = decoded(method, *(x.double() for x in half), PROMPT)
    assert outputs.dtype == torch.bfloat16
    assert (outputs.double() - expected).norm() < 0.02 * expected.norm()
