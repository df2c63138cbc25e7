"""The native kernels of exact and block-sparse attention and their torch twins: the same numbers on
both paths, and a reason if one can't run."""

import pytest
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from methods import kernels
from methods.base import AttentionCall, SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.iceformer.iceformer import IceFormer
from methods.parts.dense import DenseAttention
from methods.parts.sparse_prefill import words_of
from methods.vanilla import Vanilla, VanillaEager
from tests.methods.native import REACHES, SIZES, TOLERANCE, Buckets, error, inputs, native, products

pytestmark = pytest.mark.usefixtures("poison")


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
@pytest.mark.parametrize("d", [64, 24])
def test_bfloat16_is_multiplied_as_it_is_where_the_cpu_can(d):
    query, key, value = (x.bfloat16() for x in inputs(1, 257, d))
    method, call = Vanilla("native"), AttentionCall(SequenceInfo(causal=True), 0.3, 0)
    output = method.attend(query, key, value, call)
    exact = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=True, scale=0.3
    )
    assert output.dtype == torch.bfloat16 and error(output, exact) < TOLERANCE["bfloat16"]
    can = kernels.available("bfloat16") is None
    assert method.kernel_used == kernels.name("bfloat16" if can else "float32")


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
    call = AttentionCall(SequenceInfo(valid=valid, causal=causal, log_multiplicity=counts), 0.25, 0)
    method = Vanilla(kernel="native")
    got, expected = (m.attend(query, key, value, call) for m in (method, Vanilla()))
    assert method.kernel_used == kernels.name()
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
@pytest.mark.parametrize("products", products())
def test_block_sparse_reads_the_visible_keys_of_a_block(products):
    query, key, value = inputs(1, 150, 32, heads=2)
    shown = torch.rand(2, 150, 150, generator=torch.Generator().manual_seed(1)) < 0.3
    shown |= torch.eye(150, dtype=torch.bool)
    tiles = pad(shown, (0, 42, 0, 42)).unflatten(2, (3, 64)).unflatten(1, (3, 64)).transpose(2, 3)
    blocks = kernels.Blocks.of([[[0, 1, 2]] * 3] * 2)
    blocks = kernels.Blocks(blocks.starts, blocks.keys, words_of(tiles).flatten(0, 2))
    output = kernels.block_sparse(query, key, value, 0.2, blocks, products=products)
    exact = scaled_dot_product_attention(query, key, value, attn_mask=shown, scale=0.2)
    assert error(output, exact) < TOLERANCE[products]


@native
def test_block_sparse_and_causal():
    query, key, value = inputs(1, 300, 32)
    blocks = kernels.Blocks.of([[[0, i - 1, i] if i > 1 else list(range(i + 1)) for i in range(5)]])
    block = torch.arange(300) // 64
    read = (block == 0) | (block[:, None] - block <= 1)
    output = kernels.block_sparse(query, key, value, 0.2, blocks, causal=True)
    exact = scaled_dot_product_attention(query, key, value, attn_mask=read.tril(), scale=0.2)
    assert error(output, exact) < 1e-6


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
    call = AttentionCall(SequenceInfo(shifted, valid, causal=causal), 0.2, 0, Buckets(4, reach))
    method = Vanilla("native", products)
    got, expected = (m.attend(query, key, value, call) for m in (method, VanillaEager()))
    assert method.kernel_used == kernels.name(products)
    for b, first in enumerate((0, n // 3)):
        assert error(got[b, :, first:], expected[b, :, first:]) < TOLERANCE[products]


@native
def test_a_position_bias_with_gaps_is_left_to_torch():
    query, key, value = inputs(1, 90, 32)
    call = AttentionCall(SequenceInfo(torch.arange(90)[None] * 2), 0.2, 0, Buckets(4, 50))
    expected = VanillaEager().attend(query, key, value, call)
    for method in (Vanilla("native"), IceFormer(k=90)):
        assert error(method.attend(query, key, value, call), expected) < 1e-5
        assert method.kernel_used == "torch (a position bias, and gaps among the positions)"


@native
@pytest.mark.parametrize("reach", REACHES[1:3])
@pytest.mark.parametrize("n", [1024, 1000])
def test_bigbird_native_takes_a_position_bias(n, reach):
    query, key, value = inputs(2, n, 32)
    call = AttentionCall(SequenceInfo(), 0.2, 0, Buckets(4, reach))
    methods = [BigBird(kernel=kernel) for kernel in ("native", "torch")]
    got, expected = (m.attend(query, key, value, call) for m in methods)
    assert error(got, expected) < 1e-6
    assert methods[0].kernel_used == kernels.name()


@native
def test_one_thread_and_two_give_the_same():
    query, key, value = inputs(1, 500, 64)
    calls = [AttentionCall(SequenceInfo(causal=causal), 0.125, 0) for causal in (False, True)]
    threads = torch.get_num_threads()
    outputs = []
    for count in (1, 2):
        torch.set_num_threads(count)
        methods = IceFormer(), Vanilla("native")
        outputs.append([m.attend(query, key, value, c) for m in methods for c in calls])
    torch.set_num_threads(threads)
    assert all(map(torch.equal, *outputs))


@native
def test_torch_and_the_kernels_share_one_openmp_runtime():
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libomp" in line}
    assert len(runtimes) == 1, runtimes


def test_what_the_kernels_refuse_they_refuse_in_words():
    query, key, value = inputs(1, 10, 16)
    for changed, reason in [
        ([x.double() for x in (query, key, value)], "not float32 or bfloat16"),
        ([x.requires_grad_() for x in inputs(1, 10, 16)], "a gradient is wanted"),
        ([query[:, :, :0], key, value], "nothing to read"),
    ]:
        done = kernels.dense(*changed, 0.25)
        assert done == (kernels.available() or reason)


def test_training_takes_the_torch_path():
    query, key, value = (x.requires_grad_() for x in inputs(1, 10, 16))
    method = Vanilla(kernel="native")
    method.attend(query, key, value, AttentionCall(SequenceInfo(), 0.25, 0)).sum().backward()
    assert method.kernel_used.startswith("torch (") and query.grad is not None


@native
def test_auto_is_native_where_that_is_no_slower():
    method = DenseAttention()
    for n, used in ((255, "torch (fewer than 256 tokens)"), (256, kernels.name())):
        object.__setattr__(method, "kernel_used", "")
        method.attend(*inputs(1, n, 16), AttentionCall(SequenceInfo(), 0.25, 0))
        assert method.kernel_used == used
        assert (method.exact_twin() is None) == (n < 256)
    assert method.exact_twin() == DenseAttention("native")


def test_vanilla_is_torch_by_default():
    assert Vanilla().kernel == "torch"
