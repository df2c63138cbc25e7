"""vAttention against loops over heads and draws, and by hand."""

import copy
from dataclasses import replace
from statistics import NormalDist

import pytest
import torch

from methods.vanilla import Vanilla
from methods.vattention import APART, VAttention, sample_size
from tests.methods.decoder import HEADS, KEY_HEADS, SCALE, SIZE, call_of, decoded, inputs
from tests.methods.hand import heads

SMALL = VAttention(12, sinks=2, window=4, base=0.2, epsilon=0.3, delta=0.2)


def test_by_hand():
    """(1.645 · .004 · 1,000 / (.1 · 7))² = 9.399² = 88.3; more than there are, or none, are never
    drawn."""
    total = torch.tensor(7.0)
    for deviation, drawn in ((0.004, 88), (1.0, 1000), (0.0, 1)):
        assert sample_size(1000, torch.tensor(deviation), total, 0.1, 0.05) == drawn


def draws(seed, layer, tokens):
    return torch.Generator().manual_seed((seed * APART + layer) * APART + tokens)


def outputs_of(method, query, key, value, layer=0):
    """The outputs [H, d] of the newest token: query [H, d], key and value [G, n, d]; and which
    values [G, n] are read."""
    n, outputs = key.shape[1], []
    seen = torch.zeros(KEY_HEADS, n, dtype=torch.bool)
    draw, z = draws(method.seed, layer, n), NormalDist().inv_cdf(1 - method.delta)
    exact, others = [], []
    scores = [key[head // 2] @ query[head] * SCALE for head in range(HEADS)]
    for head in range(HEADS):
        forced = {*range(method.sinks), *range(n - method.window, n)}
        ranked = sorted(range(n), key=lambda t: (t not in forced, -float(scores[head][t])))
        exact.append(ranked[: method.budget])
        others.append(sorted(ranked[method.budget :]))
    rest = n - method.budget
    base = torch.rand(max(2, int(method.base * rest)), HEADS, generator=draw, dtype=torch.float64)
    counts = []
    for head in range(HEADS):
        first = scores[head][[others[head][int(u * rest)] for u in base[:, head]]].exp()
        total = scores[head][exact[head]].exp().sum() + rest * first.mean()
        m = (z * first.std() * rest / (method.epsilon * total)) ** 2
        counts.append(min(max(int(m), 1), rest))
    more = torch.rand(max(counts), HEADS, generator=draw, dtype=torch.float64)
    for head, m in enumerate(counts):
        drawn = [others[head][int(u * rest)] for u in more[:m, head]]
        places = [*exact[head], *drawn]
        times = torch.tensor([1.0] * len(exact[head]) + [rest / m] * m, dtype=torch.float64)
        weight = times * scores[head][places].exp()
        outputs.append(weight / weight.sum() @ value[head // 2, places])
        seen[head // 2, places] = True
    return torch.stack(outputs), seen


@pytest.mark.parametrize("method", [SMALL, replace(SMALL, seed=5, budget=8)], ids=str)
def test_equals_its_twin(method):
    n, prompt = 60, 50
    query, key, value = inputs(n)
    cache, outputs = decoded(method, query, key, value, prompt, layer=1)
    read = 0
    for at in range(prompt, n):
        past = (x[0, :, : at + 1] for x in (key, value))
        expected, seen = outputs_of(method, query[0, :, at], *past, layer=1)
        torch.testing.assert_close(outputs[0, :, at], expected)
        read += 8 * SIZE * (KEY_HEADS * (at + 1) + int(seen.sum()))
    assert cache.read_bytes == read


def test_values_that_are_not_counted_are_never_read():
    cache, _ = decoded(SMALL, *inputs(50), 50)
    query, key, value = (x[:, :, -1:] for x in inputs(51, seed=1))
    whole = [
        torch.cat((old, new), 2) for old, new in zip(inputs(50)[1:], (key, value), strict=True)
    ]
    expected, seen = outputs_of(SMALL, query[0, :, 0], *(x[0] for x in whole))
    poisoned = copy.deepcopy(cache)
    poisoned.layers[0].value[0, ~seen[:, :50]] = torch.nan
    assert (~seen).sum(1).min() > 5
    for each in (cache, poisoned):
        output = each.decode(query, key, value, call_of(51))
        torch.testing.assert_close(output[0, :, 0], expected)


def test_equal_entries_take_one_draw():
    """One entry of score 1 and 20 of score 0, value 1 for the first: its weight e / (e + 20)."""
    query, key = heads(*[(1.0,)] * 21), heads(1.0, *[0.0] * 20)
    method = VAttention(2, sinks=1, window=1)
    cache, outputs = decoded(method, query, key, key, 20, scale=1.0)
    e = float(torch.tensor(1.0, dtype=torch.float64).exp())
    assert float(outputs[0, 0, -1, 0]) == pytest.approx(e / (e + 20))
    assert cache.read_bytes == 8 * (21 + 3)


def test_the_denominator_is_as_near_as_epsilon_says():
    """Entries that are read exactly have the value 1: the output is their share of the denominator.
    Over 300 seeds it is right on average, and one in ten may miss by more than ε on each side."""
    n, method = 400, VAttention(20, sinks=4, window=4, base=0.3, epsilon=0.1, delta=0.1)
    query, key, _ = inputs(n)
    query, score = query[:, :1], (key[0, 0] @ query[0, 0, -1]) * 0.1
    inner = score[4:-4].argsort(descending=True)[:12] + 4
    exact = torch.cat((torch.arange(4), inner, torch.arange(n - 4, n)))
    value = torch.zeros_like(key[:, :1])
    value[0, 0, exact] = 1
    true = float(score[exact].exp().sum() / score.exp().sum())
    found = torch.tensor([
        float(decoded(replace(method, seed=seed), query, key[:, :1], value, n - 1, scale=0.1)[1]
              [0, 0, -1, 0])
        for seed in range(300)
    ])  # fmt: skip
    error = true / found - 1
    assert abs(float(error.mean())) < 0.01
    assert (error > 0.1).float().mean() < 0.15 and (error < -0.1).float().mean() < 0.15


def test_the_same_call_draws_the_same():
    qkv = inputs(60)
    first, again, other = (
        decoded(replace(SMALL, seed=seed), *qkv, 50)[1] for seed in (0, 0, 10**12)
    )
    assert torch.equal(first, again) and not torch.allclose(first, other)
    assert not torch.allclose(first, Vanilla().attend(*qkv, call_of(60)))
