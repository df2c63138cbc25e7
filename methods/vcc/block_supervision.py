"""VCC (arXiv 2305.04241) with a supervised selection of blocks. The selection has no gradient, and
a small model trained without one doesn't learn to select the blocks that hold the answers. (The
official code gets a gradient by scaling the states of the selected blocks.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer
from methods.vcc.selection import Ranking, log_shares
from methods.vcc.tree import Tree
from methods.vcc.vcc import VCC


@dataclass(frozen=True)
class BlockSupervisedVCC(VCC):
    """VCC that also computes a loss for the blocks that should be selected.

    needed  [c, 2] int64: a row, and the index in it of a token that is not VIP; None: no loss
    missed  for each compressed layer, the mean of -log of the share of importance of the blocks
            with these tokens: see `selection.log_shares`
    """

    needed: Tensor | None = None
    missed: list[Tensor] = field(default_factory=list, compare=False)

    def rank(self, layer: Layer, vips: Tensor, votes: Tensor, tree: Tree) -> Ranking:
        if self.needed is not None:
            shares = log_shares(layer, vips, votes, tree, self.selection)
            row, place = self.needed.unbind(1)
            leaf_facts = tree.leaf_facts(tree.blocks).unflatten(1, (-1, self.k))
            held = leaf_facts[row]
            here = ((held[..., 0] == place[:, None, None]) & (held[..., 1] > 0)).any(-1)
            self.missed.append(-shares[row][here].mean())
        return super().rank(layer, vips, votes, tree)
