"""IceFormer: exact if k is large enough, the same with every search and kernel, and independent of
keys that a query doesn't see."""

import dataclasses

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo, Unsupported, Workload
from methods.iceformer import knn
from methods.iceformer.iceformer import IceFormer
from methods.iceformer.inputs import TopKInputs
from methods.parts.attention import exact_attention
from tests.methods.ice import RECALL, SIZE, call, causals, clustered, inputs, slope, ways
from tests.methods.native import error

pytestmark = pytest.mark.usefixtures("poison")


def everything(search, kernel, **fields):
    """A method that may read up to 150 keys and retrieves all keys that a query sees."""
    return IceFormer(k=150, search=search, kernel=kernel, k0=1e6, **fields)


@ways
@causals
@pytest.mark.parametrize("n", [1, 2, 67, 131, 150])
def test_as_many_keys_as_there_are_is_exact_attention(n, causal, search, kernel):
    query, key, value = inputs(n, batch=2)
    expected = exact_attention(query.double(), key.double(), value.double(), call(causal=causal))
    output = everything(search, kernel).attend(query, key, value, call(causal=causal))
    assert error(output, expected) <= 4e-7


@ways
def test_a_row_without_a_token_is_zero(search, kernel):
    valid = torch.arange(60) < torch.tensor([[60], [0]])
    output = everything(search, kernel).attend(*inputs(60, batch=2), call(valid=valid))
    assert output.isfinite().all() and output[0].any() and not output[1].any()


@ways
@causals
@pytest.mark.parametrize("make", [clustered, inputs])
def test_recall(make, causal, search, kernel):
    query, key, _ = make(1500)
    method = IceFormer(k=20, search=search, kernel=kernel, m=8, L=4, k0=0.25)
    found = method.diagnose(query, key, call(causal=causal))
    assert found["recall"] >= RECALL[search]
    assert found["mass"] <= found["mass_best"] + 1e-9 and found["mass_best"] <= 1
    assert found["mass"] >= 0.95 * found["mass_best"]


def test_diagnose_by_hand():
    key = torch.tensor([1.0, 3.0, 2.0, 0.0]).log().clamp(min=-50)[None, None, :, None]
    query = torch.ones(1, 1, 4, 1)
    found = IceFormer(k=2, search="exact").diagnose(
        query, key, AttentionCall(SequenceInfo(), 1.0, 0)
    )
    assert found == pytest.approx({"recall": 1, "mass": 5 / 6, "mass_best": 5 / 6})
    inputs = TopKInputs(query, key, key, torch.full((4,), 4), 2, 1.0)
    half = knn.selection_quality(inputs, torch.tensor([1, 0]).expand(1, 1, 4, 2))
    assert float(half["recall"].mean()) == 0.5
    assert float(half["mass"].mean()) == pytest.approx(4 / 6)


@ways
def test_same_seed_same_output_and_the_global_generator_untouched(search, kernel):
    query, key, value = inputs(300)
    state = torch.get_rng_state()
    method = IceFormer(k=5, search=search, kernel=kernel)
    one, two = (method.attend(query, key, value, call()) for _ in range(2))
    assert torch.equal(one, two) and torch.equal(torch.get_rng_state(), state)
    other = dataclasses.replace(method, seed=1).attend(query, key, value, call())
    later = method.attend(query, key, value, dataclasses.replace(call(), layer=1))
    assert torch.equal(one, other) == torch.equal(one, later) == (search != "dci")


@ways
@causals
def test_grouped_queries(causal, search, kernel):
    query, key, value = inputs(200, heads=6, key_heads=2)
    method = IceFormer(k=5, search=search, kernel=kernel)
    grouped = method.attend(query, key, value, call(causal=causal))
    key, value = (x.repeat_interleave(3, 1) for x in (key, value))
    torch.testing.assert_close(grouped, method.attend(query, key, value, call(causal=causal)))


@ways
@pytest.mark.parametrize("padded", [False, True])
def test_position_bias_and_multiplicity_take_part_in_the_choice(padded, search, kernel):
    n = 120
    query, key, value = inputs(n, batch=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, :50] = not padded
    counts = torch.arange(1.0, 2 * n + 1).view(2, n).log()
    positions = torch.arange(n).mul(2).expand(2, n)
    sequence = SequenceInfo(positions, valid, log_multiplicity=counts)
    biased = AttentionCall(sequence, SIZE**-0.5, 0, slope())
    method = everything(search, kernel)
    expected = exact_attention(query, key, value, biased)
    output = method.attend(query, key, value, biased)
    for b in range(2):
        assert error(output[b][:, valid[b]], expected[b][:, valid[b]]) < 2e-6
    assert method.kernel_used.startswith("torch")
    few = IceFormer(k=3, search="exact").attend(query, key, value, biased)[0]
    scores = (
        query[0] @ key[0].mT * SIZE**-0.5 + slope()(positions[:1], positions[:1])[0] + counts[0]
    )
    best = scores.topk(3)
    chosen = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
    torch.testing.assert_close(few, chosen @ value[0], rtol=1e-4, atol=1e-5)


def test_layers():
    query, key, value = inputs(100)
    method = IceFormer(k=2, layers="1,3-4")
    assert [method.is_sparse(i) for i in range(6)] == [False, True, False, True, True, False]
    other = method.attend(query, key, value, call())
    assert torch.equal(other, exact_attention(query, key, value, call()))
    one = IceFormer(k=2, layers=1)
    assert [one.is_sparse(i) for i in range(3)] == [False, True, False]


@pytest.mark.parametrize(
    "n, alpha, k", [(100, 5e-3, 30), (8000, 5e-3, 40), (10000, 5e-3, 50), (16384, 6e-3, 50)]
)
def test_rule_of_equation_29(n, alpha, k):
    assert IceFormer(k_rule="alpha", alpha=alpha).k_for(n) == k
    assert IceFormer(k=7).k_for(n) == 7


def test_training_is_refused_in_words():
    query, key, value = (x.requires_grad_() for x in inputs(10))
    with pytest.raises(Unsupported, match="frozen"):
        IceFormer().attend(query, key, value, call())
    with torch.no_grad():
        IceFormer().attend(query, key, value, call())


def test_theory():
    shape = Workload(length=100, batch=2, heads=4, head_size=8, layers=2, hidden_size=32)
    assert IceFormer(search="dci").state_bytes(shape) == 2 * 4 * 100 * 8
