"""Properties of every evicting method: its limit, rows, heads, budget, and freed storage."""

import math
from dataclasses import replace

import pytest
import torch

from methods.base import Feature
from methods.expected_attention import ExpectedAttention
from methods.h2o import H2O
from methods.kivi import KIVI
from methods.knorm import KNorm
from methods.parts.eviction import Rolling
from methods.parts.kv_cache import BLOCK, FullCache
from methods.pyramidkv import PyramidKV
from methods.rkv import RKV
from methods.snapkv import SnapKV
from methods.streaming_llm import StreamingLLM
from methods.tova import TOVA
from methods.turboquant import TurboQuant
from methods.vanilla import Vanilla
from tests.methods.decoder import call_of, check_rows, decoded, inputs, stored, tokens, workload
from tests.methods.sizes import KEY_HEADS, PROMPT, SIZE, VALID, N

ROLLING = [StreamingLLM(), StreamingLLM(positions="true"), H2O(), TOVA()]
EVICTING = [SnapKV(), PyramidKV(), KNorm(), ExpectedAttention(), RKV()]
EVICT = [*EVICTING, *ROLLING]
QUANTISED = (KIVI, TurboQuant)
ALL = [*EVICT, KIVI(), TurboQuant()]


class Cached(Vanilla):
    """Vanilla with the cache that the model gives it."""

    def kv_cache(self, workload):
        return FullCache()


def named(method):
    return type(method).__name__ + getattr(method, "positions", "")


def exact(query, key, value, valid=None):
    return Vanilla().attend(query, key, value, call_of(query.shape[2], valid))


@pytest.mark.parametrize("method", ALL, ids=named)
def test_the_prompt_is_read_exactly_and_the_rest_is_not(method):
    qkv = inputs(N)
    _, outputs = decoded(method.scaled_down(), *qkv, PROMPT)
    torch.testing.assert_close(outputs[:, :, :PROMPT], exact(*qkv)[:, :, :PROMPT])
    assert (outputs - exact(*qkv))[:, :, PROMPT:].abs().max() > 0.01


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("method", ALL, ids=named)
def test_a_padded_row_is_as_if_alone(method, chunk):
    method = method.scaled_down()
    if not isinstance(method, QUANTISED):  # a share: a short row has its own
        method = replace(method, budget=0.5)
    check_rows(method, chunk, work=workload(PROMPT, 3))


@pytest.mark.parametrize("method", ALL, ids=named)
def test_tokens_at_once_are_as_one_by_one(method):
    qkv = inputs(N)
    method = method.scaled_down()
    cache, outputs = decoded(method, *qkv, PROMPT, chunk=N - PROMPT)
    other, expected = decoded(method, *qkv, PROMPT)
    if isinstance(method, KIVI):  # several tokens at once are all in full precision
        assert len(cache.held()) == len(other.held())
    else:
        torch.testing.assert_close(outputs, expected)
    if not isinstance(method, QUANTISED):
        assert tokens(cache) == tokens(other)


