"""IceFormer: exact where k is enough, the embeddings of the paper, its DCI against the algorithm as
printed, and nothing of keys that a query doesn't see."""

import dataclasses
import heapq
import math

import pytest
import torch

from methods import indices, knn
from methods.base import Call, Sequence, Shape, Unsupported, per_head
from methods.iceformer import SEARCHES, IceFormer
from methods.vanilla import exact_attention

HEADS, SIZE = 2, 32
KERNELS = ["torch", "native"]  # without a native kernel both are torch
RECALL = {"exact": 1.0, "quantized": 0.98, "dci": 0.9}
WAYS = [(search, kernel) for search in SEARCHES for kernel in KERNELS]
ways = pytest.mark.parametrize("search, kernel", WAYS)
causals = pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])


@pytest.fixture(autouse=True)
def poison():
    """Memory that nobody wrote reads as NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def inputs(n, batch=1, heads=HEADS, key_heads=HEADS, seed=0):
    make = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, h, n, SIZE, generator=make) for h in (heads, key_heads, key_heads)]


def clustered(n, batch=1, seed=0):
    """Keys around 32 centres of different norms, a query near one key: as trained heads have."""
    make = torch.Generator().manual_seed(seed)
    centres = torch.randn(batch, HEADS, 32, SIZE, generator=make)
    centres *= torch.rand(batch, HEADS, 32, 1, generator=make) + 0.5
    which = torch.randint(32, (batch, HEADS, n, 1), generator=make).expand(-1, -1, -1, SIZE)
    key = centres.gather(2, which) + 0.5 * torch.randn(batch, HEADS, n, SIZE, generator=make)
    which = torch.randint(n, (batch, HEADS, n, 1), generator=make).expand(-1, -1, -1, SIZE)
    query = 2 * key.gather(2, which) + torch.randn(batch, HEADS, n, SIZE, generator=make)
    return query, key, torch.randn(batch, HEADS, n, SIZE, generator=make)


def call(n=0, causal=False, **sequence):
    return Call(Sequence(causal=causal, **sequence), SIZE**-0.5, 0)


def error(got, expected):
    assert got.isfinite().all()
    return float((got - expected).norm() / expected.norm())


def everything(search, kernel, **fields):
    """A method that may read up to 150 keys and retrieves all it sees."""
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
@causals
@pytest.mark.parametrize("side", ["left", "right", "holes"])
def test_padding_anywhere(side, causal, search, kernel):
    n = 140
    query, key, value = inputs(n, batch=3)
    valid = torch.ones(3, n, dtype=torch.bool)
    valid[1, {"left": slice(0, 60), "right": slice(80, None), "holes": slice(1, None, 3)}[side]] = 0
    valid[2] = False
    expected = exact_attention(query, key, value, call(causal=causal, valid=valid))
    output = everything(search, kernel).attend(query, key, value, call(causal=causal, valid=valid))
    assert output.isfinite().all() and not output[2].any()
    for b in (0, 1):
        assert error(output[b][:, valid[b]], expected[b][:, valid[b]]) <= 1e-6


@ways
@causals
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_rows_of_a_batch_are_as_if_alone(left, causal, search, kernel):
    lengths, n = [300, 71, 200], 300
    query, key, value = inputs(n, batch=3)
    valid = torch.arange(n) < torch.tensor(lengths)[:, None]
    valid = valid.flip(1) if left else valid
    method = IceFormer(k=7, search=search, kernel=kernel)
    output = method.attend(query, key, value, call(causal=causal, valid=valid))
    for b in range(3):
        alone = [x[b : b + 1, :, valid[b]] for x in (query, key, value)]
        expected = method.attend(*alone, call(causal=causal))
        torch.testing.assert_close(output[b : b + 1, :, valid[b]], expected)


def test_embeddings_by_hand():
    keys, query = torch.tensor([[3.0, 0.0], [0.0, 4.0]]), torch.tensor([[1.0, 0.0]])
    embedded, asked = indices.embed_keys(keys, 4.0), indices.embed_queries(query)
    torch.testing.assert_close((asked - embedded).square().sum(-1), torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(embedded.norm(dim=-1), torch.ones(2))


def test_embeddings_rank_as_inner_products_do():
    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [10.0, 1.0]])
    assert torch.cdist(query, key).argmin() == 0 and (query @ key.T).argmax() == 1
    c = float(key.norm(dim=-1).max())
    assert torch.cdist(indices.embed_queries(query), indices.embed_keys(key, c)).argmin() == 1
    query, key, _ = (x[0, 0] for x in inputs(50))
    c = float(key.norm(dim=-1).max())
    distance = torch.cdist(indices.embed_queries(query), indices.embed_keys(key, c)).square()
    products = 2 - 2 * (query @ key.T) / (c * query.norm(dim=-1, keepdim=True))
    torch.testing.assert_close(distance, products, rtol=1e-4, atol=1e-5)


@ways
@causals
def test_the_output_is_a_softmax_over_the_keys_read_alone(causal, search, kernel):
    query, key, value = inputs(200)
    method = IceFormer(k=9, search=search, kernel=kernel)
    ((reads, _),) = method._rows(query, key, value, call(causal=causal))
    output, ids = method._read(reads, 0)
    scores = (query @ key.mT * SIZE**-0.5).gather(-1, ids.clamp(min=0))
    weights = scores.masked_fill(ids < 0, -math.inf).softmax(-1)
    chosen = torch.zeros(1, HEADS, 200, 200).scatter_add(-1, ids.clamp(min=0), weights)
    torch.testing.assert_close(output, chosen @ value, rtol=1e-5, atol=1e-6)
    assert ((ids >= 0).sum(-1) == torch.arange(1, 201).clamp(max=9)).all() or not causal


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
    found = IceFormer(k=2, search="exact").diagnose(query, key, Call(Sequence(), 1.0, 0))
    assert found == pytest.approx({"recall": 1, "mass": 5 / 6, "mass_best": 5 / 6})
    reads = knn.Reads(query, key, key, torch.full((4,), 4), 2, 1.0)
    half = knn.quality(reads, torch.tensor([1, 0]).expand(1, 1, 4, 2))
    assert float(half["recall"].mean()) == 0.5
    assert float(half["mass"].mean()) == pytest.approx(4 / 6)


@ways
def test_later_keys_change_nothing(search, kernel):
    n, cut = 400, 250
    query, key, value = inputs(n)
    method = IceFormer(k=5, search=search, kernel=kernel)
    before = method.attend(query, key, value, call(causal=True))
    for factor in (0.01, 1.0, 100.0):
        changed = [x.clone() for x in (query, key, value)]
        for x, new in zip(changed, inputs(n, seed=1), strict=True):
            x[:, :, cut:] = factor * new[:, :, cut:]
        after = method.attend(*changed, call(causal=True))
        torch.testing.assert_close(after[:, :, :cut], before[:, :, :cut], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(before[:, :, 0], value[:, :, 0])


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


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("pieces", [[1] * 40, [100, 1, 63, 1, 1, 70], [1, 130, 5]])
def test_memory_reads_as_one_causal_call_would(pieces, search):
    n = sum(pieces)
    query, key, value = inputs(n, heads=4, key_heads=2)
    key = key * torch.linspace(0.5, 3, n)[:, None]  # so that c grows on the way
    method = IceFormer(k=6, search=search, layers="0", kernel="torch")
    whole = [
        method.attend(query, key, value, dataclasses.replace(call(causal=True), layer=i))
        for i in (0,)
    ]
    whole.append(exact_attention(query, *per_head(query, key, value), call(causal=True)))
    memory, outputs = method.memory(), ([], [])
    for end, size in zip(torch.tensor(pieces).cumsum(0).tolist(), pieces, strict=True):
        new = slice(end - size, end)
        for layer in (0, 1):
            so_far = key[:, :, :end], value[:, :, :end]
            one = Call(Sequence(), SIZE**-0.5, layer)
            outputs[layer].append(memory.attend(query[:, :, new], *so_far, one))
    for layer in (0, 1):
        torch.testing.assert_close(torch.cat(outputs[layer], 2), whole[layer], rtol=1e-5, atol=1e-6)


def printed_query(keys, query, k0, k1):
    """Algorithm 3 for one composite index, as printed: keys [n, m] and query [m], projected."""
    n, m = keys.shape
    order = [sorted(range(n), key=lambda i, j=j: abs(keys[i, j] - query[j])) for j in range(m)]
    queue = [(abs(keys[order[j][0], j] - query[j]), j, 0) for j in range(m)]
    heapq.heapify(queue)
    count, found = [0] * n, []
    for _ in range(min(k1, n * m)):
        if len(found) >= k0:
            break
        _, j, i = heapq.heappop(queue)
        if i + 1 < n:
            heapq.heappush(queue, (abs(keys[order[j][i + 1], j] - query[j]), j, i + 1))
        count[order[j][i]] += 1
        if count[order[j][i]] == m:
            found.append(order[j][i])
    return found


@pytest.mark.parametrize("k0, k1", [(5, None), (12, None), (40, 60), (8, 100), (1, 1)])
def test_dci_is_the_algorithm_as_printed(k0, k1):
    query, key, _ = inputs(60, heads=1, key_heads=1)
    index = indices.Dci(SIZE, m=3, L=2, k0=k0, k1=k1, seed=0)
    index.add(key)
    seen = torch.full((60,), 60)
    chosen = index.candidates(query, seen, k=1)[0, 0]
    keys = index.key_lists(index.bounds(seen)[:, :, 0], 60)[0, 0].mT.int()
    queries = index.query_lists(query)[0, 0].int()
    ties = 0
    for i in range(60):
        union = set()
        for part in (slice(0, 3), slice(3, 6)):
            found = printed_query(keys[:, part].numpy(), queries[i, part].numpy(), k0, k1 or 10**6)
            union |= set(found)
        mine = set(chosen[i].nonzero()[:, 0].tolist())
        assert union <= mine
        ties += len(mine - union)
    assert ties <= 60 * 2 * 1.5  # equal 8-bit differences: all of them belong, or none


def test_dci_bounds_hold_every_norm():
    _, key, _ = inputs(100)
    key = key * torch.linspace(0.1, 5, 100)[:, None]
    index = indices.Dci(SIZE, 2, 1, 0.5, None, 0)
    index.add(key[:, :, :30])
    index.add(key[:, :, 30:])
    c = index.bounds(torch.arange(1, 101))
    highest = key.norm(dim=-1).cummax(-1).values
    assert (c >= highest * 0.99999).all() and (c <= highest * 1.4143).all()
    assert len(c[0, 0].unique()) < 15


class Slope:
    def __call__(self, query_positions, key_positions):
        distance = (key_positions[:, None, :] - query_positions[:, :, None])[:, None]
        return distance * torch.tensor([0.02, -0.01])[:, None, None]

    def diagonals(self, n):
        raise AssertionError("not needed")


@ways
@pytest.mark.parametrize("padded", [False, True])
def test_position_bias_and_multiplicity_take_part_in_the_choice(padded, search, kernel):
    n = 120
    query, key, value = inputs(n, batch=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, :50] = not padded
    counts = torch.arange(1.0, 2 * n + 1).view(2, n).log()
    positions = torch.arange(n).mul(2).expand(2, n)
    sequence = Sequence(positions, valid, log_multiplicity=counts)
    biased = Call(sequence, SIZE**-0.5, 0, Slope())
    method = everything(search, kernel)
    expected = exact_attention(query, key, value, biased)
    output = method.attend(query, key, value, biased)
    for b in range(2):
        assert error(output[b][:, valid[b]], expected[b][:, valid[b]]) < 2e-6
    assert method.kernel_used.startswith("torch (")
    few = IceFormer(k=3, search="exact").attend(query, key, value, biased)[0]
    scores = (
        query[0] @ key[0].mT * SIZE**-0.5 + Slope()(positions[:1], positions[:1])[0] + counts[0]
    )
    best = scores.topk(3)
    chosen = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
    torch.testing.assert_close(few, chosen @ value[0], rtol=1e-4, atol=1e-5)


def test_layers():
    query, key, value = inputs(100)
    method = IceFormer(k=2, layers="1,3-4")
    assert [method.takes(i) for i in range(6)] == [False, True, False, True, True, False]
    other = method.attend(query, key, value, call())
    assert torch.equal(other, exact_attention(query, key, value, call()))
    with pytest.raises(ValueError, match="16-31"):
        IceFormer(layers="upper")


@pytest.mark.parametrize(
    "n, alpha, k", [(100, 5e-3, 30), (8000, 5e-3, 40), (10000, 5e-3, 50), (16384, 6e-3, 50)]
)
def test_rule_of_equation_29(n, alpha, k):
    assert IceFormer(k_rule="alpha", alpha=alpha).keys_read(n) == k
    assert IceFormer(k=7).keys_read(n) == 7


def test_training_is_refused_in_words():
    query, key, value = (x.requires_grad_() for x in inputs(10))
    with pytest.raises(Unsupported, match="frozen"):
        IceFormer().attend(query, key, value, call())
    with torch.no_grad():
        IceFormer().attend(query, key, value, call())
    shape = Shape(length=100, batch=2, heads=4, head_size=8, layers=2, hidden_size=32)
    assert IceFormer().unsupported(shape) is None
    assert "frozen" in IceFormer().unsupported(dataclasses.replace(shape, training=True))
    assert IceFormer(search="dci").state_bytes(shape) == 2 * 4 * 100 * 8


@pytest.mark.parametrize(
    "field, value", [("search", "lsh"), ("k_rule", "beta"), ("kernel", "cuda"), ("k", 0)]
)
def test_wrong_parameters_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        IceFormer(**{field: value})


@ways
def test_other_dtypes_come_back_as_they_went(search, kernel):
    query, key, value = (x.bfloat16() for x in inputs(50))
    output = IceFormer(k=5, search=search, kernel=kernel).attend(query, key, value, call())
    assert output.dtype == torch.bfloat16 and output.isfinite().all()


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("side", ["left", "holes"])
def test_memory_leaves_padding_out(side, search):
    n, start = 170, 150
    query, key, value = inputs(n, batch=2, heads=4, key_heads=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, slice(0, 90) if side == "left" else slice(1, 100, 3)] = False
    method = IceFormer(k=6, search=search, kernel="torch")
    whole = method.attend(query, key, value, call(causal=True, valid=valid))
    memory = method.memory()
    for end in range(start, n + 1):
        so_far = query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end]
        output = memory.attend(*so_far, call(valid=valid[:, :end]))
        expected = whole[:, :, end - 1 : end]
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_memory_inserts_and_never_rebuilds(monkeypatch):
    added, blocks = [], []
    add = indices.Quantized.add
    monkeypatch.setattr(
        indices.Quantized, "add", lambda self, key: (added.append(key.shape[2]), add(self, key))
    )
    query, key, value = inputs(300)
    memory = IceFormer(k=6).memory()
    for end in range(200, 301):
        memory.attend(query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end], call())
        ((index,),) = memory.indices.values()
        blocks.append(index.mean.shape[2])
    assert added == [200] + [1] * 100
    assert blocks == [end // 64 for end in range(200, 301)]


def test_memory_reads_biased_scores_anew():
    query, key, value = inputs(60)
    biased = Call(Sequence(), SIZE**-0.5, 0, Slope())
    method = IceFormer(k=200)
    counted_ = call(log_multiplicity=torch.arange(1.0, 61).log()[None])
    output = method.memory().attend(query[:, :, -1:], key, value, counted_)
    expected = exact_attention(query[:, :, -1:], key, value, counted_)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(Unsupported, match="one token at a time"):
        method.memory().attend(query, key, value, biased)


@ways
@pytest.mark.parametrize("padded", [False, True])
def test_one_query_reads_all_keys_as_the_last_of_many_would(padded, search, kernel):
    n = 120
    query, key, value = inputs(n, batch=2, heads=4, key_heads=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, :50] = not padded
    method = IceFormer(k=6, search=search, kernel=kernel)
    whole = method.attend(query, key, value, call(causal=True, valid=valid))[:, :, -1:]
    output = method.attend(query[:, :, -1:], key, value, call(valid=valid))
    torch.testing.assert_close(output, whole, rtol=1e-5, atol=1e-6)
