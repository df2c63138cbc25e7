"""VCC whose choice of blocks is trained: it reads as VCC does, and says what its choice missed."""

from __future__ import annotations

import torch

from bench.models.t5 import T5Family
from methods.base import Sequence
from methods.vanilla import Vanilla
from methods.vcc import VCC
from methods.vcc_seeking import Seeking

SIZES = {"k": 4, "h": 2, "segment": 16}
IDS = torch.randint(3, 64, (2, 35), generator=torch.Generator().manual_seed(0))
SEQUENCE = Sequence(vip=torch.arange(35).expand(2, 35) < 3)
NEEDED = torch.tensor([[0, 3], [1, 34]])  # the first token of block 0, the last one of block 7


def missed(model):
    model.method = seeking = Seeking(**SIZES, needed=NEEDED)
    model.encode(IDS, SEQUENCE)
    return torch.stack(seeking.missed)


def test_it_reads_as_vcc_does():
    model = T5Family.tiny(VCC(**SIZES))
    with torch.no_grad():
        right = model.encode(IDS, SEQUENCE)
        model.method = Seeking(**SIZES, needed=NEEDED)
        assert model.encode(IDS, SEQUENCE).equal(right)


def test_what_it_missed_trains_the_choice():
    model = T5Family.tiny(Vanilla())
    begun = missed(model)
    assert begun.shape == (2,), "one for each compressed layer"
    optimizer = torch.optim.Adam(model.model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        missed(model).sum().backward()
        optimizer.step()
    assert (missed(model) < begun - 0.5).all()
    seen: list[torch.Tensor] = []

    class Watched(VCC):
        def _select(self, *given):
            chosen = super()._select(*given)
            seen.append(chosen[0])
            return chosen

    model.method = Watched(**SIZES)
    with torch.no_grad():
        model.encode(IDS, SEQUENCE)
    for fine in seen:  # row 1's blocks are named from 8 on
        assert 0 in fine[0] and 15 in fine[1]
