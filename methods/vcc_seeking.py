"""VCC (arXiv 2305.04241) whose choice of blocks can be trained. No gradient comes back from the
choice itself, and a small model that is trained on without one leaves the blocks that hold the
answers among the coarse ones. (The official code lets a gradient through by scaling what it reads.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer
from methods.vcc import VCC
from methods.vcc_tree import Tree, described


@dataclass(frozen=True)
class Seeking(VCC):
    """VCC that notes how far it is from choosing the blocks that are needed.

    needed  [c, 2] int64: a row, and a token in it that isn't VIP, by its place; None: notes nothing
    missed  for each compressed layer the mean of -log of the share that the block of such a token
            has of what blocks are ranked by: exp(score), summed over VIP tokens and heads (eq. 53)
    """

    needed: Tensor | None = None
    missed: list[Tensor] = field(default_factory=list, compare=False)

    def _select(
        self, layer: Layer, vips: Tensor, vip_facts: Tensor, tree: Tree
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.needed is not None:
            facts, means = tree.mean_facts(tree.blocks), tree.means(tree.blocks)
            scores = layer.scores(vips, described(vip_facts), means, described(facts))
            nobody, nothing = vip_facts[:, None, :, None, 1] == 0, facts[..., 1] == 0
            ranked = scores.masked_fill(nobody, -math.inf).logsumexp((1, 2))
            shares = ranked.masked_fill(nothing, -math.inf).log_softmax(-1)
            row, place = self.needed.unbind(1)
            held = tree.leaf_facts(tree.blocks).unflatten(1, (-1, self.k))
            here = ((held[row, :, :, 0] == place[:, None, None]) & (held[row, :, :, 1] > 0)).any(-1)
            self.missed.append(-shares[row][here].mean())
        return super()._select(layer, vips, vip_facts, tree)
