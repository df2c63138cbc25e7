"""Equalities, traps and hand examples known of the official implementations, beyond those in the
tests of each method."""

import numpy as np
import pytest
import torch

from methods.base import SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.bigbird.block_pattern import BlockGrid
from methods.fourier.fourier import Fourier
from methods.vcc.vcc import VCC
from tests.methods.vcc_twin import Identity

# BigBird


def test_bigbird_patterns_leave_numpys_random_state_alone():
    before = np.random.get_state()[1].copy()
    BigBird(seed=5).pattern().table(BlockGrid(40, 1, 39), 2, 0)
    assert (np.random.get_state()[1] == before).all()


def test_bigbird_is_never_full_by_random_blocks_alone():
    """With 8 blocks, rows 1 and 6 read 4 + 3 and still miss one; the rows between read all."""
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


# Fourier


def test_rescaled_by_hand():
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)[None, :, None]
    method = Fourier(r=0.5, upsample=False, rescale=True)
    hidden, _ = method.encode_shorter([lambda hidden, sequence: hidden], x, SequenceInfo())
    assert hidden.flatten().tolist() == pytest.approx([1.3848, 3.6152], abs=1e-4)
