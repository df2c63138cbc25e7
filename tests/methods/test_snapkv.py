"""SnapKV against loops over tokens and heads, and by hand."""

import pytest
import torch

from methods.pyramidkv import PyramidKV
from methods.snapkv import SnapKV
from tests.methods.decoder import check_reads, decoded, inputs, one_hot, tokens, weights

SUMS = [0.10, 0.40, 0.10, 0.02, 0.00, 0.60, 0.01, 0.20]
"""What two queries give eight keys before them."""


@pytest.mark.parametrize(("kernel", "kept"), [(3, [4, 5, 6]), (1, [1, 5, 7])])
def test_by_hand(kernel, kept):
    """Pooled .167 .200 .173 .040 .207 .203 .270 .070; without, a key without weight goes."""
    half = [x / 2 for x in SUMS]
    query, key = one_hot(*[[1]] * 8, [*half, 0.285], [*half, 0.2, 0.085])
    cache, _ = decoded(SnapKV(5, 2, kernel, "avg"), query, key, key, 10, scale=1.0)
    assert tokens(cache) == [[[*kept, 8, 9]]]


def test_heads_that_share_keys_are_averaged_and_then_pooled():
    """Means .25 0 .25 .3 0, of which three neighbours have at most .25 .25 .3 .3 .3. Each head by
    itself would have .5 .5 .3 .3 .3 and 0 .5 .5 .5 .3, and both together most at 1, 2 and 3."""
    first, key = one_hot(*[[1]] * 5, [0.5, 0, 0, 0.3, 0, 0.2])
    second, _ = one_hot(*[[1]] * 5, [0, 0, 0.5, 0.3, 0, 0.2])
    query = torch.cat((first, second), 1)
    cache, _ = decoded(SnapKV(4, 1, 3, "max"), query, key, key, 6, scale=1.0)
    assert tokens(cache) == [[[2, 3, 4, 5]]]


def test_the_defaults_are_those_of_the_official_runs():
    for method in (SnapKV(), PyramidKV()):
        assert (method.kernel_size, method.pooling) == (7, "max")


@pytest.mark.parametrize("pooling", ["avg", "max"])
def test_equals_its_twin(pooling):
    n, prompt, budget, window, kernel = 34, 30, 12, 4, 5
    query, key, value = inputs(n)
    method = SnapKV(budget, window, kernel, pooling)
    cache, outputs = decoded(method, query, key, value, prompt)
    prefix = prompt - window
    for head in range(2):
        scores, total = (torch.zeros(prefix, dtype=torch.float64) for _ in range(2))
        for one in (2 * head, 2 * head + 1):
            for at in range(prefix, prompt):
                total += weights(query[0, one, at], key[0, head], range(at + 1))[:prefix] / 2
        for i in range(prefix):
            near = total[max(0, i - kernel // 2) : i + kernel // 2 + 1]
            scores[i] = near.sum() / kernel if pooling == "avg" else near.max()
        kept = tokens(cache)[0][head]
        best = scores[kept[: budget - window]].sort(descending=True).values
        torch.testing.assert_close(best, scores.topk(budget - window).values)  # a maximum has ties
        assert kept[budget - window :] == list(range(prefix, n))
        check_reads(outputs, query, key, value, n - 1, head, kept)
