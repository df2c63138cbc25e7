"""The native kernels and their torch twins: the same numbers on both paths, and words where one
can't run."""

import os
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import Call, Sequence
from methods.bigbird import BigBird
from methods.iceformer import IceFormer
from methods.vanilla import Vanilla, VanillaEager

native = pytest.mark.skipif(kernels.available() is not None, reason=f"{kernels.available()}")
SIZES = [
    (1, 1, 8),
    (2, 63, 16),
    (1, 64, 64),
    (2, 131, 24),
    (1, 257, 48),
    (1, 300, 80),
    (1, 97, 128),
]
TOLERANCE = {"float32": 1e-6, "bfloat16": 1e-2}


@pytest.fixture(autouse=True)
def poison():
    """Memory that nobody wrote reads as NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


def inputs(batch, n, d, heads=4, key_heads=None, seed=0):
    make = torch.Generator().manual_seed(seed)
    counts = (heads, key_heads or heads, key_heads or heads)
    return [torch.randn(batch, h, n, d, generator=make) for h in counts]


def error(got, expected):
    assert got.isfinite().all()
    return float((got - expected).norm() / expected.norm())


def products():
    missing = kernels.available("bfloat16")
    skip = pytest.mark.skipif(missing is not None, reason=str(missing))
    return ["float32", pytest.param("bfloat16", marks=skip)]


@native
@pytest.mark.parametrize("products", products())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch, n, d", SIZES)
def test_dense_equals_torch(batch, n, d, causal, products):
    query, key, value = inputs(batch, n, d)
    exact = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=causal, scale=0.3
    )
    output = kernels.dense(query, key, value, 0.3, products=products, causal=causal)
    assert error(output, exact) < TOLERANCE[products]


@native
def test_dense_takes_strides_grouped_heads_other_lengths_and_value_sizes():
    query, key, _ = inputs(2, 70, 32, key_heads=2)
    value = torch.randn(2, 2, 70, 20)
    exact = scaled_dot_product_attention(
        query[:, :, :33], key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    )

    def turned(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    output = kernels.dense(turned(query)[:, :, :33], turned(key), turned(value), 32**-0.5)
    assert error(output, exact) < 1e-6


@native
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["left", "right", "holes", "none valid"])
def test_vanilla_native_equals_vanilla(side, causal):
    query, key, value = inputs(2, 150, 16)
    valid = torch.ones(2, 150, dtype=torch.bool)
    hidden = {"left": slice(0, 70), "right": slice(80, None), "holes": slice(3, None, 5)}
    valid[1, hidden.get(side, slice(None))] = False
    counts = torch.arange(1.0, 301).view(2, 150).log() if side == "holes" else None
    call = Call(Sequence(valid=valid, causal=causal, log_multiplicity=counts), 0.25, 0)
    method = Vanilla(kernel="native")
    got, expected = (m.attend(query, key, value, call) for m in (method, Vanilla()))
    assert method.kernel_used == "native avx512 float32"
    assert got.isfinite().all()
    for b in range(2):
        kept = valid[b].nonzero()[:, 0]
        if len(kept):
            assert error(got[b][:, kept], expected[b][:, kept]) < 1e-6


@native
@pytest.mark.parametrize("products", products())
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("n, size", [(320, 64), (301, 64), (512, 128)])
def test_block_sparse_equals_a_mask(n, size, heads, products):
    query, key, value = inputs(2, n, 32)
    count = -(-n // size)
    make = torch.Generator().manual_seed(1)
    lists = [
        [torch.randperm(count, generator=make)[: 1 + i % 3].tolist() for i in range(count)]
        for _ in range(heads)
    ]
    mask = torch.zeros(heads, count, count, dtype=torch.bool)
    for h, head in enumerate(lists):
        for i, one in enumerate(head):
            mask[h, i, one] = True
    mask = mask.repeat_interleave(size, 1).repeat_interleave(size, 2)[:, :n, :n]
    bias = torch.zeros(2, n)
    bias[1, 5:50] = torch.finfo(torch.float32).min
    # A block list without a valid key would be an average of nothing.
    added = torch.zeros(mask.shape).masked_fill(~mask, -1e30) + bias[:, None, None]
    exact = scaled_dot_product_attention(query, key, value, attn_mask=added.clamp(min=-1e30))
    blocks = kernels.Blocks.of(lists, size)
    output = kernels.block_sparse(query, key, value, 32**-0.5, blocks, bias, products)
    assert error(output, exact) < TOLERANCE[products]


@native
def test_a_block_that_stands_twice_counts_twice():
    query, key, value = inputs(1, 128, 16)
    blocks = kernels.Blocks.of([[[0, 0, 1], [1, 0]]])
    twice = scaled_dot_product_attention(
        query[:, :, :64],
        key[:, :, [*range(64), *range(128)]],
        value[:, :, [*range(64), *range(128)]],
    )
    output = kernels.block_sparse(query, key, value, 0.25, blocks)
    assert error(output[:, :, :64], twice) < 1e-6


class Buckets:
    """A bias that differs by head, up to some distance on either side."""

    def __init__(self, heads, reach, size=2.0):
        make = torch.Generator().manual_seed(7)
        self.table, self.reach = size * torch.randn(heads, 2 * reach + 1, generator=make), reach

    def of(self, distance):
        return self.table[:, distance.clamp(-self.reach, self.reach) + self.reach]

    def __call__(self, query_positions, key_positions):
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return self.of(distance).transpose(0, 1)

    def diagonals(self, n):
        return self.of(torch.arange(1 - n, n))


REACHES = [0, 3, 128, 10**6]  # no difference at all, near ones, T5's, everywhere


@native
@pytest.mark.parametrize("products", products())
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("reach", REACHES[:3])
@pytest.mark.parametrize("n", [1, 63, 257, 700])
def test_vanilla_native_takes_a_position_bias(n, reach, causal, products):
    query, key, value = inputs(2, n, 32)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, : n // 3] = False
    shifted = torch.arange(5, n + 5).expand(2, n)
    call = Call(Sequence(shifted, valid, causal=causal), 0.2, 0, Buckets(4, reach))
    method = Vanilla("native", products)
    got, expected = (m.attend(query, key, value, call) for m in (method, VanillaEager()))
    assert method.kernel_used == f"native avx512 {products}"
    for b, first in enumerate((0, n // 3)):
        assert error(got[b, :, first:], expected[b, :, first:]) < TOLERANCE[products]


@native
def test_a_position_bias_with_gaps_is_left_to_torch():
    query, key, value = inputs(1, 90, 32)
    call = Call(Sequence(torch.arange(90)[None] * 2), 0.2, 0, Buckets(4, 50))
    expected = VanillaEager().attend(query, key, value, call)
    for method in (Vanilla("native"), IceFormer(k=90)):
        assert error(method.attend(query, key, value, call), expected) < 1e-5
        assert method.kernel_used == "torch (a position bias, and gaps among the positions)"


@native
@pytest.mark.parametrize("reach", REACHES[1:3])
@pytest.mark.parametrize("n", [1024, 1000])
def test_bigbird_native_takes_a_position_bias(n, reach):
    query, key, value = inputs(2, n, 32)
    call = Call(Sequence(), 0.2, 0, Buckets(4, reach))
    methods = [BigBird(kernel=kernel) for kernel in ("native", "torch")]
    got, expected = (m.attend(query, key, value, call) for m in methods)
    assert error(got, expected) < 1e-6
    assert methods[0].kernel_used == "native avx512 float32"


@native
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "n, d, reach",
    [(1, 16, 1), (64, 32, 3), (4300, 16, 128), *((700, 64, reach) for reach in REACHES)],
)
def test_best_keys_with_a_position_bias_equal_torch(n, d, reach, causal):
    query, key, value = inputs(1, n, d, heads=2)
    bias = Buckets(2, min(reach, n), 3.0)
    check_best_keys("quantized", query, key, value, Call(Sequence(causal=causal), 0.2, 0, bias))


@native
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [50, 700, 4300])
def test_queries_that_only_look_at_distances_find_them_among_equal_keys(n, causal):
    query, key, value = inputs(1, n, 16, heads=2)
    bias = Buckets(2, 5)
    bias.table = torch.zeros(2, 11).index_fill(1, torch.tensor([4]), 20.0)
    bias.table[1, :8] = 3.0
    call = Call(Sequence(causal=causal), 0.2, 0, bias)
    check_best_keys("quantized", query * 0, key, value, call)
    _, ids = read("quantized", "native", query * 0, key, value, call)
    before = torch.arange(n - 1)[None, None, :, None]
    assert (ids[:, :1, 1:] == before).any(-1).all(), "the key at distance -1"
    assert (ids[:, :, 20:] >= 0).all()


@native
def test_best_keys_with_a_position_bias_of_padded_rows_and_spread_queries():
    query, key, value = inputs(2, 900, 32)
    valid = torch.ones(2, 900, dtype=torch.bool)
    valid[0, :200], valid[1, 700:] = False, False
    call = Call(Sequence(valid=valid), 0.2, 0, Buckets(4, 128))
    outputs = []
    for kernel in ("native", "torch"):
        method = IceFormer(kernel=kernel)
        outputs.append(method.attend(query, key, value, call))
        assert method.diagnose(query, key, call)["recall"] > 0.999
        assert method.kernel_used.startswith(kernel) and ";" not in method.kernel_used
    for b in range(2):
        native, torchs = (x[b][:, valid[b]] for x in outputs)
        assert error(native, torchs) < 0.01


def read(search, kernel, query, key, value, call, **fields):
    """Output [B, H, n, e] and the keys read [B, H, n, k] of one path."""
    method = IceFormer(search=search, kernel=kernel, **fields)
    ((reads, _),) = method._rows(query, key, value, call)
    done = method._read(reads, 0)
    ran = "native avx512 " + ("int8" if search == "quantized" else "float32")
    assert method.kernel_used == (ran if kernel == "native" else "torch (kernel=torch)")
    return done


def check_best_keys(search, query, key, value, call, **fields):
    """Each path's output is the softmax over the keys it read, for every query; and the native
    path's keys are as good as torch's, rank by rank: equal scores within rounding where both have
    the same candidates (dci), never lower where the native ones hold torch's (quantized). Which of
    two equal keys was read is not told apart."""
    scores = query.double() @ key.double().mT * call.scale
    if call.bias is not None:
        scores = scores + call.bias.diagonals(query.shape[2]).unfold(-1, query.shape[2], 1).flip(1)
    if call.sequence.causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)
    near = 1e-6 * call.scale * query.norm(dim=-1, keepdim=True) * key.norm(dim=-1).amax()
    ranked = []
    for kernel in ("native", "torch"):
        output, ids = read(search, kernel, query, key, value, call, **fields)
        sorted_ids = ids.sort(-1).values
        assert not (
            (sorted_ids[..., 1:] == sorted_ids[..., :-1]) & (sorted_ids[..., 1:] >= 0)
        ).any()
        chosen = scores.gather(-1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
        weights = torch.zeros_like(scores).scatter_add(-1, ids.clamp(min=0), chosen.softmax(-1))
        expected = weights @ value.double()
        apart = (output - expected).norm(dim=-1) / expected.norm(dim=-1)
        assert apart.max() < 2e-5  # of any query
        ranked.append(chosen.sort(-1, descending=True).values)
    native, twin = ranked
    assert ((native >= twin - near) | (twin == -torch.inf)).all()
    if search == "dci":
        assert ((native <= twin + near) | (native == -torch.inf)).all()
    best = scores.topk(min(native.shape[-1], scores.shape[-1])).values
    assert (native[..., : best.shape[-1]] <= best + near).all()


@native
@pytest.mark.parametrize("search", ["dci", "quantized"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch, n, d", [*SIZES, (1, 1031, 64), (1, 4500, 32)])
def test_best_keys_equal_torch(batch, n, d, causal, search):
    query, key, value = inputs(batch, n, d, heads=2)
    check_best_keys(search, query, key, value, Call(Sequence(causal=causal), d**-0.5, 0))


@native
@pytest.mark.parametrize("search", ["dci", "quantized"])
@pytest.mark.parametrize("k", [1, 5, 50, 120])
def test_best_keys_equal_torch_for_any_k(k, search):
    query, key, value = inputs(1, 700, 64, heads=2)
    check_best_keys(search, query, key, value, Call(Sequence(), 0.125, 0), k=k)


@native
@pytest.mark.parametrize("far", [50.0, 5000.0])
@pytest.mark.parametrize("causal", [False, True])
def test_a_key_far_above_the_others_hides_none_of_them(causal, far):
    query, key, value = inputs(1, 2000, 64, heads=2)
    query, key = query + 1, key / 10
    key[:, :, 3] = far
    call = Call(Sequence(causal=causal), 0.1, 0)
    check_best_keys("quantized", query, key, value, call)
    for kernel in ("native", "torch"):
        assert IceFormer(kernel=kernel).diagnose(query, key, call)["recall"] >= 0.99


@native
@pytest.mark.parametrize("causal", [False, True])
def test_keys_that_are_all_alike_are_averaged(causal):
    query, key, value = inputs(1, 1500, 16, heads=2)
    same = key[:, :, :1].expand_as(key)
    output = IceFormer(k=20).attend(query, same, value, Call(Sequence(causal=causal), 0.25, 0))
    if causal:
        torch.testing.assert_close(output[:, :, 9], value[:, :, :10].mean(2))
    assert output.isfinite().all()
    assert output[:, :, 100:].norm(dim=-1).max() < value.norm(dim=-1).max()


@native
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("search", ["dci", "quantized"])
def test_queries_of_zeros_read_as_many_keys_as_others(search, causal):
    query, key, value = inputs(1, 900, 32, heads=2)
    query[:, 0] = 0
    query[:, 1, ::7] = 0
    call = Call(Sequence(causal=causal), 1.0, 0)
    check_best_keys(search, query, key, value, call)
    _, ids = read(search, "native", query, key, value, call)
    assert (ids >= 0).all() or causal
    assert (ids[:, :, 50:] >= 0).all()


@native
def test_one_thread_and_two_give_the_same():
    query, key, value = inputs(1, 500, 64)
    calls = [Call(Sequence(causal=causal), 0.125, 0) for causal in (False, True)]
    threads = torch.get_num_threads()
    outputs = []
    for count in (1, 2):
        torch.set_num_threads(count)
        outputs.append(
            [
                m.attend(query, key, value, c)
                for m in (IceFormer(), Vanilla("native"))
                for c in calls
            ]
        )
    torch.set_num_threads(threads)
    for one, two in zip(*outputs, strict=True):
        assert torch.equal(one, two)


@native
def test_torch_and_the_kernels_share_one_openmp_runtime():
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    assert len(runtimes) == 1, runtimes


def test_what_the_kernels_refuse_they_refuse_in_words():
    query, key, value = inputs(1, 10, 16)
    for changed, reason in [
        ([x.double() for x in (query, key, value)], "not float32"),
        ([x.requires_grad_() for x in inputs(1, 10, 16)], "a gradient is wanted"),
        ([query[:, :, :0], key, value], "nothing to read"),
    ]:
        done = kernels.dense(*changed, 0.25)
        assert done == (kernels.available() or reason)


def test_training_takes_the_torch_path():
    query, key, value = (x.requires_grad_() for x in inputs(1, 10, 16))
    method = Vanilla(kernel="native")
    method.attend(query, key, value, Call(Sequence(), 0.25, 0)).sum().backward()
    assert method.kernel_used.startswith("torch (") and query.grad is not None


def test_vanilla_is_torch_by_default():
    assert Vanilla().kernel == "torch"
    with pytest.raises(ValueError, match="needs kernel=native"):
        Vanilla(products="bfloat16")
    with pytest.raises(ValueError, match="'torch', 'native'"):
        Vanilla(kernel="nativ")


NATIVE = ["native avx512 int8", "native avx512 float32", "native avx512 float32"]
PROGRAM = """
import torch
from methods import kernels
from methods.base import Call, Sequence
from methods.iceformer import IceFormer
from methods.vanilla import Vanilla
torch.manual_seed(0)
inputs = [torch.randn(1, 2, 100, 16) for _ in range(3)]
for method in (IceFormer(), IceFormer(search="dci"), Vanilla(kernel="native")):
    output = method.attend(*inputs, Call(Sequence(), 0.25, 0))
    print(f"{output.sum():.4f}", method.kernel_used, sep="|")
