"""H2O against loops over tokens and heads, and by hand."""

import pytest
import torch

from methods.h2o import H2O
from tests.methods.decoder import decoded, inputs, one_hot, tokens, weights, workload


def test_by_hand():
    """Sums 2.8 .9 1.0 .2 .1 of five tokens: with 2 heavy and 2 recent, token 1 goes."""
    rows = [1], [0.6, 0.4], [0.5, 0.1, 0.4], [0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.4, 0.1, 0.1]
    query, key = one_hot(*rows)
    cache, _ = decoded(H2O(4), query, key, key, 5, work=workload(5), scale=1.0)
    assert tokens(cache) == [[[0, 2, 3, 4]]]
    assert cache.layers[0].score[0, 0].tolist() == pytest.approx([2.8, 1.0, 0.2, 0.1])
    cache, _ = decoded(H2O(4), query, key, key, 4, scale=1.0)  # the same, the last by a step
    assert tokens(cache) == [[[0, 2, 3, 4]]]


def test_a_step_reads_its_scores_too():
    """It reads 9 entries in 2 heads: keys and values of 8 numbers in float64, and a score in
    float32."""
    cache, _ = decoded(H2O(8), *inputs(31), 30)
    assert cache.read_bytes == 2 * 9 * (2 * 8 * 8 + 4)


def test_equals_its_twin():
    n, prompt, budget, recent = 40, 30, 8, 4
    query, key, value = inputs(n)
    cache, outputs = decoded(H2O(budget), query, key, value, prompt)
    for head in range(2):
        kept, sums = list(range(prompt)), torch.zeros(n, dtype=torch.float64)
        for at in range(n):
            if at >= prompt:
                kept.append(at)
            seen = [i for i in kept if i <= at]
            for one in (2 * head, 2 * head + 1):
                weight = weights(query[0, one, at], key[0, head], seen)
                sums[seen] += weight / 2
                torch.testing.assert_close(outputs[0, one, at], weight @ value[0, head, seen])
            if at >= prompt - 1:
                while len(kept) > budget:
                    kept.remove(min((i for i in kept if i <= at - recent), key=lambda i: sums[i]))
        assert tokens(cache)[0][head] == kept
