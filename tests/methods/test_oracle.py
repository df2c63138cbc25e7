"""Oracles of decoding against loops over queries and heads, and by hand."""

import pytest
import torch

from methods.oracle import OracleTopK, OracleTopP
from methods.parts.kv_cache import BLOCK
from methods.vanilla import Vanilla
from tests.methods.decoder import call_of, check_rows, decoded, inputs, one_hot, stored, workload
from tests.methods.sizes import PROMPT, SCALE, SIZE, VALID, N

METHODS = [OracleTopK(budget=5), OracleTopK(budget=0.2), OracleTopP(p=0.6)]


def chosen(method, scores, prompt):
    """The entries that a query with these scores [m] reads."""
    weights, ranked = scores.softmax(0), scores.argsort(descending=True).tolist()
    if isinstance(method, OracleTopK):
        share = method.budget <= 1
        return ranked[: round(method.budget * prompt) if share else method.budget]
    kept = []
    for entry in ranked:
        if weights[kept].sum() < method.p:
            kept.append(entry)
    return kept


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_its_twin(method, window):
    query, key, value = inputs(N)
    _, outputs = decoded(method, query, key, value, PROMPT, window=window)
    for at in range(PROMPT, N):
        first = 0 if window is None else at + 1 - window
        for head in range(4):
            keys, values = (x[0, head // 2, first : at + 1] for x in (key, value))
            scores = keys @ query[0, head, at] * SCALE
            read = chosen(method, scores, PROMPT)
            expected = scores[read].softmax(0) @ values[read]
            torch.testing.assert_close(outputs[0, head, at], expected)


def test_by_hand():
    """Weights .15 .4 .05 .3 .1: two entries hold .7, and the share .75 needs a third, of .15."""
    query, key = one_hot([1.0], [0.5, 0.5], [1.0], [1.0], [0.15, 0.4, 0.05, 0.3, 0.1])
    value = torch.tensor([8.0, 1, 2, 4, 16]).double()[None, None, :, None].expand(1, 1, 5, 5)
    for method, expected in (
        (OracleTopK(budget=2), (0.4 * 1 + 0.3 * 4) / 0.7),
        (OracleTopP(p=0.69), (0.4 * 1 + 0.3 * 4) / 0.7),
        (OracleTopP(p=0.75), (0.4 * 1 + 0.3 * 4 + 0.15 * 8) / 0.85),
    ):
        _, outputs = decoded(method, query, key, value.contiguous(), 4, scale=1.0)
        assert float(outputs[0, 0, 4, 0]) == pytest.approx(expected)


@pytest.mark.parametrize("method", [OracleTopK(budget=N), OracleTopP(p=1.0)], ids=str)
@pytest.mark.parametrize("features", [{}, {"window": 9, "softcap": 3.0}], ids=str)
def test_its_limit_is_exact(method, features):
    qkv = inputs(N, 3)
    sinks = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    _, outputs = decoded(method, *qkv, PROMPT, chunk=4, valid=VALID, sinks=sinks, **features)
    expected = Vanilla().attend(*qkv, call_of(N, VALID, sinks=sinks, **features))
    for row, valid in enumerate(VALID):
        torch.testing.assert_close(outputs[row][:, valid], expected[row][:, valid])


@pytest.mark.parametrize("chunk", [1, 4, 10])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_padded_row_is_as_if_alone(method, chunk, monkeypatch):
    monkeypatch.setattr("methods.oracle.ROWS", 3)
    check_rows(method, chunk, own_chunk=1)


def test_holds_and_reads_everything():
    for method in METHODS:
        cache, _ = decoded(method, *inputs(BLOCK), BLOCK)
        assert stored(cache) == 2 * BLOCK * (2 * SIZE + 1) * 8
        cache.decode(*(x[:, :, :1] for x in inputs(BLOCK)), call_of(BLOCK + 1))
        assert cache.read_bytes == 2 * (BLOCK + 1) * 2 * SIZE * 8


def test_frees_what_left_a_window():
    cache, _ = decoded(METHODS[0], *inputs(200), 150, window=16)
    assert cache.layers[0].size <= 16 + BLOCK


def test_a_budget_of_the_whole_prompt_leaves_nothing_out():
    assert OracleTopK(budget=64).reads_all(workload(64), 0)
    assert not OracleTopK(budget=63).reads_all(workload(64), 0)
    assert OracleTopP(p=1.0).reads_all(workload(64), 0)
    assert not OracleTopP().reads_all(workload(64), 0)