"""


def run(**environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines()]
    return [float(number) for number, _ in lines], [used for _, used in lines], done.stderr


def test_without_a_compiler_torch_runs_and_says_so(tmp_path):
    numbers, used, _ = run(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"), CXX="")
    assert len(used) == 3 and all(one.startswith("torch (") for one in used)
    if kernels.available() is None:
        assert all("no compiler" in one for one in used)
        with_compiler, used, _ = run()
        assert used == NATIVE
        assert numbers == pytest.approx(with_compiler, abs=2e-3)


@native
def test_it_is_built_once_and_says_so(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    _, _, said = run(**cache)
    assert "compiling" in said
    built = list((tmp_path / "longctx-bench").iterdir())
    assert len(built) == 1 and built[0].suffix == ".so"
    _, used, said = run(**cache)
    assert "compiling" not in said and used == NATIVE


@native
def test_a_broken_compiler_is_a_reason(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'error: no room' >&2; exit 1\n")
    compiler.chmod(0o755)
    _, used, _ = run(CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert used == ["torch (it can't be built or loaded: error: no room)"] * 3
    assert not any((tmp_path / "cache" / "longctx-bench").iterdir())


def test_calls_that_differ_are_all_noted():
    method = Vanilla(kernel="native")
    query, key, value = inputs(1, 10, 16)
    for _ in range(2):
        method.attend(query, key, value, Call(Sequence(), 0.25, 0, dropout=0.0))
        method.attend(query.double(), key.double(), value.double(), Call(Sequence(), 0.25, 0))
    first, *others = method.kernel_used.split("; ")
    if kernels.available() is None:
        assert first == "native avx512 float32" and others == ["torch (not float32)"]
    else:
        assert first == f"torch ({kernels.available()})" and not others
