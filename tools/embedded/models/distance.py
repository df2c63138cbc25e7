"""A comparison of the facts that two words of a question have retrieved, set in closed form.

Gradients find it late, and attention can't compute it itself: an inner product is high for any two
long states, and a token matches itself best. The distance in canonical coordinates
(tools.embedded.models.align) shows it: an attention head copies the other word's coordinates, and
pairs of neurons take the absolute values of the differences. A head of the next layer copies the
result to the row's first token, where no and yes are scored.

Each step is fitted on the states after the step before, on rows of a generator whose questions have
these words at the same places in every row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from bench.request import plugins
from methods.base import SequenceInfo
from tools.embedded.models.align import Below, canonical

SHARPNESS, LOUDNESS, STEEPNESS = 30.0, 3.0, 4.0
EACH_LOUD = 0.5  # of one neuron; many neurons have the same output
RIDGE = 1e-3


def fit(states: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Ridge regression of `target` [N, k] on states [N, D]: weight [k, D] and bias [k]."""
    mean, target_mean = states.mean(0), target.mean(0)
    centred = states - mean
    moments = centred.T @ (target - target_mean)
    weight = torch.linalg.solve(_ridged(centred.T @ centred), moments).T
    return weight, target_mean - weight @ mean


def look(block: Any, head: int, wanted: Tensor, others: Tensor) -> None:
    """Let one head of every token attend to the token whose states are like `wanted` [N, D], among
    `others` [M, D]: along Fisher's linear discriminant, in the first dimension of the head."""
    attention, rows = block.attention.self, _rows(block, head)
    middle = others.mean(0)
    apart = wanted.mean(0) - middle
    along = torch.linalg.solve(_ridged(torch.cov(others.T) + torch.cov(wanted.T)), apart)
    along = along / (along @ apart)
    for linear in (attention.query, attention.key):
        linear.weight[rows], linear.bias[rows] = 0, 0
    # Query and key of equal size: training would soon move a small key read by a large query.
    gain = (SHARPNESS / attention.scaling) ** 0.5
    attention.query.bias[rows.start] = gain
    attention.key.weight[rows.start] = gain * along
    attention.key.bias[rows.start] = -gain * along @ middle


def carry(block: Any, head: int, weight: Tensor, bias: Tensor, to: Tensor) -> None:
    """Let a head write weight @ state + bias [k] of the attended token along the directions `to`
    [D, k]."""
    attention, rows = block.attention.self, _rows(block, head)
    out = block.attention.output.dense.weight
    for whole in (attention.value.weight[rows], attention.value.bias[rows], out[:, rows]):
        whole.zero_()
    first = slice(rows.start, rows.start + len(weight))
    attention.value.weight[first], attention.value.bias[first] = weight, bias
    out[:, first] = to


def stillest(states: Tensor, waves: int) -> Tensor:
    """The direction [D, 1] in which states [N, D] vary least, without the first `waves` dimensions,
    which encode positions."""
    vector = torch.linalg.eigh(torch.cov(states[:, waves:].T)).eigenvectors[:, :1]
    return torch.cat((torch.zeros(waves, 1), vector))


def after_attention(layer: Any, hidden: Tensor) -> Tensor:
    """States [B, n, D] between a layer's attention and its neurons."""
    inputs: list[Tensor] = []
    neurons = layer.block.intermediate
    hook = neurons.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    layer(hidden, SequenceInfo())
    hook.remove()
    return inputs[0]


@torch.no_grad()
def begin(both: Any, one: Any, seed: int) -> None:
    """Set a comparison in the model of tools.embedded.objectives.heads.Heads. `one` names the layer
    that compares, one head of it and one of the next layer to overwrite, the places of both words
    in the question, and rows of tools.embedded.rows.marked: `rows` short ones, of which only the
    questions are read, and a few long `texts`, in which the heads have to find the question's
    words."""
    config, kind = both.model.config, both.model.heads["kind"]
    size = config.hidden_size // config.num_attention_heads
    here, after = both.span.layers[one.layer], both.span.layers[one.layer + 1]
    first, second = one.places
    make = plugins.load(one.make)

    def below(count: int, options: Any) -> tuple[Tensor, Tensor]:
        """The layer's input, and whether the answer is yes."""
        states, kinds = [], []
        for at in range(0, count, 32):
            rows = [make(row, seed, **options) for row in range(at, min(at + 32, count))]
            batch = both.encode(rows)
            read = int(batch.vip.sum(1).max()) if count == one.rows else batch.ids.shape[1]
            states.append(both.states(Below(one.layer), batch)[:, :read])
            kinds.append(batch.kinds)
        return torch.cat(states), torch.cat(kinds)

    states, yes = below(one.rows, one.options)
    texts, _ = below(one.texts.rows, one.texts.options)
    answers = 2.0 * yes[:, None] - 1

    def others() -> Tensor:
        return torch.cat((texts.flatten(0, 1), states[:64].flatten(0, 1)))

    block, head = here.block, one.heads[0]
    look(block, head, states[:, first], others())
    own, other = states[:, second], states[:, first]
    middles = own[yes == 1].mean(0), other[yes == 1].mean(0)
    query, key = canonical(own[yes == 1] - middles[0], other[yes == 1] - middles[1], size)
    drawn = torch.randn(config.hidden_size, size)
    drawn[:size] = 0
    carry(block, head, key, -key @ middles[1], LOUDNESS * torch.linalg.qr(drawn).Q)
    apart = (own - middles[0]) @ query.T - (other - middles[1]) @ key.T
    copied = after_attention(here, states)[:, second]
    weight, bias = fit(copied, apart)

    up, down = block.intermediate.dense, block.output.dense
    seen = after_attention(here, texts).flatten(0, 1)
    quiet = (gelu(up(seen)).std(0) * down.weight.norm(dim=0)).argsort()[: 2 * size]
    up.weight[quiet] = STEEPNESS * torch.cat((weight, -weight))
    up.bias[quiet] = STEEPNESS * torch.cat((bias, -bias))
    down.weight[:, quiet] = EACH_LOUD * stillest(copied, size)

    states, texts = here(states, SequenceInfo()), here(texts, SequenceInfo())
    block, head = after.block, one.heads[1]
    look(block, head, states[:, second], others())
    weight, bias = fit(states[:, second], answers)
    start = after_attention(after, states)[:, 0]
    carry(block, head, weight, bias, LOUDNESS * stillest(start, size))
    weight, bias = fit(after(states, SequenceInfo())[:, 0], 3 * answers)
    # Their common part distinguishes no and yes from a span.
    common = kind.weight[:2].mean(0), kind.bias[:2].mean(0)
    for answer, sign in enumerate((-0.5, 0.5)):
        kind.weight[answer] = common[0] + sign * weight[0]
        kind.bias[answer] = common[1] + sign * bias[0]


def _ridged(square: Tensor) -> Tensor:
    return square + RIDGE * square.diagonal().mean() * torch.eye(len(square))


def _rows(block: Any, head: int) -> slice:
    size = block.attention.self.attention_head_size
    return slice(head * size, (head + 1) * size)
