"""Ada-KV and CriticalKV against loops over entries and heads, and by hand."""

from types import SimpleNamespace

import pytest
import torch

from methods.adakv import AdaKV, best
from methods.base import ModuleCall, SequenceInfo, Unsupported
from methods.expected_attention import ExpectedAttention
from methods.h2o import H2O
from methods.knorm import KNorm
from methods.snapkv import SnapKV
from methods.xattention import XAttention
from tests.methods.decoder import (
    call_of,
    check_reads,
    chosen,
    decoded,
    inputs,
    one_hot,
    tokens,
    workload,
)
from tests.models.decoders import tiny


def scores_of(*heads):
    return torch.tensor([heads], dtype=torch.float64)


def test_counts_by_hand():
    """B = 4: the heads have 6 and 2 of the best 8 scores, and keep 6 / 2 + 2 and 2 / 2 + 2. B = 2:
    3 and 1 give 2.5 and 1.5, which both round to 2."""
    scores = scores_of([9, 8, 7, 6, 5, 4, 0, 0], [1, 9, 0, 8, 1, 0, 1, 1])
    assert AdaKV().counts(scores, 4).tolist() == [[5, 3]]
    assert AdaKV(alpha=0.0).counts(scores, 4).tolist() == [[6, 2]]
    assert AdaKV(alpha=1.0).counts(scores, 4).tolist() == [[4, 4]]
    scores = scores_of([9, 8, 7, 1], [1, 6, 0, 0])
    assert AdaKV().counts(scores, 2).tolist() == [[2, 2]]
    assert AdaKV(alpha=0.2).counts(scores, 3).tolist() == [[3, 2]]  # 4 · .8 + 0 and 2 · .8 + 0


def test_normalized_counts_by_hand():
    """Two of eight equal scores are a quarter of a head's sum, too low to outrank the other
    head."""
    scores = scores_of([0.4] * 4, [0.9, 0.3, 0.0, 0.0])
    assert AdaKV(alpha=0.0).counts(scores, 2).tolist() == [[3, 1]]
    assert AdaKV(alpha=0.0, normalize=True).counts(scores, 2).tolist() == [[2, 2]]


def test_by_hand():
    """Two queries give weight to eight keys before them, in one head to only two of these."""
    wide, narrow = [0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.0, 0.0], [0, 0.4, 0, 0, 0, 0.35, 0, 0]
    pairs = [one_hot(*[[1]] * 8, [*x, 0.25], [*x, 0.15, 0.1]) for x in (wide, narrow)]
    query, key = (torch.cat(pair, 1) for pair in zip(*pairs, strict=True))
    cache, _ = decoded(AdaKV(6, 2, 1), query, key, key, 10, scale=1.0)
    assert chosen(cache, key) == [[[1, 2, 3, 4, 5, 8, 9], [*chosen(cache, key)[0][1]]]]
    second = chosen(cache, key)[0][1]
    assert {1, 5} < {*second} and len(second) == 5  # 2 / 2 + 2, and the window


