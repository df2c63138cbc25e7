"""Expected attention against a mean over future positions, and by hand."""

import math

import pytest
import torch

from methods.expected_attention import ExpectedAttention
from tests.methods.decoder import SCALE, call_of, decoded, inputs, rotate, tokens


def test_by_hand():
    """μ = (1, 0), Σ = diag(.5, 0), d = 2: key (2, 1) has 1.414 + .5 before the softmax."""
    apart = math.sqrt(0.5)
    query = torch.tensor([[1 + apart, 0], [1 - apart, 0]], dtype=torch.float64)[None, None]
    key = torch.tensor([[2.0, 1], [0, 0]], dtype=torch.float64)[None, None]
    value = torch.tensor([[1.0, 0], [0, 1]], dtype=torch.float64)[None, None]
    call = call_of(2, scale=2**-0.5, rotate=lambda x, by: x)
    scores = ExpectedAttention(sinks=0).scores(query, key, value, call)[0, 0]
    assert (scores[0] / scores[1]).log().item() == pytest.approx(1.914, abs=1e-3)
    longer = ExpectedAttention(sinks=0, epsilon=0.5).scores(query, key, 3 * value, call)[0, 0]
    torch.testing.assert_close(longer, 3 * (scores + 0.5))


@pytest.mark.parametrize("epsilon", [0.0, 0.01])
def test_equals_its_twin(epsilon):
    n, sinks, future = 40, 4, 100
    query, key, value = inputs(n)
    true = torch.arange(n)[None]
    rotated, keys = rotate(query, true), rotate(key, true)
    method = ExpectedAttention(0.5, future, sinks, epsilon)
    cache, _ = decoded(method, rotated, keys, value, n)
    mean_turn = sum(
        rotate(torch.eye(8, dtype=torch.float64)[None, None], torch.full((1, 8), n + i))[0, 0]
        for i in range(future)
    )
    mean_turn = mean_turn / future
    for head in range(2):
        weights = []
        for one in (2 * head, 2 * head + 1):
            plain = query[0, one, sinks:]
            mean, spread = plain.mean(0) @ mean_turn, mean_turn.T @ plain.T.cov(correction=0)
            spread = spread @ mean_turn
            k = keys[0, head, sinks:]
            logit = k @ mean * SCALE + torch.stack([x @ spread @ x for x in k]) * SCALE**2 / 2
            weights.append(logit.softmax(0))
        scores = (torch.stack(weights).mean(0) + epsilon) * value[0, head, sinks:].norm(dim=-1)
        best = scores.topk(n // 2 - sinks).indices + sinks
        assert tokens(cache)[0][head] == sorted([0, 1, 2, 3, *best.tolist()])
