"""SparQ against loops over entries and heads, and by hand."""

import math

import pytest
import torch

from methods.sparq import SparQ
from tests.methods.decoder import SCALE, decoded, inputs, weights
from tests.methods.hand import heads


def step(method, query, key, value):
    """The outputs [g, d] of the newest token's heads [g, d] that share keys and values [n, d]."""
    n = len(key)
    channels = query.abs().sum(0).argsort(descending=True)[: method.r]
    shares = query.abs()[:, channels].sum(1) / query.abs().sum(1)
    scores = query[:, channels] @ key[:, channels].T * SCALE / shares.sqrt()[:, None]
    newest = max(1, round(method.local * method.budget))
    ranked = sorted(range(n), key=lambda t: (t < n - newest, -float(scores[:, t].sum())))
    read, rest, outputs = ranked[: method.budget], value.mean(0), []
    for head, one in enumerate(query):
        share = scores[head].softmax(0)[read].sum()
        outputs.append(share * (weights(one, key, read) @ value[read]) + (1 - share) * rest)
    return torch.stack(outputs)


@pytest.mark.parametrize("method", [SparQ(8, r=2), SparQ(12, r=5, local=0)], ids=str)
def test_equals_its_twin(method):
    n, prompt = 47, 30
    query, key, value = inputs(n)
    _, outputs = decoded(method, query, key, value, prompt)
    for at in range(prompt, n):
        for head in range(2):
            one = slice(2 * head, 2 * head + 2)
            past = (x[0, head, : at + 1] for x in (key, value))
            torch.testing.assert_close(outputs[0, one, at], step(method, query[0, one, at], *past))


def test_by_hand():
    """Channels 0 and 3 hold 5 of 6.5: the key (1, 2, 0, -1) is estimated at 1 / 1.754 = .570, where
    its score is -.5. It is read in addition to the newest key; the key between them counts by the
    mean value."""
    query = heads(*[(3.0, -1.0, 0.5, 2.0)] * 3)
    key = heads((1.0, 2.0, 0, -1.0), (0.0,) * 4, (0.0,) * 4)
    value = heads((1.0,) * 4, (0.0,) * 4, (0.0,) * 4)
    _, outputs = decoded(SparQ(2, r=2, local=0.5), query, key, value, 2, scale=0.5)
    estimate = 1 / math.sqrt(4 * 5 / 6.5)
    share = (math.exp(estimate) + 1) / (math.exp(estimate) + 2)
    expected = share * math.exp(-0.5) / (math.exp(-0.5) + 1) + (1 - share) / 3
    assert estimate == pytest.approx(0.570, abs=1e-3)
    assert float(outputs[0, 0, -1, 0]) == pytest.approx(expected)
