"""Linear Transformer and Performer against the n × n weights written out, and by hand."""

import math
from dataclasses import replace

import pytest
import torch

from longctx_bench.named import built
from methods import performer
from methods.base import Unsupported, Workload
from methods.linear_transformer import LinearTransformer
from methods.parts.attention import exact_attention
from methods.performer import Performer, directions
from tests.methods.hand import A, call_of, check_rows, heads, inputs, read

KEYS = heads((0, 1), (-1, 0))
METHODS = [
    LinearTransformer(), Performer(m=16), Performer("relu", 16), Performer("relu", None),
    Performer("relu", None, scaled=False),
]  # fmt: skip


def features(method, x, call):
    if isinstance(method, LinearTransformer):
        return torch.nn.functional.elu(x) + 1
    x = x * math.sqrt(call.scale if method.scaled else 1)
    projected = x
    if method.m:
        projected = x @ directions(method.m, 6, method.seed + performer.DRAWN * call.layer).T
    if method.features == "relu":
        return projected.relu() + method.offset
    return (projected - x.square().sum(-1, keepdim=True) / 2).exp() / math.sqrt(method.m)


def mean(weights, value, call):
    """The mean of values by weights [.., n, n], each key counted by its multiplicity."""
    if call.sequence.log_multiplicity is not None:
        weights = weights * call.sequence.log_multiplicity.exp()[:, None, None]
    return weights @ value / weights.sum(-1, keepdim=True)


def twin(method):
    def attend(query, key, value, call):
        weights = features(method, query, call) @ features(method, key, call).mT
        return mean(weights.tril() if call.sequence.causal else weights, value, call)

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


def test_google_s_epsilon_by_hand(monkeypatch):
    """exp(±x - x²/2 - c) + 1/10 for x = q with c = |q|, and for x = k with c = 2."""
    monkeypatch.setattr(performer, "directions", lambda m, d, seed: torch.tensor([[1.0], [-1]]))
    feature = [[math.exp(s * x - x * x / 2 - 2) + 0.1 for s in (1, -1)] for x in (1, 2, -1, 0)]
    last = [math.exp(s * 2 - 2 - 2) + 0.1 for s in (1, -1)]  # of the last query, 2
    weights = [last[0] * f[0] + last[1] * f[1] for f in feature]
    expected = sum(w * v for w, v in zip(weights, (1, 2, 3, 4), strict=True)) / sum(weights)
    assert read(Performer(m=2, epsilon=0.1), *A)[3] == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(2.446753, abs=1e-6)


def stabilised(method):
    """Google's formula: features over their largest plus epsilon."""

    def attend(query, key, value, call):
        def of(x, over):
            x = x * math.sqrt(call.scale)
            along = x @ directions(method.m, 6, performer.DRAWN * call.layer).T
            half = x.square().sum(-1, keepdim=True) / 2
            return (along - half - along.amax(over, keepdim=True)).exp() + method.epsilon

        return mean(of(query, -1) @ of(key, (-1, -2)).mT, value, call)

    return attend


@pytest.mark.parametrize("epsilon", [1e-6, 1e-4])
def test_epsilon_equals_its_twin(epsilon):
    method = Performer(m=16, epsilon=epsilon)
    check_rows(method, stabilised(method), 300, zeros=False)


def test_epsilon_takes_most_of_the_error_of_random_queries_and_keys():
    query, key, value = inputs(512, d=64)
    call = replace(call_of(), scale=1 / 8)
    exact = exact_attention(query, key, value, call)

    def error(epsilon):
        output = Performer(epsilon=epsilon).attend(query, key, value, call)
        return ((output - exact).norm() / exact.norm()).item()

    assert error(0.0) > error(1e-6) > 1 > error(1e-4)


def test_epsilon_is_of_encoders():
    with pytest.raises(Unsupported, match="future"):
        Performer(epsilon=1e-6).attend(*inputs(9), call_of(causal=True))


def test_lra_s_setting_is_its_formula():
    """relu(q) + 0.001 and relu(k) + 0.001 only, for any scale."""
    query, key, value = inputs(50)
    weights = (query.relu() + 1e-3) @ (key.relu() + 1e-3).mT
    output = built("performer_lra", {}).attend(query, key, value, call_of())
    torch.testing.assert_close(output, mean(weights, value, call_of()), rtol=1e-13, atol=1e-14)


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
    assert [method.feature_count(6) for method in METHODS] == [6, 16, 16, 6, 6]
    for method in METHODS:
        cache = method.kv_cache(Workload(134, 2, 2, 6, 1, 12, causal=True))
        cache.prefill(*inputs(134, 2), call_of(causal=True))
        assert cache.held()[1].shape[2:] == (method.feature_count(6), 7)
