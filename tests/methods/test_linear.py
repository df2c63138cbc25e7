"""Linear Transformer and Performer against the n × n weights written out, and by hand."""

import math

import pytest
import torch

from methods import performer
from methods.base import Workload
from methods.linear_transformer import LinearTransformer
from methods.performer import Performer, directions
from tests.methods.hand import A, call_of, check_rows, heads, inputs, read

KEYS = heads((0, 1), (-1, 0))
METHODS = [LinearTransformer(), Performer(m=16), Performer("relu", 16), Performer("relu", None)]


def features(method, x, call):
    if isinstance(method, LinearTransformer):
        return torch.nn.functional.elu(x) + 1
    x = x * math.sqrt(call.scale)
    projected = x
    if method.m:
        projected = x @ directions(method.m, 6, method.seed + performer.DRAWN * call.layer).T
    if method.features == "relu":
        return projected.relu() + method.offset
    return (projected - x.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(method.m)


def twin(method):
    def attend(query, key, value, call):
        weights = features(method, query, call) @ features(method, key, call).mT
        if call.sequence.log_multiplicity is not None:
            weights = weights * call.sequence.log_multiplicity.exp()[:, None, None]
        if call.sequence.causal:
            weights = weights.tril()
        return weights @ value / weights.sum(-1, keepdim=True)

    return attend


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_its_twin(method, causal):
    check_rows(method, twin(method), 300, causal=causal, zeros=False)  # more than two chunks


def test_linear_transformer_by_hand():
    example = heads((1, -1), (0, 1)), KEYS, heads(1, 2)
    assert read(LinearTransformer(), *example) == pytest.approx([1.287451, 1.321379], abs=1e-6)
    causal = read(LinearTransformer(), *example, causal=True)
    assert causal == pytest.approx([1.0, 1.321379], abs=1e-6)


def test_performer_by_hand(monkeypatch):
    """Two directions, 1 and -1."""
    monkeypatch.setattr(performer, "directions", lambda m, d, seed: torch.tensor([[1.0], [-1]]))
    exact = [2.243494, 3.026116, 2.591539, 2.162340]
    assert read(Performer(m=2), *A) == pytest.approx(exact, abs=1e-6)
    causal = [1.0, 1.256123, 2.0, 2.162340]
    assert read(Performer(m=2), *A, causal=True) == pytest.approx(causal, abs=1e-6)


def test_directions_are_orthogonal_within_each_block_and_of_normal_lengths():
    drawn = directions(600, 6, 0)
    for block in drawn.split(6):
        product = block @ block.T
        torch.testing.assert_close(product, product.diag().diag())
    assert drawn.square().sum(1).mean().item() == pytest.approx(6, rel=0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_large_inputs_stay_finite_and_rows_sum_to_1(causal):
    query, key, value = (50 * x for x in inputs(200))
    for method in METHODS:
        output = method.attend(query, key, torch.ones_like(value), call_of(causal=causal))
        torch.testing.assert_close(output, torch.ones_like(value))


def test_a_cache_holds_sums_of_as_many_features_as_the_method_has():
    assert [method.feature_count(6) for method in METHODS] == [6, 16, 16, 6]
    for method in METHODS:
        cache = method.kv_cache(Workload(134, 2, 2, 6, 1, 12, causal=True))
        cache.prefill(*inputs(134, 2), call_of(causal=True))
        assert cache.held()[1].shape[2:] == (method.feature_count(6), 7)
