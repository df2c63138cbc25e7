"""One source, every vector width: the kernels equal their torch twins with vectors of each kind,
also of kinds that this CPU lacks: as vectors that the compiler splits, or under an emulator."""

import ctypes
import functools
import shutil
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from methods import kernels
from methods.base import AttentionCall, SequenceInfo
from methods.blasst import BLASST
from methods.kernels import build
from methods.kernels.codes import packed
from methods.nomad import NoMAD
from methods.parts import widths
from methods.parts.sparse_reading import rows_at
from methods.vanilla import Vanilla, VanillaEager
from tests.methods.decoder import call_of, workload
from tests.methods.emulated import Emulated
from tests.methods.native import TOLERANCE, Buckets, check_best_keys, error, inputs, select
from tests.methods.prefill import turning

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
BY_NAME = {width.name: width for width in widths.WIDTHS}
PORTABLE = ("-DPORTABLE_BYTES=64", "-Wno-psabi", "-O0")  # the compiler is slower than the test


@functools.cache
def loaded(kind, folder):
    """The library of a kind of vectors, and its width, or why it can't run here."""
    if kind.startswith("neon"):
        if not (shutil.which(CROSS) and shutil.which(EMULATOR)):
            return f"{CROSS} or {EMULATOR} is not installed"
        width = BY_NAME["neon"].on(() if kind.endswith("alone") else {"asimddp"})
        return Emulated(CROSS, width.flags, EMULATOR, folder / kind), width
    if not shutil.which("g++"):
        return "g++ is not installed"
    if kind == "avx512 by the compiler":
        width = replace(BY_NAME["avx512"], flags=PORTABLE)
    else:
        of_this_cpu = {width.name: width for width in widths.available()}
        name = kind.split()[0]
        if name not in of_this_cpu:
            return f"this CPU has no {name}"
        width = of_this_cpu[name]
        if kind.endswith("alone"):
            width = BY_NAME[width.name]
    return ctypes.CDLL(str(build.built(["g++"], width))), width


@pytest.fixture(params=["avx512", "avx512 by the compiler", "avx2", "neon"])
def width(request, tmp_path_factory, monkeypatch):
    """Makes the kernels run with vectors of this kind."""
    found = loaded(request.param, tmp_path_factory.getbasetemp())
    if isinstance(found, str):
        pytest.skip(found)
    monkeypatch.setattr(build, "load", lambda: found)
    return found[1]


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_dense_equals_torch(width, causal, products, monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda products="": None)  # bfloat16 by other means
    query, key, value = inputs(1, 131, 48)
    valid = torch.ones(1, 131, dtype=torch.bool)
    valid[0, :20] = False
    call = AttentionCall(SequenceInfo(valid=valid, causal=causal), 0.2, 0, Buckets(4, 3))
    method = Vanilla("native", products)
    got, expected = (m.attend(query, key, value, call) for m in (method, VanillaEager()))
    assert error(got[:, :, 20:], expected[:, :, 20:]) < TOLERANCE[products]
    assert method.kernel_used == f"native {width.name} {products}"


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
def test_skipping_leaves_out_the_tiles_that_torch_does(width, products, monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda products="": None)
    parts, call = turning(500), AttentionCall(SequenceInfo(causal=True), 0.4, 0)
    method, plain = BLASST(kernel="native", products=products), BLASST(kernel="torch")
    got = method.attend(*parts, call)
    expected = plain.attend(*(x.double() for x in parts), call)
    assert method.tiles == plain.tiles and 0.2 < method.skipped < 1
    assert error(got, expected) < TOLERANCE[products]
    assert method.kernel_used == f"native {width.name} {products}"


def test_block_sparse_equals_a_mask(width):
    query, key, value = inputs(1, 200, 32)
    blocks = [[0, 2], [1], [3, 0, 1], [2]]
    mask = torch.zeros(4, 4, dtype=torch.bool)
    for i, row in enumerate(blocks):
        mask[i, row] = True
    mask = mask.repeat_interleave(64, 0).repeat_interleave(64, 1)[:200, :200]
    output = kernels.block_sparse(query, key, value, 0.2, kernels.Blocks.of([blocks]))
    exact = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.2)
    assert error(output, exact) < 1e-6


@pytest.mark.parametrize("search", ["quantized", "dci"])
@pytest.mark.parametrize("n, d", [(1, 16), (63, 16), (700, 48)])
def test_best_keys_equal_torch(width, n, d, search):
    query, key, value = inputs(1, n, d, heads=2)
    for bias in (None, Buckets(2, 3)):
        call = AttentionCall(SequenceInfo(causal=True), 0.2, 0, bias)
        check_best_keys(search, query, key, value, call, step=1 if n < 99 else 5)


