"""VCC's formula written out, on one small layer.

The twin builds the compression matrix S of eq. 9 for every layer and computes S†γ(SX) + X on the
valid tokens of one row. A key of multiplicity m is a key repeated m times; nothing is cached.
"""

import torch
from torch.nn.functional import layer_norm

from methods.base import AttentionCall, SequenceInfo
from methods.parts.attention import exact_attention
from tests.methods.hand import Slope

D, HEADS = 12, 3


class Toy:
    """A pre-norm layer in float64; `seen` records how many tokens each call read."""

    def __init__(self, seed, biased=True):
        make = torch.Generator().manual_seed(seed)
        self.weights = [
            torch.randn(shape, generator=make, dtype=torch.float64).div(3).requires_grad_()
            for shape in ((D, D), (D, D), (D, D), (D, D), (D, 2 * D), (2 * D, D))
        ]
        self.bias = None
        if biased:
            slopes = torch.rand(HEADS, generator=make, dtype=torch.float64).div(9)
            self.weights.append(slopes.requires_grad_())
            self.bias = Slope(slopes)
        self.seen = []

    def heads(self, x, weight):
        return (layer_norm(x, (D,)) @ weight).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def __call__(self, hidden, sequence):
        self.seen.append(hidden.shape[1])
        query, key, value = (self.heads(hidden, weight) for weight in self.weights[:3])
        read = exact_attention(query, key, value, AttentionCall(sequence, 0.5, 0, self.bias))
        return self.rest(hidden, read)

    def rest(self, hidden, read):
        hidden = hidden + read.transpose(1, 2).flatten(2) @ self.weights[3]
        return hidden + (layer_norm(hidden, (D,)) @ self.weights[4]).relu() @ self.weights[5]

    def scores(self, queries, query_sequence, keys, key_sequence):
        scores = self.heads(queries, self.weights[0]) @ self.heads(keys, self.weights[1]).mT * 0.5
        if self.bias is not None:
            scores = scores + self.bias(query_sequence.positions, key_sequence.positions)
        return scores

    def plainly(self, hidden, positions, times):
        """[m, D] → [m, D], each key repeated as often as it counts."""
        hidden, index = hidden[None], torch.arange(len(times)).repeat_interleave(times)
        everyone = SequenceInfo(positions=positions[None])
        scores = self.scores(hidden, everyone, hidden, everyone)[..., index]
        read = scores.softmax(-1) @ self.heads(hidden, self.weights[2])[:, :, index]
        return self.rest(hidden, read)[0]


class Identity:
    """An attention layer with identity projections, no residual; d = 1."""

    def __init__(self, counted=True):
        self.counted = counted

    def __call__(self, hidden, sequence):
        if not self.counted:
            sequence = sequence.replace(log_multiplicity=None)
        x = hidden[:, None]
        return exact_attention(x, x, x, AttentionCall(sequence, 1.0, 0))[:, 0]

    def scores(self, queries, query_sequence, keys, key_sequence):
        return (queries @ keys.mT)[:, None]


def middle(positions, rounding="up"):
    mean = positions.double().mean()
    return (mean.round() if rounding == "even" else (mean + 0.5).floor()).long()


def twin(method, layers, hidden, positions, vip):
    """One row without padding: hidden [n, D], positions [n], vip [n] → [n, D]."""
    n, ones = len(hidden), torch.ones(len(hidden), dtype=torch.int64)
    third, quarter = len(layers) // 3, len(layers) // 4
    plain = max(min(third, 4), quarter) if method.plain_layers is None else method.plain_layers
    for layer in layers[:plain]:
        parts = [slice(i, i + method.segment) for i in range(0, n, method.segment)]
        hidden = torch.cat([layer.plainly(hidden[p], positions[p], ones[p]) for p in parts])
    vips, voters = vip.nonzero()[:, 0], vip.nonzero()[:, 0]
    if method.filled_seats:
        seats = torch.cat((vips, (~vip).nonzero()[: method.n_p - len(vips), 0]))
        vips = seats.sort().values
    others = torch.ones_like(vip).index_fill(0, vips, 0)
    blocks = others.nonzero()[:, 0].split(method.k)
    blocks = [block for block in blocks if len(block)]
    for layer in layers[plain:]:
        means = [hidden[block].mean(0) for block in blocks]
        middles = [middle(positions[block], method.rounding) for block in blocks]
        fine = range(len(blocks))
        if method.h < len(blocks):
            scores = layer.scores(
                hidden[None, voters],
                SequenceInfo(positions=positions[None, voters]),
                torch.stack(means)[None],
                SequenceInfo(positions=torch.stack(middles)[None]),
            )[0].detach()
            attention = method.selection == "attention"
            weights = scores.softmax(-1) if attention else scores.exp()
            fine = weights.sum((0, 1)).topk(method.h).indices.tolist()
        supports = [vips[i : i + 1] for i in range(len(vips))]
        times = [1] * len(vips)
        for i, block in enumerate(blocks):
            pieces = [block[j : j + 1] for j in range(len(block))] if i in fine else [block]
            supports += pieces
            full = method.k if method.multiplicity == "k" else len(block)
            times += [1] * len(pieces) if i in fine else [full]
        decompress = torch.zeros(n, len(supports), dtype=torch.float64)
        for j, support in enumerate(supports):
            decompress[support, j] = 1
        compress = decompress.T / decompress.sum(0)[:, None]
        read = compress @ hidden
        places = [middle(positions[support], method.rounding) for support in supports]
        change = layer.plainly(read, torch.stack(places), torch.tensor(times)) - read
        hidden = decompress @ change + hidden
    return hidden


def rows(n, lengths=None, seed=0, padding="right"):
    """A batch: hidden [B, n, D] with noise at padding, and its sequence, VIP tokens scattered."""
    make = torch.Generator().manual_seed(seed)
    lengths = [n] if lengths is None else lengths
    hidden = torch.randn(len(lengths), n, D, generator=make, dtype=torch.float64)
    valid = torch.arange(n)[None] < torch.tensor(lengths)[:, None]
    vip = torch.rand(len(lengths), n, generator=make) < 0.15
    vip[:, 0] = True
    if padding == "left":
        valid, vip = valid.flip(1), vip.flip(1)
    positions = torch.arange(n).expand(len(lengths), n)
    return hidden, SequenceInfo(positions=positions, valid=valid, vip=vip)


def by_twin(method, layers, hidden, sequence):
    output = torch.zeros_like(hidden)
    for row, valid in enumerate(sequence.valid):
        if valid.any():
            output[row, valid] = twin(
                method,
                layers,
                hidden[row, valid],
                sequence.positions[row, valid],
                sequence.vip[row, valid],
            )
    return output


def toys(count=3, biased=True):
    return [Toy(seed, biased) for seed in range(count)]


def close(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
