"""Equalities, traps and hand examples known of the official implementations, beyond those in the
tests of each method."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from methods.base import AttentionCall, Method, SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.bigbird.block_pattern import BlockGrid
from methods.fourier.dct import dct, idct, resample
from methods.fourier.fourier import Fourier
from methods.parts.attention import exact_attention
from methods.vcc.vcc import VCC
from tests.methods.test_fourier import D as WIDTH
from tests.methods.test_fourier import Toy as FourierToy
from tests.methods.test_fourier import numbers
from tests.methods.vcc_twin import rows, toys


class Identity:
    """An attention layer with identity projections, no residual; d = 1."""

    def __init__(self, counted=True):
        self.counted = counted

    def __call__(self, hidden, sequence):
        if not self.counted:
            sequence = sequence.replace(log_multiplicity=None)
        x = hidden[:, None]
        return exact_attention(x, x, x, AttentionCall(sequence, 1.0, 0))[:, 0]

    def scores(self, queries, query_sequence, keys, key_sequence):
        return (queries @ keys.mT)[:, None]


def relative(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


# BigBird


def test_bigbird_patterns_leave_numpys_random_state_alone():
    before = np.random.get_state()[1].copy()
    BigBird(seed=5).pattern().table(BlockGrid(40, 1, 39), 2, 0)
    assert (np.random.get_state()[1] == before).all()


def test_bigbird_is_never_full_by_random_blocks_alone():
    """Of 8 blocks rows 1 and 6 read 4 + 3 and still miss one; the rows between read all."""
    table = BigBird().pattern().table(BlockGrid(8, 1, 7), 4, 0)
    read = (table < 8).sum(-1)
    assert read[:, [0, -1]].eq(7).all() and read[:, 1:-1].eq(8).all()


# VCC


def test_vcc_compresses_unequal_tokens_to_their_mean():
    """P = [1], C = [0, 2], k = 2: the mean 1, read twice, gives 1; exact attention 1.575210."""
    hidden = torch.tensor([1.0, 0, 2], dtype=torch.float64).view(1, 3, 1)
    sequence = SequenceInfo(vip=torch.tensor([[True, False, False]]))
    outputs = [
        VCC(k=2, h=h, plain_layers=0).encode([Identity()], hidden, sequence)[0, 0, 0].item()
        for h in (0, 1)
    ]
    assert outputs == pytest.approx([1.0, 1.575210], abs=1e-6)


def test_vcc_without_multiplicity_isnt_exact_on_constant_blocks():
    make = torch.Generator().manual_seed(1)
    blocks = torch.randn(1, 6, 1, generator=make, dtype=torch.float64).repeat_interleave(4, 1)
    hidden = torch.cat((torch.ones(1, 1, 1, dtype=torch.float64), blocks), 1)
    sequence = SequenceInfo(vip=torch.arange(25)[None] < 1)
    exact = Method().encode([Identity()], hidden, sequence)
    method = VCC(k=4, h=2, plain_layers=0)
    assert relative(method.encode([Identity()], hidden, sequence), exact) < 1e-12
    assert relative(method.encode([Identity(counted=False)], hidden, sequence), exact) > 0.01


def test_vcc_error_falls_with_every_block_that_is_split():
    """Of the VIP tokens, on the mean of many inputs; nothing is left where all are split."""
    errors = []
    for h in (0, 1, 4, 8, 12, 14):
        method = VCC(k=4, h=h, plain_layers=0)
        total = 0.0
        for seed in range(64):
            hidden, sequence = rows(60, seed=seed)
            sequence = sequence.replace(vip=torch.arange(60)[None] < 4)
            exact = Method().encode(toys(1, biased=False), hidden, sequence)[sequence.vip]
            output = method.encode(toys(1, biased=False), hidden, sequence)[sequence.vip]
            total += relative(output, exact)
        errors.append(total / 64)
    assert errors == sorted(errors, reverse=True) and errors[-1] < 1e-12 < errors[-2]


def test_vcc_doesnt_care_where_vip_tokens_sit():
    hidden, sequence = rows(61)
    method = VCC(k=4, h=3, plain_layers=0)
    output = method.encode(toys(), hidden, sequence)
    vip = sequence.vip[0]
    order = torch.cat((torch.arange(61)[~vip], torch.arange(61)[vip]))  # all of them at the end
    moved = SequenceInfo(
        positions=sequence.positions[:, order], valid=None, vip=sequence.vip[:, order]
    )
    there = method.encode(toys(), hidden[:, order], moved)
    torch.testing.assert_close(there, output[:, order], rtol=1e-10, atol=1e-10)


# Fourier


@pytest.mark.parametrize("n", [1, 2, 5, 127, 2047])
def test_dct_and_back_is_the_same_in_float32(n):
    x = numbers(2, n, 3).float()
    torch.testing.assert_close(idct(dct(x, n), n), x, rtol=0, atol=2e-6)


def test_a_constant_grows_by_the_root_of_what_is_cut_away():
    """√(N/L), as in the official code: 2.2361 at r = 0.2; with `rescale` it stays."""
    x = torch.full((1, 20, 2), 3.0, dtype=torch.float64)
    assert resample(x, 4).allclose(torch.tensor(3 * 2.2360680).double())
    read = {}
    for rescale in (False, True):
        method = Fourier(r=0.2, upsample=False, rescale=rescale)
        hidden, _ = method.encode_shorter([lambda hidden, sequence: hidden], x, SequenceInfo())
        assert hidden.shape == (1, 4, 2)
        read[rescale] = hidden.mean().item()
    assert read == pytest.approx({False: 3 * math.sqrt(5), True: 3.0})


def test_rescaled_by_hand():
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)[None, :, None]
    method = Fourier(r=0.5, upsample=False, rescale=True)
    hidden, _ = method.encode_shorter([lambda hidden, sequence: hidden], x, SequenceInfo())
    assert hidden.flatten().tolist() == pytest.approx([1.3848, 3.6152], abs=1e-4)


def test_every_frequency_isnt_vanilla_with_a_global_residual_or_a_normed_one():
    hidden, sequence = numbers(1, 24, WIDTH), SequenceInfo()
    layers = [FourierToy(seed) for seed in range(3)]
    exact = Method().encode(layers, hidden, sequence)
    alone = Fourier(r=1.0, global_residual=False)
    assert relative(alone.encode(layers, hidden, sequence), exact) < 1e-9
    for other in (Fourier(r=1.0), Fourier(r=1.0, global_residual=False, residual="normed")):
        assert relative(other.encode(layers, hidden, sequence), exact) > 0.01


@pytest.mark.parametrize("n, r", [(20, 0.5), (21, 0.3), (64, 0.2)])
def test_upsampling_takes_the_nearest_state(n, r):
    x = numbers(1, n, 3)
    same = [lambda hidden, sequence: hidden]
    method = Fourier(r=r, global_residual=False)
    short, _ = Fourier(r=r, upsample=False).encode_shorter(same, x, SequenceInfo())
    expected = interpolate(short.mT, size=n, mode="nearest").mT
    torch.testing.assert_close(method.encode(same, x, SequenceInfo()), expected)