@pytest.mark.parametrize("method", EVICT, ids=named)
def test_caches_that_take_one_prompt_score_it_once_for_all_budgets(method, monkeypatch):
    scored, of = [], type(method).scores
    monkeypatch.setattr(
        type(method), "scores", lambda self, *given: scored.append(self) or of(self, *given)
    )
    parts, call = inputs(PROMPT, 3), call_of(PROMPT, VALID, memo={})
    for budget in (0.3, 12):
        several = replace(method.scaled_down(), budget=budget)
        taken, alone = (several.kv_cache(workload(PROMPT, 3)) for _ in range(2))
        taken.take(*parts, call)
        assert len(scored) == 3, "once a row"
        alone.prefill(*parts, call_of(PROMPT, VALID))
        del scored[3:]
        for one, other in zip(taken.held(), alone.held(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("method", [x for x in EVICT if not isinstance(x, RKV)], ids=named)
def test_it_holds_what_its_budget_says_and_frees_the_rest(method):
    method, qkv = method.scaled_down(), inputs(N, 2)
    budgets = [method.capacity(workload(PROMPT, 2), PROMPT, layer) for layer in (0, 1)]
    cache, _ = decoded(method, *(x[:, :, :PROMPT] for x in qkv), PROMPT, layer=0)
    entry = KEY_HEADS * (2 * 8 * SIZE + 8 + 4 * method.keeps_scores) * 2
    rows = 2 * 2 * 8  # each row's first token and budget
    assert stored(cache) == budgets[0] * entry + rows
    assert {len(head) for row in tokens(cache) for head in row} == {budgets[0]}
    assert budgets[0] == 12 or (isinstance(method, PyramidKV) and sum(budgets) == 24)
    cache, _ = decoded(method, *qkv, PROMPT)
    grown = budgets[0] + (0 if isinstance(method, Rolling) else N - PROMPT)
    assert {len(head) for row in tokens(cache) for head in row} == {grown}
    place = 2 * KEY_HEADS * 8 * (cache.layers[0].place is not None)
    room = grown if isinstance(method, StreamingLLM) else math.ceil((grown + 1) / BLOCK) * BLOCK
    assert stored(cache) == room * entry + rows + place


@pytest.mark.parametrize("method", EVICT, ids=named)
def test_bfloat16_scores_are_computed_in_float32(method):
    qkv = [x.bfloat16() for x in inputs(N)]
    turn = {"rotate": lambda x, by: x}
    half, outputs = decoded(method.scaled_down(), *qkv, PROMPT, **turn)
    single, expected = decoded(method.scaled_down(), *(x.float() for x in qkv), PROMPT, **turn)
    assert outputs.dtype == torch.bfloat16 and tokens(half) == tokens(single)
    torch.testing.assert_close(outputs.float(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", EVICT, ids=named)
def test_a_window_layer_holds_no_more_than_vanillas(method):
    """300 tokens after a prompt of 200, with a window of 128 and a budget of 64."""
    if Feature.WINDOW not in method.honours:
        return
    qkv, window = inputs(500), {"window": 128}
    full, _ = decoded(Cached(), *qkv, 200, **window)
    cache, _ = decoded(replace(method, budget=64), *qkv, 200, **window)
    assert stored(cache) < 1.001 * stored(full)
    if isinstance(method, Rolling):
        assert cache.layers[0].size == 65 and bool((cache.layers[0].token > 499 - 128).all())


FEATURES = {"window": 20, "softcap": 1.5, "sinks": torch.tensor([0.5, -1, 2, 0])}


@pytest.mark.parametrize("method", ALL, ids=named)
def test_entries_that_left_a_window_are_freed(method):
    """A layer with a window never holds more than vanilla's window and its room to grow."""
    if Feature.WINDOW not in method.honours:
        return
    n, window = 4 * BLOCK + N, 20
    qkv = inputs(n)
    expected = Vanilla().attend(*qkv, call_of(n, window=window))
    cache, outputs = decoded(method.exact_limit(), *qkv, PROMPT, window=window)
    torch.testing.assert_close(outputs, expected)
    few, _ = decoded(method.scaled_down(), *qkv, PROMPT, window=window)
    if isinstance(method, KIVI):  # whole groups of quantised tokens
        (entries,) = few.layers[0]
        for held in (entries.values.size, entries.keys.size * entries.group):
            assert held < window + BLOCK + entries.group
    elif isinstance(method, Rolling):
        assert cache.layers[0].size == window + 1 and few.layers[0].size <= 13
        assert (few.layers[0].token > n - 2 - window).all()
    else:
        assert cache.layers[0].size < window + 2 * BLOCK > few.layers[0].size


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("method", ALL, ids=named)
def test_windows_caps_and_sinks_are_honoured(method, feature):
    if Feature[feature.upper()] not in method.honours:
        assert isinstance(method, StreamingLLM) and feature == "window"
        return
    qkv, features = inputs(N), {feature: FEATURES[feature]}
    expected = Vanilla().attend(*qkv, call_of(N, **features))
    for chunk in (1, 3):
        cache, outputs = decoded(method.exact_limit(), *qkv, PROMPT, chunk, **features)
        torch.testing.assert_close(outputs, expected)
    if feature == "window" and not isinstance(method, QUANTISED):
        cache, _ = decoded(
            method.exact_limit(), *(x[:, :, :PROMPT] for x in qkv), PROMPT, window=20
        )
        assert tokens(cache) == [[list(range(PROMPT - 20, PROMPT))] * KEY_HEADS]


@pytest.mark.parametrize("method", ROLLING, ids=named)
def test_in_bfloat16_new_tokens_replace_the_same_entries(method):
    """In half precision, storage is read and written by other operations of torch."""
    qkv = [x.bfloat16() for x in inputs(70)]
    method = replace(method, budget=20)
    cache, outputs = decoded(method, *qkv, 40)
    wide, expected = decoded(method, *(x.double() for x in qkv), 40)
    assert tokens(cache) == tokens(wide)
    assert (outputs.double() - expected).norm() < 0.02 * expected.norm()
