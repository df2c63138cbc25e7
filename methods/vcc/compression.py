"""One layer of VCC (arXiv 2305.04241, §3): it reads fine blocks token by token, coarse blocks as
their means, and the VIP tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from methods.base import Layer
from methods.vcc.selection import Ranking
from methods.vcc.tree import Tree, gather_rows, sequence_info


def compressed_layer(
    layer: Layer,
    tree: Tree,
    vips: Tensor,
    vip_facts: Tensor,
    ranking: Ranking,
    h: int,
    renormalise: bool,
) -> Tensor:
    """The VIP tokens [B, n_p, D] after the layer; the tree is updated with the other tokens (eq.
    7). `vip_facts` [B, n_p, 2]: see `Tree`."""
    fine, coarse = ranking.blocks[:, :h], ranking.blocks[:, h:]
    rms = root_mean_square(vips, vip_facts) if renormalise else None
    states = torch.cat((tree.leaves(fine, rms), tree.means(coarse), vips), 1)
    facts = torch.cat((tree.leaf_facts(fine), tree.mean_facts(coarse), vip_facts), 1)
    sizes = [states.shape[1] - coarse.shape[1] - vips.shape[1], coarse.shape[1], vips.shape[1]]
    place = facts[..., 0].argsort(dim=1, stable=True)  # by position: see T5's bias
    states, read = gather_rows(states, place), sequence_info(gather_rows(facts, place))
    if ranking.shares is None:
        states = layer(states, read)
    else:
        weight = gather_rows(straight_through(ranking.shares, h, sizes), place)
        assert read.log_multiplicity is not None
        counts = read.log_multiplicity + weight[..., 0].log()
        change = layer(states, read.replace(log_multiplicity=counts)) - states
        states = states + change * weight.to(states.dtype)
    leaves, means, vips = torch.split(gather_rows(states, place.argsort(1)), sizes, 1)
    tree.update(fine, leaves, coarse, means)
    return vips


def straight_through(shares: Tensor, h: int, sizes: list[int]) -> Tensor:
    """[B, r, 1], all 1, for the fine tokens, the means and the VIP tokens, of which there are
    `sizes`. Their gradients are those of a block's share s, and of 1 - s for a mean, as if a token
    counted s times as a key and a layer changed it s times as much (official: straight-through
    estimators)."""
    gradient = shares - shares.detach()
    fine = 1 + gradient[:, :h]
    if h:
        fine = fine.repeat_interleave(sizes[0] // h, 1)
    vips = shares.new_ones(len(shares), sizes[2])
    return torch.cat((fine, 1 - gradient[:, h:], vips), 1)[..., None]


def root_mean_square(tokens: Tensor, facts: Tensor) -> Tensor:
    """tokens [B, j, D] with facts [B, j, 2] → [B], over the tokens that exist."""
    there = (facts[..., 1:] > 0).to(tokens.dtype)
    total = (tokens.square().mean(-1, keepdim=True) * there).sum((1, 2))
    return (total / there.sum((1, 2)).clamp(min=1)).sqrt()
