"""VCC: VIP-token centric compression (Zeng et al., arXiv 2305.04241).

The query's tokens (VIP) stay whole. The rest is cut into blocks of k tokens. Each layer reads the h
blocks to which its VIP tokens attend most token by token (fine), and every other block as its mean
(coarse), which counts as often as the block has tokens. The layer is unchanged and runs on r ≪ n
tokens. A layer's change of a mean is also added to all tokens of the block (eq. 17), so a tree of
means and offsets holds the whole sequence, and a layer updates only r of its nodes (§3.4).

Official code: mlpen/VCC (Apache-2.0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.base import Layer, Method, SequenceInfo, Unsupported, Workload
from methods.parts.dense import DenseAttention
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.sequence import Packed
from methods.vcc.compression import compressed_layer, root_mean_square
from methods.vcc.selection import Ranking, Selection, rank_blocks
from methods.vcc.tree import Multiplicity, Order, Rounding, Tree

CAUSAL = "VCC compresses encoders: a mean of tokens would show a causal model its future"
GROUP_TOKENS = 4096  # tokens of segments that run at once; more would only cost memory


@dataclass(frozen=True)
class VCC(DenseAttention):
    """An encoder compressed around its VIP tokens, with two resolutions (§4). The attention of its
    layers is exact, by a choice of kernel.

    k             tokens in a block
    h             blocks that a layer reads token by token; exact if there are at most h blocks
    segment       tokens in a segment of the plain layers; segments don't attend to each other
    plain_layers  layers before compression; None: a third, or above 4 a quarter (the paper has 4 of
                  12 and 6 of 24)
    n_p           most VIP tokens that a row may have; None: any number
    multiplicity  how often a mean counts as a key: the number of its valid tokens, or "k", as in
                  the official code
    selection     importance of a block: the "attention" that it gets from VIP tokens, a softmax
                  over blocks, averaged over heads and VIP tokens (§3.3), or, as in eq. 53,
                  exp(score) "unnormalised" (§2 drops the softmax's normalisation to simplify
                  notation), summed over both
    explore       probability that a row's blocks are drawn at random, only with gradients on
                  (official: 0.1)
    straight_through  with gradients on, the importance of a block gets a gradient too (official:
                  true; the paper's selection has none): see `compression.straight_through`
    rounding      rounding of a mean position halfway between two: "up", or to "even" (official)
    filled_seats  with n_p: a row's spare seats hold its first other tokens (official: true)
    renormalise   for post-norm encoders: tokens that were read as part of a mean are scaled to the
                  root mean square of the row's VIP tokens when they are read again, and at the end

    methods/vcc/__init__.py lists the differences from the official code. Padding comes out as
    zeros. Raises ValueError for a row with no VIP token, or with more than n_p.
    """

    k: Positive = 16
    h: NonNegative = 90
    segment: Positive = 512
    plain_layers: NonNegative | None = None
    n_p: Positive | None = None
    multiplicity: Multiplicity = "valid"
    selection: Selection = "attention"
    explore: Annotated[float, Range(least=0, most=1)] = 0.0
    straight_through: bool = False
    rounding: Rounding = "up"
    filled_seats: bool = False
    renormalise: bool = False

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if sequence.causal:
            raise Unsupported(CAUSAL)
        packed = Packed.of(hidden, sequence)  # padding at the end splits no segment or block
        vip = sequence.vip
        if vip is not None and packed.order is not None:
            vip = vip.gather(1, packed.order)
        info = packed.sequence.replace(vip=vip)
        plain = self._plain(len(layers))
        states = in_segments(layers[:plain], packed.hidden, info, self.segment)
        states = self._compressed(layers[plain:], states, info)
        return packed.unpacked(states, hidden.shape[1])

    def unsupported(self, workload: Workload) -> str | None:
        if workload.causal:
            return CAUSAL
        layers = workload.layers
        if self._plain(layers) > layers:
            return f"plain_layers is {self.plain_layers}, and the model has {layers} layers"
        return None

    def exact_limit(self) -> Method:
        return replace(self, h=10**9, plain_layers=0)

    def scaled_down(self) -> Method:
        return replace(self, k=4, h=3, segment=16)

    def state_bytes(self, workload: Workload) -> int:
        """The tree (§3.4), and q, k, v and the output of the layer with the most tokens: r (§3), or
        one group of segments."""
        n, batch = workload.length, workload.batch
        blocks = math.ceil(n / self.k)
        r = min(n, (self.n_p or 0) + max(0, blocks - self.h) + self.h * self.k)
        if self._plain(workload.layers):
            r = max(r, min(n, max(self.segment, GROUP_TOKENS // batch)))
        tokens = n + blocks + 4 * r
        return workload.bytes_per_element * batch * tokens * workload.hidden_size

    def _plain(self, layers: int) -> int:
        if self.plain_layers is None:
            return max(min(layers // 3, 4), layers // 4)
        return self.plain_layers

    def _compressed(self, layers: Sequence[Layer], hidden: Tensor, info: SequenceInfo) -> Tensor:
        """The layers after the plain ones, each on fine, coarse and VIP tokens."""
        order = Order(info, self.k, (self.n_p or 0) if self.filled_seats else 0)
        if self.n_p is not None and order.n_p > self.n_p:
            raise ValueError(f"vcc: a row has {order.n_p} VIP tokens; n_p allows {self.n_p}")
        if order.blocks <= self.h:  # every block would be fine, in every layer
            return super().encode(layers, hidden, info)
        vips, tokens = order.split(hidden)
        vip_facts, facts = order.split(order.facts)
        votes, _ = order.split(order.votes)
        tree = Tree(tokens, facts, self.k, self.multiplicity, self.rounding)
        for layer in layers:
            ranking = self.rank(layer, vips, votes, tree)
            vips = compressed_layer(layer, tree, vips, vip_facts, ranking, self.h, self.renormalise)
        if self.renormalise:
            rms = root_mean_square(vips, vip_facts)
            return order.inverse(vips, tree.leaves(tree.blocks, rms))
        return order.inverse(vips, tree.into_tokens())

    def rank(self, layer: Layer, vips: Tensor, votes: Tensor, tree: Tree) -> Ranking:
        """The blocks of one layer, most important first: see `rank_blocks`."""
        learns = self.straight_through and vips.requires_grad
        return rank_blocks(layer, vips, votes, tree, self.selection, self.explore, learns)


def in_segments(layers: Sequence[Layer], hidden: Tensor, info: SequenceInfo, size: int) -> Tensor:
    """hidden [B, n, D], padding at the end → the same after layers in which each token attends only
    to its segment of `size` tokens (§4). `info` has positions; its VIP marks are not used."""
    batch, n, width = hidden.shape
    if not layers:
        return hidden
    size = min(size, n)
    short = -n % size
    positions, valid = info.positions, info.valid
    assert positions is not None
    if valid is None:
        valid = torch.ones_like(positions, dtype=torch.bool)
    after = positions[:, -1:] + 1 + torch.arange(short, device=hidden.device)
    positions = torch.cat((positions, after), 1).view(-1, size)
    valid = pad(valid, (0, short)).view(-1, size)
    segments = pad(hidden, (0, 0, 0, short)).view(-1, size, width)
    output = torch.zeros_like(segments)
    whole = valid.all(1)
    for chosen in (whole, valid.any(1) & ~whole):  # a segment without padding needs no mask
        index, step = chosen.nonzero()[:, 0], max(1, GROUP_TOKENS // size)
        for group in (index[i : i + step] for i in range(0, len(index), step)):
            group_info = SequenceInfo(positions[group], None if chosen is whole else valid[group])
            part = segments.index_select(0, group)
            for layer in layers:
                part = layer(part, group_info)
            output.index_copy_(0, group, part)
    return output.view(batch, n + short, width)[:, :n]
