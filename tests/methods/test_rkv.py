"""R-KV against loops over keys and tokens, and by hand."""

import math

import pytest
import torch

from methods.rkv import RKV, redundancy
from methods.vanilla import Vanilla
from tests.methods.decoder import call_of, check_reads, decoded, inputs, stored, tokens, workload
from tests.methods.sizes import HEADS, KEY_HEADS, SCALE, SIZE

KEYS = [(1.0, 0.0), (0.9, 0.1), (0.0, 1.0), (0.8, 0.6)]


def test_by_hand():
    """The cosines are .994 (keys 0, 1), .8 (0, 3), .110 (1, 2), .861 (1, 3), .6 (2, 3). Each of the
    first three keys leaves out that with key 3, and key 3 that with key 2. The means are .448 .491
    .028 0, their softmax .299 .313 .197 .191; importance is .1 .5 .2 .2."""
    similar = redundancy(torch.tensor([[KEYS]], dtype=torch.float64), None, 0.5)[0, 0]
    score = 0.07 * torch.tensor([0.1, 0.5, 0.2, 0.2]) - 0.93 * similar
    assert score.tolist() == pytest.approx([-0.272, -0.256, -0.169, -0.164], abs=5e-4)


def similarities(keys, threshold):
    """The redundancy [m] of keys [m, d]."""
    m, total = len(keys), torch.zeros(len(keys), dtype=torch.float64)
    for i in range(m):
        row = [float(torch.cosine_similarity(keys[i], keys[j], 0)) for j in range(m)]
        latest = max((j for j in range(m) if j != i and row[j] > threshold), default=i)
        for j in range(m):
            if j not in (i, latest):
                total[j] += row[j]
    return (total / m).softmax(0)


def chosen(method, queries, keys, held):
    """Which entries of `held` [m] one KV head keeps: its last queries [g, w, d], keys [n, d]."""
    if len(held) <= method.budget:
        return held
    older, key = held[: -method.window], keys[held]
    weight = torch.stack([
        ((keys[older] @ query.T).amax(1) * SCALE).softmax(0) for query in queries.unbind(1)
    ]).mean(0)  # fmt: skip
    reach = method.kernel_size // 2
    score = [
        method.mix_lambda * max(weight[max(0, i - reach) : i + reach + 1].tolist())
        - (1 - method.mix_lambda) * similar
        for i, similar in enumerate(similarities(key, method.threshold)[: len(older)].tolist())
    ]
    ranked = sorted(range(len(older)), key=lambda i: -score[i])
    best = ranked[: method.budget - method.window]
    return sorted([*(older[i] for i in best), *held[-method.window :]])


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("mix", [0.07, 0.9])
def test_equals_its_twin(mix, chunk):
    n, prompt = 47, 30
    method = RKV(12, buffer=7, window=4, kernel_size=3, mix_lambda=mix)
    query, key, value = inputs(n)
    cache, outputs = decoded(method, query, key, value, prompt, chunk)
    for head in range(KEY_HEADS):
        group = slice(2 * head, 2 * head + 2)
        held = []
        for at in range(n):
            held.append(at)
            check_reads(outputs, query, key, value, at, head, held)
            if at + 1 >= prompt and (at + 1 - prompt) % method.buffer == 0:
                last = query[0, group, at + 1 - method.window : at + 1]
                held = chosen(method, last, key[0, head], held)
        assert tokens(cache)[0][head] == held


def test_of_equal_keys_the_latest_stays():
    """Six tokens of which three are alike: importance being equal, the other keys and the latest of
    the three are kept."""
    key = torch.eye(8, dtype=torch.float64)[[0, 1, 0, 2, 0, 3, 4, 5]][None, None]
    query = torch.zeros_like(key)
    method = RKV(6, window=2, kernel_size=1, buffer=2)
    cache, _ = decoded(method, query, key, key, 8, work=workload(8, key_heads=1))
    assert tokens(cache) == [[[1, 3, 4, 5, 6, 7]]]


def test_exact_until_the_cache_exceeds_its_budget():
    query, key, value = qkv = inputs(60)
    exact = Vanilla().attend(*qkv, call_of(60))
    method = RKV(40, buffer=8)
    _, outputs = decoded(method, query, key, value, 30)
    # Of 30 tokens of the prompt and 16 new ones, 40 entries stay; the next token reads these.
    torch.testing.assert_close(outputs[:, :, :46], exact[:, :, :46])
    assert (outputs - exact)[:, :, 46:].abs().amax((1, 3)).min() > 1e-6


@pytest.mark.parametrize(("new", "held"), [(0, 12), (6, 18), (7, 12), (8, 13), (14, 12)])
def test_the_buffer_comes_on_top_of_the_budget_and_is_freed(new, held):
    """Also held are each row's first token and budget, and the last queries."""
    method = RKV(12, buffer=7, window=4)
    cache, _ = decoded(method, *inputs(50 + new, 2), 50)
    assert {len(head) for row in tokens(cache) for head in row} == {held}
    room = held if held == 12 else math.ceil(held / 64) * 64
    entry = 2 * KEY_HEADS * (2 * 8 * SIZE + 8)
    assert stored(cache) == room * entry + 2 * 2 * 8 + 2 * HEADS * 4 * SIZE * 8


def test_similarities_in_blocks_are_those_at_once(monkeypatch):
    key = inputs(50, 2)[1]
    at_once = redundancy(key, None, 0.2)
    monkeypatch.setattr("methods.rkv.CPU_WEIGHTS", 7 * 4 * 50)
    torch.testing.assert_close(redundancy(key, None, 0.2), at_once)
