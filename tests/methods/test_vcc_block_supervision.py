"""VCC with a supervised selection of blocks: it computes what VCC does, and a loss."""

from typing import get_args

import pytest
import torch

from bench.models.t5 import T5Family
from methods.base import SequenceInfo
from methods.vanilla import Vanilla
from methods.vcc.block_supervision import BlockSupervisedVCC
from methods.vcc.selection import Selection
from methods.vcc.vcc import VCC

SIZES = {"k": 4, "h": 2, "segment": 16}
IDS = torch.randint(3, 64, (2, 35), generator=torch.Generator().manual_seed(0))
SEQUENCE = SequenceInfo(vip=torch.arange(35).expand(2, 35) < 3)
NEEDED = torch.tensor([[0, 3], [1, 34]])  # the first token of block 0, the last one of block 7


def missed(model):
    model.method = method = BlockSupervisedVCC(**SIZES, needed=NEEDED)
    model.encode(IDS, SEQUENCE)
    return torch.stack(method.missed)


def test_it_computes_what_vcc_does():
    model = T5Family.tiny(VCC(**SIZES))
    with torch.no_grad():
        right = model.encode(IDS, SEQUENCE)
        model.method = BlockSupervisedVCC(**SIZES, needed=NEEDED)
        assert model.encode(IDS, SEQUENCE).equal(right)


@pytest.mark.parametrize("selection", get_args(Selection))
def test_its_loss_is_of_what_blocks_are_ranked_by(selection):
    """By hand: a head and a VIP token, then another, that score four blocks of one token each."""
    scores = torch.tensor([[[[0.0, 1, 2, 3], [9, 9, 0, 9]]]])

    def layer(hidden, info):
        return hidden

    layer.scores = lambda *_: scores
    method = BlockSupervisedVCC(
        k=1, h=1, plain_layers=0, selection=selection, needed=torch.tensor([[0, 4]])
    )
    vip = torch.arange(6)[None] < 2
    method.encode([layer], torch.zeros(1, 6, 1), SequenceInfo(vip=vip))
    attention = scores.softmax(-1) if selection == "attention" else scores.exp()
    importance = attention.sum((0, 1, 2))
    expected = -(importance[2] / importance.sum()).log()
    torch.testing.assert_close(method.missed[0], expected)


def test_its_loss_trains_the_selection():
    model = T5Family.tiny(Vanilla())
    before = missed(model)
    assert before.shape == (2,), "one for each compressed layer"
    optimizer = torch.optim.Adam(model.model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        missed(model).sum().backward()
        optimizer.step()
    assert (missed(model) < before - 0.5).all()
    selected: list[torch.Tensor] = []

    class Recorded(VCC):
        def rank(self, *inputs):
            ranking = super().rank(*inputs)
            selected.append(ranking.blocks[:, : self.h])
            return ranking

    model.method = Recorded(**SIZES)
    with torch.no_grad():
        model.encode(IDS, SEQUENCE)
    for fine in selected:  # the ids of row 1's blocks start at 8
        assert 0 in fine[0] and 15 in fine[1]
