"""BLASST against a loop over tiles as in flash attention, and by hand."""

from dataclasses import replace
from math import exp

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import AttentionCall, SequenceInfo
from methods.blasst import BLASST
from tests.methods.hand import heads, read
from tests.methods.native import TOLERANCE, error, native, products
from tests.methods.prefill import check_twin, inputs, turning

CALL = AttentionCall(SequenceInfo(causal=True), 0.4, 0)
SMALL = BLASST(scale=3.0, block_q=4, block_k=8)


def seen_by(method):
    """The pairs [n, n] that one head reads."""

    def seen(query, key, scale):
        n, result = len(key), torch.ones(len(key), len(key), dtype=torch.bool).tril()
        scores = (query @ key.T * scale).masked_fill(~result, -torch.inf)
        for first in range(0, n, method.block_q):
            rows = range(first, min(first + method.block_q, n))
            largest = dict.fromkeys(rows, -torch.inf)
            for start in reversed(range(0, rows[-1] + 1, method.block_k)):
                tile = slice(start, start + method.block_k)
                most = {i: float(scores[i, tile].max()) for i in rows}
                if all(exp(most[i] - largest[i]) < method.scale / n
                       if largest[i] > -torch.inf else False for i in rows):  # fmt: skip
                    result[first : rows[-1] + 1, tile] = False
                else:
                    largest = {i: max(largest[i], most[i]) for i in rows}
        return result

    return seen


@pytest.mark.parametrize("method", [SMALL, replace(SMALL, scale=0.5, block_k=4)], ids=str)
def test_equals_its_twin(method):
    check_twin(method, seen_by(method), lengths=(1, 2, 9, 53, 64))


@pytest.mark.parametrize(("score", "kept"), [(-2.5, True), (-3.5, False)])
def test_by_hand(score, kept):
    """λ = e⁻³ = .050 keeps a tile of weight e^-2.5 = .082 and skips one of e^-3.5 = .030."""
    query, key, value = heads(0.0, 1.0), heads(score, 0.0), heads(1.0, 0.0)
    method = BLASST(scale=2 * exp(-3), block_q=1, block_k=1)
    weight = exp(score) / (1 + exp(score)) if kept else 0
    assert read(method, query, key, value, causal=True)[1] == pytest.approx(weight)
    assert method.tiles == (0 if kept else 1, 3)


@native
@pytest.mark.parametrize("scale", [7.0, 1000.0])
def test_native_kernel_agrees(scale):
    methods = [BLASST(scale=scale, kernel=kernel) for kernel in ("native", "torch")]
    output, expected = (method.attend(*turning(700, 2), CALL) for method in methods)
    torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)
    assert methods[0].tiles == methods[1].tiles and 0.2 < methods[0].skipped < 1
    assert methods[0].tiles[1] == 2 * 4 * sum(1 + i // 2 for i in range(11))


@native
@pytest.mark.parametrize("products", products())
def test_without_a_threshold_no_tile_is_skipped(products):
    query, key, value = inputs(331, 2, dtype=torch.float32)
    output, tiles = kernels.skipping(query, key, value, 0.4, 0.0, products)
    exact = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=True, scale=0.4, enable_gqa=True
    )
    assert error(output, exact) < TOLERANCE[products]
    assert tiles.tolist() == [0, 2 * 4 * (1 + 1 + 2 + 2 + 3 + 3)]


@native
@pytest.mark.parametrize("products", products())
def test_values_of_skipped_tiles_are_never_read(products):
    """The first 128 keys are turned away from all queries but the first 128."""
    make = torch.Generator().manual_seed(0)
    query, key, value = (0.1 * torch.randn(1, 2, 400, 16, generator=make) for _ in range(3))
    query[..., 0], key[:, :, :128, 0], key[:, :, 128:, 0] = 10, -1, 1
    value[:, :, :128] = torch.nan
    output, tiles = kernels.skipping(query, key, value, 1.0, 1e-3, products)
    assert tiles.tolist() == [2 * 5, 2 * (1 + 1 + 2 + 2 + 3 + 3 + 4)]
    later = (x[:, :, 128:].double() for x in (query, key, value))
    exact = scaled_dot_product_attention(*later, is_causal=True, scale=1.0)
    assert error(output[:, :, 128:], exact) < TOLERANCE[products]


@native
def test_threads_skip_the_same_tiles():
    parts, threads, found = turning(600), torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(kernels.skipping(*parts, 0.4, 0.5))
    torch.set_num_threads(threads)
    (output, tiles), (other, again) = found
    assert torch.equal(output, other) and torch.equal(tiles, again) and tiles[0]


@native
def test_other_tiles_and_short_prompts_say_which_kernel_ran():
    for method, n, used in (
        (BLASST(block_k=64), 200, "torch (tiles of 64 by 64)"),
        (BLASST(kernel="native"), 128, kernels.name()),
        (BLASST(kernel="torch"), 200, "torch"),
    ):
        method.attend(*inputs(n, dtype=torch.float32), CALL)
        assert method.kernel_used == used
        assert hasattr(method, "tiles") == (n > 128)
