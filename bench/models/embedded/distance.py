"""A comparison of what two words of a question have fetched, set in closed form.

Gradients find late whether both fetched the same, and attention is no help: an inner product is
high for any two long states, and a token matches itself best. The distance in canonical coordinates
(see bench.models.embedded.align) tells it, and a layer can compute it: a head brings the other
word's coordinates, and pairs of neurons take the absolute values of the differences. A head of the
next layer brings what they say to the row's first token, where no and yes are scored.

Each step is fitted on states after the step before, on rows of a generator whose questions have
their words at the same places in every row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from bench import plugins
from bench.models.embedded.align import Below, canonical
from methods.base import Sequence

SHARPNESS, LOUDNESS, STEEPNESS = 30.0, 3.0, 4.0
EACH_LOUD = 0.5  # of a neuron, of which many say the same
RIDGE = 1e-3


def fit(states: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The weight [k, D] and bias [k] that come nearest to `wanted` [N, k] from states [N, D]."""
    middle, target = states.mean(0), wanted.mean(0)
    apart = states - middle
    weight = torch.linalg.solve(_ridged(apart.T @ apart), apart.T @ (wanted - target)).T
    return weight, target - weight @ middle


def look(block: Any, head: int, wanted: Tensor, others: Tensor) -> None:
    """Let every token look with one head at the token whose states are `wanted` [N, D], among
    `others` [M, D]: along Fisher's linear discriminant, in the first dimension of the head."""
    attention, rows = block.attention.self, _rows(block, head)
    middle = others.mean(0)
    apart = wanted.mean(0) - middle
    along = torch.linalg.solve(_ridged(torch.cov(others.T) + torch.cov(wanted.T)), apart)
    along = along / (along @ apart)
    for linear in (attention.query, attention.key):
        linear.weight[rows], linear.bias[rows] = 0, 0
    # Both sides alike: steps of training would soon move a small key that a large query reads.
    gain = (SHARPNESS / attention.scaling) ** 0.5
    attention.query.bias[rows.start] = gain
    attention.key.weight[rows.start] = gain * along
    attention.key.bias[rows.start] = -gain * along @ middle


def carry(block: Any, head: int, weight: Tensor, bias: Tensor, to: Tensor) -> None:
    """Let a head bring weight @ state + bias [k] of what it looks at to directions `to` [D, k]."""
    attention, rows = block.attention.self, _rows(block, head)
    out = block.attention.output.dense.weight
    for whole in (attention.value.weight[rows], attention.value.bias[rows], out[:, rows]):
        whole.zero_()
    first = slice(rows.start, rows.start + len(weight))
    attention.value.weight[first], attention.value.bias[first] = weight, bias
    out[:, first] = to


def stillest(states: Tensor, waves: int) -> Tensor:
    """The direction [D, 1] in which states [N, D] vary least, but for the first dimensions, which
    are waves of positions."""
    vector = torch.linalg.eigh(torch.cov(states[:, waves:].T)).eigenvectors[:, :1]
    return torch.cat((torch.zeros(waves, 1), vector))


def after_attention(layer: Any, hidden: Tensor) -> Tensor:
    """States [B, n, D] between a layer's attention and its neurons."""
    kept: list[Tensor] = []
    neurons = layer.block.intermediate
    hook = neurons.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    layer(hidden, Sequence())
    hook.remove()
    return kept[0]


@torch.no_grad()
def begin(both: Any, one: Any, seed: int, encode: Callable[..., Any]) -> None:
    """Set a comparison in a model with both heads. `one` names the layer that compares, of it and
    of the next one a head each to be overwritten, the places of both words in the question, and
    rows of tasks.marked: `rows` short ones, of which the questions alone are read, and few long
    `texts`, among whose words the heads have to find the question's."""
    config, kind = both.model.config, both.model.heads["kind"]
    size = config.hidden_size // config.num_attention_heads
    here, after = both.span.layers[one.layer], both.span.layers[one.layer + 1]
    first, second = one.places
    method, both.span.method = both.span.method, Below(one.layer)
    make = plugins.load(one.make)

    def below(count: int, options: Any) -> tuple[Tensor, Tensor]:
        """What the layer reads, and whether the answer is yes."""
        states, kinds = [], []
        for at in range(0, count, 32):
            made = [make(row, seed, **options) for row in range(at, min(at + 32, count))]
            batch = encode(made, both.tokenizer)
            asked = int(batch.vip.sum(1).max()) if count == one.rows else batch.ids.shape[1]
            states.append(both.span.encode(batch.ids, Sequence())[:, :asked])
            kinds.append(batch.kinds)
        return torch.cat(states), torch.cat(kinds)

    states, yes = below(one.rows, one.options)
    texts, _ = below(one.texts.rows, one.texts.options)
    both.span.method = method
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
    brought = after_attention(here, states)[:, second]
    weight, bias = fit(brought, apart)

    up, down = block.intermediate.dense, block.output.dense
    seen = after_attention(here, texts).flatten(0, 1)
    quiet = (gelu(up(seen)).std(0) * down.weight.norm(dim=0)).argsort()[: 2 * size]
    up.weight[quiet] = STEEPNESS * torch.cat((weight, -weight))
    up.bias[quiet] = STEEPNESS * torch.cat((bias, -bias))
    down.weight[:, quiet] = EACH_LOUD * stillest(brought, size)

    states, texts = here(states, Sequence()), here(texts, Sequence())
    block, head = after.block, one.heads[1]
    look(block, head, states[:, second], others())
    weight, bias = fit(states[:, second], answers)
    start = after_attention(after, states)[:, 0]
    carry(block, head, weight, bias, LOUDNESS * stillest(start, size))
    weight, bias = fit(after(states, Sequence())[:, 0], 3 * answers)
    # What no and yes have in common tells them from a span.
    common = kind.weight[:2].mean(0), kind.bias[:2].mean(0)
    for answer, sign in enumerate((-0.5, 0.5)):
        kind.weight[answer] = common[0] + sign * weight[0]
        kind.bias[answer] = common[1] + sign * bias[0]


def _ridged(square: Tensor) -> Tensor:
    return square + RIDGE * square.diagonal().mean() * torch.eye(len(square))


def _rows(block: Any, head: int) -> slice:
    size = block.attention.self.attention_head_size
    return slice(head * size, (head + 1) * size)