@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("critical", [False, True])
def test_equals_its_twin(alpha, critical):
    n, prompt, budget, window, kernel = 34, 30, 12, 4, 5
    query, key, value = inputs(n)
    projection = torch.randn(
        32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    attention = SimpleNamespace(o_proj=SimpleNamespace(weight=projection))
    method = AdaKV(budget, window, kernel, "max", alpha, critical=critical)
    module = ModuleCall(None, attention, torch.empty(0), {})
    cache, outputs = decoded(method, query, key, value, prompt, module=module)
    before, mean = prompt - window, budget - window
    read = [x[:, :, :prompt] for x in (query, key, value)]
    scores = method.scores(*read, call_of(prompt))[0, :, :before]  # twin: in the tests of SnapKV
    effects = torch.zeros_like(scores)
    for one in range(4):
        for i in range(before):
            added = projection[:, 8 * one : 8 * one + 8] @ value[0, one // 2, i]
            effects[one // 2, i] += added.abs().sum() / 2
    ranked = sorted((-float(scores[h, i]), h, i) for h in range(2) for i in range(before))
    counts = [sum(h == head for _, h, _ in ranked[: 2 * mean]) for head in range(2)]
    for head, held in enumerate(chosen(cache, key)[0]):
        count = round(counts[head] * (1 - alpha) + int(alpha * mean))
        assert held[count:] == list(range(before, n))
        own = scores[head].clone()
        if critical:
            first = scores[head].topk(count // 2).indices
            own = (own / window + 1e-4) * effects[head]
            own[first] += 1e6
        found = own[held[:count]].sort(descending=True).values
        torch.testing.assert_close(found, own.topk(count).values)  # a maximum has ties
        check_reads(outputs, query, key, value, n - 1, head, held)


def test_the_epsilon_of_critical_is_added_to_a_mean_over_the_window():
    """Two tokens with mean weights 0 and 0.0003, and values of lengths 10 and 1: (0 + ε) · 10 is
    more than (0.0003 + ε) · 1, but less than (4 · 0.0003 + ε) · 1."""
    own = [[0, 0, *(float(i == j) for j in range(4))] for i in range(4)]
    query, key = one_hot([1], [0, 1], *([0, 3e-4, *row[2:]] for row in own))
    value = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    value[0, 0, :2, 0] = torch.tensor([10.0, 1.0])
    attention = SimpleNamespace(o_proj=SimpleNamespace(weight=torch.eye(6, dtype=torch.float64)))
    call = call_of(6, scale=1.0, module=ModuleCall(None, attention, torch.empty(0), {}))
    snapkv = SnapKV(1.0, 4, 1)
    for critical, scorer, kept in ((False, None, 1), (True, None, 0), (True, snapkv, 0)):
        method = AdaKV(5, 4, 1, "max", 0.0, critical=critical, scorer=scorer)
        choice = method.choice(0, (query, key, value), call, workload(6, layers=1))
        assert choice.kept[0, 0].nonzero()[:, 0].tolist() == [kept, 2, 3, 4, 5]


def test_with_all_of_the_budget_guaranteed_it_is_snapkv():
    qkv = inputs(40, 2)
    cache, outputs = decoded(AdaKV(12, 4, 5, "avg", alpha=1.0), *qkv, 36)
    other, expected = decoded(SnapKV(12, 4, 5, "avg"), *qkv, 36)
    assert chosen(cache, qkv[1]) == tokens(other)
    torch.testing.assert_close(outputs, expected)
    assert [run.heads for run in cache.layers[0].runs] == [4]


@pytest.mark.parametrize(
    ("own", "always"),
    [(H2O(12), range(34, 40)), (KNorm(12), ()), (ExpectedAttention(12, 64), range(4))],
    ids=lambda x: type(x).__name__,
)
def test_with_the_scores_of_another_eviction(own, always):
    """With all of the budget guaranteed each head keeps what that method keeps; without, heads
    differ, and the entries that it protects stay."""
    qkv = inputs(40, 2)
    cache, _ = decoded(AdaKV(12, alpha=1.0, scorer=own), *qkv, 40)
    other, _ = decoded(own, *qkv, 40)
    assert chosen(cache, qkv[1]) == tokens(other)
    cache, _ = decoded(AdaKV(12, alpha=0.0, scorer=own), *qkv, 40)
    held = chosen(cache, qkv[1])
    assert any(len(head) != 12 for row in held for head in row)
    assert all({*always} <= {*head} for row in held for head in row)


def test_a_scorer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="XAttention gives entries no scores"):
        AdaKV(scorer=XAttention())
    with pytest.raises(Unsupported, match="are negative"):
        decoded(AdaKV(12, critical=True, scorer=KNorm()), *inputs(40, 2), 40)


def test_a_layer_keeps_about_its_budget():
    """Rounding moves a head's count by half an entry at most."""
    for seed in range(5):
        qkv = inputs(120, 2, seed)
        cache, _ = decoded(AdaKV(0.25, 8), *qkv, 120)
        for row in chosen(cache, qkv[1]):
            assert abs(sum(map(len, row)) - 2 * 30) <= 1
            assert min(map(len, row)) >= 8 + 11  # the window, and half of the rest


def test_the_best_of_each_head():
    scores = scores_of([1, 5, 3, 4], [9, 7, 8, 6])
    assert best(scores, torch.tensor([[1, 3]])).nonzero()[:, 1:].tolist() == [
        [0, 1], [1, 0], [1, 1], [1, 2],
    ]  # fmt: skip


@torch.no_grad()
def test_critical_reads_the_output_projection_of_a_model():
    ids = torch.arange(3, 63)[None]
    kept = {}
    for critical in (False, True):
        family = tiny("qwen3", AdaKV(20, 4, critical=critical))
        decoding = family.prefill(ids, SequenceInfo())
        decoding.step(ids[:, :1])
        kept[critical] = [run.parts[0].clone() for run in decoding.cache.layers[1].runs]
        together = family.prefill_each(ids, SequenceInfo(), [AdaKV(20, 4), family.method])
        assert [row.error for row in together] == [None, None]
    assert any(not torch.equal(*pair) for pair in zip(*kept.values(), strict=True))
    family = tiny("gpt_neox", AdaKV(20, 4, critical=True))
    with pytest.raises(Unsupported, match="o_proj"):
        family.prefill(ids, SequenceInfo())