def test_best_keys_of_blocks(width):
    query, key, value = inputs(1, 300, 16, heads=2)
    call = AttentionCall(SequenceInfo(), 0.2, 0)
    kinds = (("blocks", "native"), ("exact", "torch"))
    ids, all_ids = (select(s, k, query, key, value, call, 5)[1] for s, k in kinds)
    assert (ids[..., None] == all_ids[..., None, :]).any(-1).float().mean() > 0.95


@pytest.mark.parametrize("width", ["avx512 alone", "neon alone"], indirect=True)
def test_8_bit_products_without_their_instruction(width):
    query, key, value = inputs(1, 200, 16, heads=1)
    call = AttentionCall(SequenceInfo(causal=True), 0.2, 0)
    check_best_keys("quantized", query, key, value, call, step=5)


@pytest.mark.parametrize("channels", [1, 4])
def test_lookups_equal_torch(width, channels):
    query, key, value = inputs(1, 70, 48, heads=6, key_heads=2)
    steps = []
    for kernel in ("native", "torch"):
        method = NoMAD(channels, kernel)
        cache = method.kv_cache(workload(69))
        cache.take(*(x[:, :, :69] for x in (query, key, value)), call_of(69))
        steps.append(cache.decode(*(x[:, :, 69:] for x in (query, key, value)), call_of(70)))
        used = f"native {width.name} int8" if kernel == "native" else "torch"
        assert method.kernel_used == used
    torch.testing.assert_close(*steps, atol=5e-3, rtol=0)


CODES = [
    # bits, channels of a head, of a group, keys of a block
    (8, 48, 48, None),
    (8, 64, 32, None),
    (4, 96, 32, None),
    (4, 64, 64, None),
    (2, 64, 32, None),
    (2, 128, 128, None),
    (2, 64, 64, 8),
    (3, 64, 64, None),
    (3, 128, 64, None),
    (4, 32, 32, 64),
]


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_codes_equal_torch(width, half):
    draw = torch.Generator().manual_seed(0)
    for bits, d, group, block in CODES:
        entries, numbers = 3 * (block or 7), torch.randn(16, generator=draw)
        plain = torch.randint(0, 1 << bits, (2, 2, entries, d), generator=draw)
        sizes = (entries, d // group) if block is None else (entries // block, d)
        scales = (2 * torch.rand(2, 2, *sizes, generator=draw) - 1).to(half)
        minima = None if bits == 8 else torch.randn(2, 2, *sizes, generator=draw).to(half)
        codes = (plain - 128).to(torch.int8) if bits == 8 else packed(plain.byte(), bits)
        given = kernels.Codes(codes, scales, minima, bits, tuple(numbers.tolist()), block)
        full = codes.float() if bits == 8 else numbers[plain]
        wide = [x if x is None else x.float() for x in (scales, minima)]
        for i, x in enumerate(wide):
            if x is not None and block is None:
                wide[i] = x.repeat_interleave(group, 3)
            elif x is not None:
                wide[i] = x.repeat_interleave(block, 2)
        keys = full * wide[0] + (0 if wide[1] is None else wide[1])
        for rows in (1, 2, 3, 6):
            if block is not None or minima is None:
                query = torch.randn(2, 2 * rows, 1, d, generator=draw)
                scores = kernels.code_scores(query, given)
                expected = query.view(2, 2, rows, d) @ keys.mT
                assert error(scores.view_as(expected), expected) < 1e-6
            if block is None:
                weights = torch.rand(2, 2 * rows, 1, entries, generator=draw)
                sums = kernels.code_sums(weights, given)
                expected = weights.view(2, 2, rows, entries) @ keys
                assert error(sums.view_as(expected), expected) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_equal_torch(width, dtype):
    """Storage with room, read by key heads or by query heads, at indices or whole, and rows that
    aren't whole vectors."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 1100, 83, generator=draw).to(dtype)[:, :, :1050]
    for heads, rows, some in ((2, 1, 9), (4, 3, 1050), (2, 7, 30)):
        place = torch.randint(1050, (2, heads, some), generator=draw)
        for places in (None, place):
            every = place if places is not None else torch.arange(1050).expand(2, heads, -1)
            read = rows_at(x.float(), every)
            query = torch.randn(2, heads, rows, 80, generator=draw)
            scores = kernels.row_scores(query, x[..., :80], places)
            assert error(scores, query @ read[..., :80].mT) < 1e-6
            weights = torch.rand(2, heads, rows, every.shape[2], generator=draw)
            assert error(kernels.row_sums(weights, x, places), weights @ read) < 1e-6
