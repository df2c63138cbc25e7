"""VCC (arXiv 2305.04241) with a supervised selection of blocks. The selection itself has no
gradient, and a small model trained without one leaves the blocks that hold the answers among the
coarse ones. (The official code gets a gradient by scaling the states of the selected blocks.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer
from methods.vcc.selection import Ranking
from methods.vcc.tree import Tree, sequence_info
from methods.vcc.vcc import VCC


@dataclass(frozen=True)
class BlockSupervisedVCC(VCC):
    """VCC that also computes a loss for the blocks that should be selected.

    needed  [c, 2] int64: a row, and the place in it of a token that is not VIP; None: no loss
    missed  for each compressed layer the mean of -log of the share that the block of such a token
            has of what blocks are ranked by: exp(score), summed over VIP tokens and heads (eq. 53)
    """

    needed: Tensor | None = None
    missed: list[Tensor] = field(default_factory=list, compare=False)

    def rank(self, layer: Layer, vips: Tensor, vip_facts: Tensor, tree: Tree) -> Ranking:
        if self.needed is not None:
            facts, means = tree.mean_facts(tree.blocks), tree.means(tree.blocks)
            scores = layer.scores(vips, sequence_info(vip_facts), means, sequence_info(facts))
            no_vip, empty = vip_facts[:, None, :, None, 1] == 0, facts[..., 1] == 0
            ranked = scores.masked_fill(no_vip, -math.inf).logsumexp((1, 2))
            shares = ranked.masked_fill(empty, -math.inf).log_softmax(-1)
            row, place = self.needed.unbind(1)
            leaf_facts = tree.leaf_facts(tree.blocks).unflatten(1, (-1, self.k))
            held = leaf_facts[row]
            here = ((held[..., 0] == place[:, None, None]) & (held[..., 1] > 0)).any(-1)
            self.missed.append(-shares[row][here].mean())
        return super().rank(layer, vips, vip_facts, tree)
