"""How VCC (arXiv 2305.04241, §3.3) ranks the blocks of a layer, and how the ranking learns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from methods.base import Layer
from methods.vcc.tree import Tree, sequence_info

Selection = Literal["paper", "official"]


@dataclass(frozen=True)
class Ranking:
    """The blocks of each row, [B, blocks], most important first; `shares`, in this order, are each
    block's share of all importance, with a gradient, or None where nothing is learned."""

    blocks: Tensor
    shares: Tensor | None


def rank_blocks(
    layer: Layer,
    vips: Tensor,
    vip_facts: Tensor,
    tree: Tree,
    selection: Selection,
    explore: float,
    learns: bool,
) -> Ranking:
    """vips [B, n_p, D] and vip_facts [B, n_p, 2] are the VIP tokens: see `Tree`."""
    facts = tree.mean_facts(tree.blocks)
    empty, no_vip = facts[:, None, None, :, 1] == 0, vip_facts[:, None, :, None, 1] == 0
    with torch.set_grad_enabled(learns):
        means = tree.means(tree.blocks)
        scores = layer.scores(vips, sequence_info(vip_facts), means, sequence_info(facts)).float()
        lowest = torch.finfo(scores.dtype).min
        if selection == "official":
            weights = scores.masked_fill(empty, lowest).softmax(-1).masked_fill(no_vip, 0)
            importance = weights.sum((1, 2))
            shares = importance / importance.sum(1, keepdim=True).clamp(min=1e-30)
        else:  # the logarithm keeps the order, and does not overflow
            importance = scores.masked_fill(no_vip, -math.inf).logsumexp((1, 2))
            shares = importance.masked_fill(empty[:, 0, 0], lowest).softmax(-1)
    importance = importance.detach()
    if vips.requires_grad and explore:
        drawn = torch.rand_like(importance[:, :1]) < explore
        importance = torch.where(drawn, torch.rand_like(importance), importance)
    importance = importance.masked_fill(empty[:, 0, 0], -math.inf)
    # Sorting n/k numbers costs nothing beside a layer; stable, so that ties within a row do not
    # depend on the rest of the batch.
    best = importance.argsort(dim=1, descending=True, stable=True)
    return Ranking(tree.blocks.gather(1, best), shares.gather(1, best) if learns else None)


def straight_through(shares: Tensor, h: int, k: int, n_p: int) -> Tensor:
    """[B, r, 1], all 1, for the fine tokens, the means and the VIP tokens. Their gradients are
    those of a block's share s, and of 1 - s for a mean: a token counts that much as a key, and a
    layer changes it that much (official: straight-through estimators)."""
    gradient = shares - shares.detach()
    fine = (1 + gradient[:, :h]).repeat_interleave(k, 1)
    vips = shares.new_ones(len(shares), n_p)
    return torch.cat((fine, 1 - gradient[:, h:], vips), 1)[..., None]
