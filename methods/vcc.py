"""VCC: VIP-token centric compression (Zeng et al., arXiv 2305.04241).

The query's tokens (VIP) stay whole. Of the rest, each layer reads the h blocks of k tokens that
its VIP tokens attend to most token by token (fine), and every other block as its mean (coarse),
which counts as often as it has tokens. The layer itself is the ordinary one, at r ≪ n tokens.
What a layer adds to a mean it adds to all tokens of the block (eq. 17), so a tree of means and
differences holds the whole sequence, and a layer touches only r of its nodes (§3.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods import kernels
from methods.base import Call, Layer, Method, Sequence, Shape, Unsupported
from methods.vanilla import exact_attention, native_attention
from methods.vcc_tree import Multiplicity, Order, Tree, described, rows

Selection = Literal["paper", "official"]
GROUP_TOKENS = 4096  # plain layers run on so many tokens at a time: more only costs memory
CAUSAL = "VCC compresses encoders: a mean of tokens would show a causal model its future"


@dataclass(frozen=True)
class VCC(Method):
    """An encoder compressed around its VIP tokens, with two resolutions (§4).

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
    kernel        of the layers' attention: "torch", or "native" where that can

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
    kernel: str = "torch"

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("h", 0), ("segment", 1), ("plain_layers", 0), ("n_p", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"vcc: {name} is {value}; the least is {least}")
        for name, kind in (("multiplicity", Multiplicity), ("selection", Selection)):
            if getattr(self, name) not in get_args(kind):
                accepted = " or ".join(get_args(kind))
                raise ValueError(f"vcc: {name} is {getattr(self, name)!r}; it is {accepted}")
        kernels.check("kernel", self.kernel, kernels.KERNELS)
        if not 0 <= self.explore <= 1:
            raise ValueError(f"vcc: explore is {self.explore}; it is a chance, 0 to 1")

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        if self.kernel == "torch":
            return exact_attention(query, key, value, call)
        return native_attention(self, query, key, value, call)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        if sequence.causal:
            raise Unsupported(CAUSAL)
        batch, n, _ = hidden.shape
        every = torch.ones(batch, n, dtype=torch.bool, device=hidden.device)
        valid = every if sequence.valid is None else sequence.valid
        if (valid[:, 1:] & ~valid[:, :-1]).any():
            return self._moved_left(layers, hidden, sequence, valid)
        vip = ~every if sequence.vip is None else sequence.vip & valid
        positions = sequence.positions
        if positions is None:
            positions = torch.arange(n, device=hidden.device).expand(batch, n)
        plain = self._plain(len(layers))
        hidden = self._plain_layers(layers[:plain], hidden, positions, valid)
        return self._vcc_layers(layers[plain:], hidden, positions, valid, vip)

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

    def _moved_left(
        self, layers: Items[Layer], hidden: Tensor, sequence: Sequence, valid: Tensor
    ) -> Tensor:
        """`encode` with padding at the end of each row, so that it cuts no segment or block."""
        order = (~valid).long().argsort(dim=1, stable=True)
        positions, vip = sequence.positions, sequence.vip
        moved = Sequence(
            positions=order if positions is None else positions.gather(1, order),
            valid=valid.gather(1, order),
            vip=None if vip is None else vip.gather(1, order),
        )
        return rows(self.encode(layers, rows(hidden, order), moved), order.argsort(1))

    def _plain_layers(
        self, layers: Items[Layer], hidden: Tensor, positions: Tensor, valid: Tensor
    ) -> Tensor:
        """The first layers, on segments that don't see each other (§4)."""
        if not layers:
            return hidden
        batch, n, _ = hidden.shape
        size = min(self.segment, n)
        short = -n % size
        after = positions[:, -1:] + 1 + torch.arange(short, device=hidden.device)
        hidden = pad(hidden, (0, 0, 0, short)).view(-1, size, hidden.shape[-1])
        positions = torch.cat((positions, after), 1).view(-1, size)
        valid = pad(valid, (0, short)).view(-1, size)
        output = torch.zeros_like(hidden)
        whole = valid.all(1)
        for chosen in (whole, valid.any(1) & ~whole):  # a whole segment needs no mask: faster
            index = chosen.nonzero()[:, 0]
            step = max(1, GROUP_TOKENS // size)
            for group in (index[i : i + step] for i in range(0, len(index), step)):
                part = hidden.index_select(0, group)
                sequence = Sequence(positions[group], None if chosen is whole else valid[group])
                for layer in layers:
                    part = layer(part, sequence)
                output.index_copy_(0, group, part)
        return output.view(batch, n + short, -1)[:, :n]

    def _vcc_layers(
        self, layers: Items[Layer], hidden: Tensor, positions: Tensor, valid: Tensor, vip: Tensor
    ) -> Tensor:
        """The other layers, each on fine, coarse and VIP tokens; the order is undone at the end."""
        if not layers or not valid.any():
            return hidden.masked_fill(~valid[..., None], 0)
        order = Order(vip, valid, self.k)
        n_p = order.n_p
        if self.n_p is not None and n_p > self.n_p:
            raise ValueError(f"vcc: a row has {n_p} VIP tokens; n_p allows {self.n_p}")
        vips, tokens = order.split(hidden)
        vip_facts, facts = order.split(torch.stack((positions, valid.long()), -1))
        tree = Tree(tokens, facts, self.k, self.multiplicity)
        for layer in layers:
            fine, coarse = self._select(layer, vips, vip_facts, tree)
            read = torch.cat((tree.leaves(fine), tree.means(coarse), vips), 1)
            facts = torch.cat((tree.leaf_facts(fine), tree.mean_facts(coarse), vip_facts), 1)
            read = layer(read, described(facts))
            sizes = [self.k * fine.shape[1], coarse.shape[1], n_p]
            leaves, means, vips = torch.split(read, sizes, 1)
            tree.update(fine, leaves, coarse, means)
        return order.undo(vips, tree.leaves(tree.blocks))

    @torch.no_grad()
    def _select(
        self, layer: Layer, vips: Tensor, vip_facts: Tensor, tree: Tree
    ) -> tuple[Tensor, Tensor]:
        """The blocks to read token by token [B, h], and the others [B, blocks-h]."""
        if self.h >= tree.blocks.shape[1]:
            return tree.blocks, tree.blocks[:, :0]
        facts = tree.mean_facts(tree.blocks)
        nothing, nobody = facts[:, None, None, :, 1] == 0, vip_facts[:, None, :, None, 1] == 0
        means = tree.means(tree.blocks)
        scores = layer.scores(vips, described(vip_facts), means, described(facts)).float()
        if self.selection == "official":
            scores = scores.masked_fill(nothing, torch.finfo(scores.dtype).min)
            importance = scores.softmax(-1).masked_fill(nobody, 0).sum((1, 2))
        else:  # the logarithm keeps the order, and doesn't overflow
            importance = scores.masked_fill(nobody, -math.inf).logsumexp((1, 2))
        if vips.requires_grad and self.explore:
            drawn = torch.rand_like(importance[:, :1]) < self.explore
            importance = torch.where(drawn, torch.rand_like(importance), importance)
        importance = importance.masked_fill(nothing[:, 0, 0], -math.inf)
        # Sorting n/k numbers costs nothing beside a layer; stable, so that ties are settled
        # within a row, whatever else is in the batch.
        order = tree.blocks.gather(1, importance.argsort(dim=1, descending=True, stable=True))
        return order[:, : self.h], order[:, self.h :]
