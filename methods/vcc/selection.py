"""How VCC (arXiv 2305.04241, §3.3) ranks the blocks of a layer, and how the ranking learns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from methods.base import Layer
from methods.vcc.tree import Tree, sequence_info

Selection = Literal["attention", "unnormalised"]


@dataclass(frozen=True)
class Ranking:
    """The blocks of each row, [B, blocks], most important first; `shares`, in this order, are each
    block's share of all importance, with a gradient; None if nothing is learned."""

    blocks: Tensor
    shares: Tensor | None


def log_shares(
    layer: Layer, vips: Tensor, votes: Tensor, tree: Tree, selection: Selection
) -> Tensor:
    """[B, blocks]: the logarithm of each block's share of all importance, very low for a block of
    padding. `vips` [B, n_p, D] are the tokens in VIP seats, `votes` [B, n_p, 2] their positions and
    1 for VIP tokens (see `Order`)."""
    facts, means = tree.mean_facts(tree.blocks), tree.means(tree.blocks)
    scores = layer.scores(vips, sequence_info(votes), means, sequence_info(facts)).float()
    lowest = torch.finfo(scores.dtype).min
    scores = scores.masked_fill(facts[:, None, None, :, 1] == 0, lowest)
    if selection == "attention":
        scores = scores.log_softmax(-1)
    no_vip = votes[:, None, :, None, 1] == 0
    return scores.masked_fill(no_vip, lowest).logsumexp((1, 2)).log_softmax(-1)


def rank_blocks(
    layer: Layer,
    vips: Tensor,
    votes: Tensor,
    tree: Tree,
    selection: Selection,
    explore: float,
    learns: bool,
) -> Ranking:
    """The blocks in the order of their shares (`log_shares`). In training, a row gets a random
    order with probability `explore`."""
    with torch.set_grad_enabled(learns):
        shares = log_shares(layer, vips, votes, tree, selection)
    importance = shares.detach()
    if vips.requires_grad and explore:
        drawn = torch.rand_like(importance[:, :1]) < explore
        importance = torch.where(drawn, torch.rand_like(importance), importance)
    importance = importance.masked_fill(tree.mean_facts(tree.blocks)[..., 1] == 0, -math.inf)
    # Sorting n/k numbers costs little compared with a layer; stable, so that ties within a row do
    # not depend on the rest of the batch.
    best = importance.argsort(dim=1, descending=True, stable=True)
    return Ranking(tree.blocks.gather(1, best), shares.gather(1, best).exp() if learns else None)
