"""VCC: VIP-token centric compression (Zeng et al., arXiv 2305.04241).

The query's tokens (VIP) stay whole. Of the rest, each layer reads the h blocks of k tokens that
its VIP tokens attend to most token by token (fine), and every other block as its mean (coarse),
which counts as often as it has tokens. The layer itself is the ordinary one, at r ≪ n tokens.
What a layer adds to a mean it adds to all tokens of the block (eq. 17), so a tree of means and
offsets holds the whole sequence, and a layer touches only r of its nodes (§3.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from methods.base import Layer, Method, Sequence, Shape, Unsupported
from methods.packed import Packed
from methods.vanilla import Vanilla
from methods.vcc_segments import GROUP_TOKENS, in_segments
from methods.vcc_tree import Multiplicity, Order, Tree, described, rows

Selection = Literal["paper", "official"]
CAUSAL = "VCC compresses encoders: a mean of tokens would show a causal model its future"


@dataclass(frozen=True)
class VCC(Vanilla):
    """An encoder compressed around its VIP tokens, with two resolutions (§4). Its layers read as
    vanilla's do, by the same choice of kernel.

    k             tokens in a block
    h             blocks that a layer reads token by token; as many as there are, or more, is exact
    segment       tokens in a segment of the plain layers, each of which sees no other
    plain_layers  layers before compression; None: a third (4 of 12; the paper's large: 6 of 24)
    n_p           most VIP tokens that a row may have; None: any number
    multiplicity  how often a mean counts as a key: its valid tokens, or "k", padding or not, as
                  in the official code
    selection     what makes a block important: "paper" sums exp(score) over the VIP tokens and
                  heads (eq. 53); "official" averages the softmax over blocks, as the official
                  code and the words of §3.3 do
    explore       chance that a row's blocks are drawn at random, with gradients on only
                  (official: 0.1)
    straight_through  with gradients on, how important a block is learns as well (official: true;
                  the paper's choice has no gradient): see `_weights`

    Padding comes out as zeros. Raises ValueError for a row with no VIP token, or more than n_p.
    """

    k: int = 16
    h: int = 90
    segment: int = 512
    plain_layers: int | None = None
    n_p: int | None = None
    multiplicity: Multiplicity = "valid"
    selection: Selection = "paper"
    explore: float = 0.0
    straight_through: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("k", 1), ("h", 0), ("segment", 1), ("plain_layers", 0), ("n_p", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"vcc: {name} is {value}; the least is {least}")
        for name, kind in (("multiplicity", Multiplicity), ("selection", Selection)):
            if getattr(self, name) not in get_args(kind):
                accepted = " or ".join(get_args(kind))
                raise ValueError(f"vcc: {name} is {getattr(self, name)!r}; it is {accepted}")
        if not 0 <= self.explore <= 1:
            raise ValueError(f"vcc: explore is {self.explore}; it is a chance, 0 to 1")

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        if sequence.causal:
            raise Unsupported(CAUSAL)
        packed = Packed.of(hidden, sequence)  # padding at the end cuts no segment or block
        vip = sequence.vip
        if vip is not None and packed.order is not None:
            vip = vip.gather(1, packed.order)
        known = packed.sequence.replace(vip=vip)
        plain = self._plain(len(layers))
        states = in_segments(layers[:plain], packed.hidden, known, self.segment)
        states = self._compressed(layers[plain:], states, known)
        return packed.unpacked(states, hidden.shape[1])

    def unsupported(self, shape: Shape) -> str | None:
        if shape.causal:
            return CAUSAL
        if self._plain(shape.layers) > shape.layers:
            return f"plain_layers is {self.plain_layers}, and the model has {shape.layers} layers"
        return None

    def exact(self) -> Method:
        return replace(self, h=10**9, plain_layers=0)

    def small(self) -> Method:
        return replace(self, k=4, h=3, segment=16)

    def state_bytes(self, shape: Shape) -> int:
        """The tree (§3.4), and q, k, v and the output of the layer with most tokens: r (§3), or
        one group of segments."""
        blocks = math.ceil(shape.length / self.k)
        r = min(shape.length, (self.n_p or 0) + max(0, blocks - self.h) + self.h * self.k)
        if self._plain(shape.layers):
            r = max(r, min(shape.length, max(self.segment, GROUP_TOKENS // shape.batch)))
        tokens = shape.length + blocks + 4 * r
        return shape.bytes_per_element * shape.batch * tokens * shape.hidden_size

    def _plain(self, layers: int) -> int:
        return layers // 3 if self.plain_layers is None else self.plain_layers

    def _compressed(self, layers: Items[Layer], hidden: Tensor, known: Sequence) -> Tensor:
        """The layers after the plain ones, each on fine, coarse and VIP tokens."""
        order = Order(known, self.k)
        if self.n_p is not None and order.n_p > self.n_p:
            raise ValueError(f"vcc: a row has {order.n_p} VIP tokens; n_p allows {self.n_p}")
        if order.blocks <= self.h:  # all would be fine, in every layer
            return super().encode(layers, hidden, known)
        vips, tokens = order.split(hidden)
        vip_facts, facts = order.split(order.facts)
        tree = Tree(tokens, facts, self.k, self.multiplicity)
        for layer in layers:
            fine, coarse, shares = self._select(layer, vips, vip_facts, tree)
            read = torch.cat((tree.leaves(fine), tree.means(coarse), vips), 1)
            facts = torch.cat((tree.leaf_facts(fine), tree.mean_facts(coarse), vip_facts), 1)
            place = facts[..., 0].argsort(dim=1, stable=True)  # near tokens together: see T5's bias
            told, read = described(rows(facts, place)), rows(read, place)
            if shares is None:
                read = layer(read, told)
            else:
                weight = rows(self._weights(shares, order.n_p), place)
                assert told.log_multiplicity is not None
                heard = told.replace(log_multiplicity=told.log_multiplicity + weight[..., 0].log())
                read = read + (layer(read, heard) - read) * weight.to(read.dtype)
            sizes = [self.k * fine.shape[1], coarse.shape[1], order.n_p]
            leaves, means, vips = torch.split(rows(read, place.argsort(1)), sizes, 1)
            tree.update(fine, leaves, coarse, means)
        return order.undo(vips, tree.into_tokens())

    def _select(
        self, layer: Layer, vips: Tensor, vip_facts: Tensor, tree: Tree
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The blocks to read token by token [B, h], and the others [B, blocks-h]; and, where it
        learns, how much of all importance each of these has, [B, blocks]."""
        facts, learns = tree.mean_facts(tree.blocks), self.straight_through and vips.requires_grad
        nothing, nobody = facts[:, None, None, :, 1] == 0, vip_facts[:, None, :, None, 1] == 0
        with torch.set_grad_enabled(learns):
            means = tree.means(tree.blocks)
            scores = layer.scores(vips, described(vip_facts), means, described(facts)).float()
            lowest = torch.finfo(scores.dtype).min
            if self.selection == "official":
                shared = scores.masked_fill(nothing, lowest).softmax(-1).masked_fill(nobody, 0)
                importance = shared.sum((1, 2))
                shares = importance / importance.sum(1, keepdim=True).clamp(min=1e-30)
            else:  # the logarithm keeps the order, and doesn't overflow
                importance = scores.masked_fill(nobody, -math.inf).logsumexp((1, 2))
                shares = importance.masked_fill(nothing[:, 0, 0], lowest).softmax(-1)
        importance = importance.detach()
        if vips.requires_grad and self.explore:
            drawn = torch.rand_like(importance[:, :1]) < self.explore
            importance = torch.where(drawn, torch.rand_like(importance), importance)
        importance = importance.masked_fill(nothing[:, 0, 0], -math.inf)
        # Sorting n/k numbers costs nothing beside a layer; stable, so that ties are settled
        # within a row, whatever else is in the batch.
        best = importance.argsort(dim=1, descending=True, stable=True)
        blocks = tree.blocks.gather(1, best)
        told = shares.gather(1, best) if learns else None
        return blocks[:, : self.h], blocks[:, self.h :], told

    def _weights(self, shares: Tensor, n_p: int) -> Tensor:
        """[B, r, 1], all 1, of the fine tokens, the means and the VIP tokens. Their gradients are
        those of the block's share s, for a mean of 1 - s: a token weighs so much as a key, and a
        layer changes it so much (official: straight-through estimators)."""
        pull = shares - shares.detach()
        fine = (1 + pull[:, : self.h]).repeat_interleave(self.k, 1)
        whole = shares.new_ones(len(shares), n_p)
        return torch.cat((fine, 1 - pull[:, self.h :], whole), 1)[..., None]
