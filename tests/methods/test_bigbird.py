"""BigBird against dense attention under its mask written out token by token, and by hand."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from methods import kernels
from methods.base import AttentionCall, SequenceInfo, Unsupported, Workload
from methods.bigbird.bigbird import BigBird
from methods.bigbird.block_pattern import BlockGrid
from methods.bigbird.etc import BigBirdETC
from methods.vanilla import VanillaEager
from tests.methods.hand import inputs, masked, padded, row_by_row, slope
from tests.methods.native import native

HEADS, SIZE = 2, 6
SMALL = BigBird(block_size=4, random=1, kernel="torch")
ETC = BigBirdETC(block_size=4, random=1, g=6, kernel="torch")
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def times(method, n, layer, extra=0):
    """[H, n, n]: how often a query counts a key, for one row without padding."""
    b = method.block_size
    front = math.ceil(extra / b)
    block = torch.cat((torch.arange(extra) // b, front + torch.arange(n - extra) // b))
    blocks = int(block[-1]) + 1
    first, stop = (front, blocks) if isinstance(method, BigBirdETC) else (1, blocks - 1)
    outside = blocks - (stop - first)
    if blocks <= outside + method.window + 2 * method.random:
        return torch.ones(HEADS, n, n, dtype=torch.float64)
    table = method.pattern().table(BlockGrid(blocks, first, stop), HEADS, layer)
    count = torch.zeros(HEADS, blocks, blocks, dtype=torch.float64)
    for i in range(blocks):
        if not first <= i < stop:
            count[:, i] = 1
            continue
        for h in range(HEADS):
            for j in table[h, i - first].tolist():
                if j < blocks:
                    count[h, i, j] += 1
    return count[:, block][:, :, block]


def twin(method):
    """Dense attention of a row to each key as often as it is counted."""

    def attend(query, key, value, call):
        front = method.g if isinstance(method, BigBirdETC) else 0
        extra = int((call.sequence.positions < front).sum())
        return masked(query, key, value, call, times(method, query.shape[2], call.layer, extra))

    return attend


@pytest.mark.parametrize("method", [SMALL, ETC], ids=["itc", "etc"])
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("padding", ["none", "ends", "holes"])
def test_equals_its_twin(method, biased, padding):
    for n in (53, 64):
        counts = torch.arange(1.0, 3 * n + 1, dtype=torch.float64).view(3, n).log()
        holes = torch.arange(n)[None] % torch.tensor([[99], [5], [2]]) != 1
        valid = {"none": None, "ends": padded(n), "holes": holes}[padding]
        sequence = SequenceInfo(valid=valid, log_multiplicity=counts if n == 53 else None)
        call = AttentionCall(sequence, 0.4, 1, slope() if biased else None)
        ours = method.attend(*inputs(n, 3), call)
        expected = row_by_row(twin(method), *inputs(n, 3), call)
        torch.testing.assert_close(ours, expected, **EXACT)


@pytest.mark.parametrize("n", [1, 2, 3, 27, 28])
def test_short_inputs_are_read_exactly(n):
    """Up to window + 2 + 2r blocks: 7 of 4 tokens here."""
    call = AttentionCall(SequenceInfo(), 0.4, 0)
    exact = VanillaEager().attend(*inputs(n), call)
    torch.testing.assert_close(SMALL.attend(*inputs(n), call), exact, **EXACT)
    longer, exact = (one.attend(*inputs(29), call) for one in (SMALL, VanillaEager()))
    assert not torch.allclose(longer, exact)


def test_a_block_reads_as_many_as_the_paper_says():
    method, blocks = BigBird(), 12
    table = method.pattern().table(BlockGrid(12, 1, 11), 3, 0)
    count = (table < blocks).sum(-1)
    assert count[:, [0, -1]].eq(4 + 3).all() and count[:, 1:-1].eq(5 + 3).all()
    assert 2 * blocks + int(count[0].sum()) == 2 * 12 + 2 * 7 + 8 * 8 == 102
    for head in table.tolist():
        for i, read in enumerate(head, start=1):
            assert {0, 11, i - 1, i, i + 1} <= set(read)
            assert len({j for j in read if j < blocks}) == sum(j < blocks for j in read)


def test_random_blocks_alone_never_read_all():
    """With 8 blocks, rows 1 and 6 read 4 + 3 and still miss one; the rows between read all."""
    read = (BigBird().pattern().table(BlockGrid(8, 1, 7), 4, 0) < 8).sum(-1)
    assert read[:, [0, -1]].eq(7).all() and read[:, 1:-1].eq(8).all()


def test_weights_are_shared_by_the_blocks_read():
    """K = 0 and V = one-hot(block): the output is 1/(5+r) on the blocks read."""
    method = BigBird(block_size=1, random=3, kernel="torch")
    n = 20
    zeros = torch.zeros(1, HEADS, n, n, dtype=torch.float64)
    value = torch.eye(n, dtype=torch.float64).expand(1, HEADS, n, n)
    read = method.attend(zeros, zeros, value, AttentionCall(SequenceInfo(), 1.0, 0))[0]
    assert set(read[:, 2:-2].unique().tolist()) == {0.0, 1 / 8}
    assert set(read[:, [1, -2]].unique().tolist()) == {0.0, 1 / 7}
    torch.testing.assert_close(read[:, [0, -1]], torch.full((HEADS, 2, n), 1 / n).double())


def test_random_blocks_are_uniform():
    table = torch.cat(
        [BigBird(random=2).pattern().table(BlockGrid(12, 1, 11), 200, i) for i in range(5)]
    )
    row = table[:, 4]  # block 5 reads 0, 4, 5, 6, 11 and two of 1, 2, 3, 7, 8, 9, 10
    counts = torch.bincount(row.flatten(), minlength=12)
    assert counts[[0, 4, 5, 6, 11]].eq(1000).all()
    drawn = counts[[1, 2, 3, 7, 8, 9, 10]]
    assert int(drawn.sum()) == 2000 and (drawn - 2000 / 7).abs().max() < 75  # 5 deviations


def test_official_random_blocks_come_from_the_front():
    method = BigBird(random_region="official", multiplicity="counted")
    for n, last in ((1024, 15), (4096, 15), (1536, 9)):
        blocks = n // 64
        table = method.pattern().table(BlockGrid(blocks, 1, blocks - 1), 8, 0)
        for head in table.tolist():
            for i, read in enumerate(head, start=1):
                drawn = sorted(j for j in read if j < blocks)
                for j in {0, blocks - 1, i - 1, i, i + 1}:
                    drawn.remove(j)
                assert len(set(drawn)) == 3 and set(drawn) <= set(range(1, last + 1))
    assert (method.pattern().table(BlockGrid(16, 1, 15), 8, 0) == 15).sum(-1).max() == 2
    once = dataclasses.replace(method, multiplicity="once")
    assert (once.pattern().table(BlockGrid(16, 1, 15), 8, 0) == 15).sum(-1).max() == 1
    with pytest.raises(Unsupported, match="draw from"):
        BigBird(256, random_region="official").pattern().table(BlockGrid(16, 1, 15), 1, 0)


@pytest.mark.parametrize("multiplicity", ["once", "counted"])
def test_a_block_drawn_twice_counts_as_asked(multiplicity):
    method = BigBird(random_region="official", multiplicity=multiplicity, kernel="torch")
    n = 1000  # 16 blocks of 64, as 1024 tokens have
    call = AttentionCall(SequenceInfo(), 0.4, 0)
    expected = row_by_row(twin(method), *inputs(n), call)
    torch.testing.assert_close(method.attend(*inputs(n), call), expected, **EXACT)


def test_patterns_follow_seed_layer_and_head_and_leave_no_trace():
    before, numpys = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    draw = [SMALL.pattern().table(BlockGrid(40, 1, 39), 2, layer) for layer in (0, 0, 1)]
    other = dataclasses.replace(SMALL, seed=1).pattern().table(BlockGrid(40, 1, 39), 2, 0)
    assert draw[0].equal(draw[1])
    assert not draw[0].equal(draw[2]) and not draw[0].equal(other)
    assert not draw[0][0].equal(draw[0][1])
    assert torch.random.get_rng_state().equal(before)
    assert (np.random.get_state()[1] == numpys).all()


@pytest.mark.parametrize("method", [SMALL, ETC], ids=["itc", "etc"])
def test_gradients_equal_the_twins(method):
    """Gradients have separate code."""

    def gradients(attend):
        bias = slope()
        bias.slopes.requires_grad_()
        leaves = [x.requires_grad_() for x in inputs(53, 2)]
        call = AttentionCall(SequenceInfo(valid=padded(53)[:2]), 0.4, 0, bias)
        attend(*leaves, call).square().sum().backward()
        return [x.grad for x in (*leaves, bias.slopes)]

    expected = gradients(lambda *given: row_by_row(twin(method), *given))
    for ours, theirs in zip(gradients(method.attend), expected, strict=True):
        torch.testing.assert_close(ours, theirs, **EXACT)


def test_bias_is_never_n_by_n():
    n, bias = 160, slope()
    SMALL.attend(*inputs(n), AttentionCall(SequenceInfo(), 0.4, 0, bias))
    assert bias.largest <= 2 * SMALL.block_size * n


class Toy:
    """A layer that only attends; it records the sequence it was given."""

    def __init__(self, method):
        self.method = method

    def __call__(self, hidden, sequence):
        self.sequence = sequence
        x = hidden.unflatten(2, (HEADS, -1)).transpose(1, 2)
        read = self.method.attend(x, x, x, AttentionCall(sequence, 0.4, 0))
        return hidden + read.transpose(1, 2).flatten(2)


def test_etc_equals_vanilla_over_extra_and_own_tokens_where_everything_is_read():
    method = BigBirdETC(block_size=4, g=6, kernel="torch")
    layer, exact = Toy(method), Toy(VanillaEager())
    hidden = inputs(12)[0].transpose(1, 2).flatten(2)
    means = hidden.view(1, 6, 2, -1).float().mean(2).double()  # stretches of two tokens
    output = method.encode([layer, layer], hidden, SequenceInfo())
    expected = torch.cat((means, hidden), 1)
    for _ in range(2):
        expected = exact(expected, SequenceInfo())
    torch.testing.assert_close(output, expected[:, 6:], rtol=1e-5, atol=1e-5)
    assert layer.sequence.positions[0, :7].tolist() == [1, 3, 5, 7, 9, 11, 0]


def test_etc_reads_whole_blocks_beside_its_extra_tokens():
    """The official radius of 84 reads equally far to the left and to the right of every token."""
    n, extra = 60, 6  # six extra tokens fill two blocks of four, then 15 blocks of the sequence
    query, key, value = inputs(extra + n)
    value.requires_grad_()
    method = dataclasses.replace(ETC, random=0)
    output = method.attend(query, key, value, AttentionCall(SequenceInfo(), 0.4, 0))
    reach = []
    for token in (24, 25, 27):
        at = output[0, :, extra + token].sum()
        (gradient,) = torch.autograd.grad(at, value, retain_graph=True)
        read = gradient.abs().sum((0, 1, 3)) > 0
        assert read[:extra].all()
        kept = read[extra:].nonzero()[:, 0]
        reach.append((token - int(kept.min()), int(kept.max()) - token))
    assert reach == [(4, 7), (5, 6), (7, 4)]


@native
@pytest.mark.parametrize("method", [BigBird(random=2), BigBirdETC(g=70)], ids=["itc", "etc"])
def test_native_kernel_agrees(method):
    call, singles = AttentionCall(SequenceInfo(), 0.4, 0), [x.float() for x in inputs(700)]
    ours = method.attend(*singles, call)
    assert method.kernel_used == kernels.name()
    plain = dataclasses.replace(method, kernel="torch").attend(*singles, call)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_state_is_linear_in_length():
    def shape(n):
        return Workload(length=n, batch=1, heads=2, head_size=8, layers=2, hidden_size=16)

    # 64 blocks: 2 that read 64, 62 that read 8
    assert BigBird().state_bytes(shape(4096)) == 4 * 2 * (2 * 64 + 62 * 8) * 64**2
    assert BigBird().state_bytes(shape(512)) == 4 * 2 * 512**2
