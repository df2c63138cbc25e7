"""The entropy of a model's attention on rows of a cell."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from bench.execution import arms
from bench.models.hf import positions
from bench.models.wrappers import Wrapped
from bench.request.cell import Cell
from methods.base import AttentionCall, Method


@dataclass(frozen=True)
class Entropy(Wrapped):
    """A wrapper around a method, by default exact attention. `nats` has for each layer the entropy
    of exact attention on the same queries and keys: [H], the mean over the tokens of one text
    without padding, or only of its last token (which in a causal model predicts the answer)."""

    method: Method = field(default_factory=Method)
    last: bool = False
    nats: dict[int, Tensor] = field(default_factory=dict)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        seen = query[:, :, -1:] if self.last else query
        scores = seen @ key.transpose(-1, -2) * call.scale
        if call.bias:
            at = positions(call.sequence, query.transpose(1, 2))
            scores = scores + call.bias(at, at)
        self.nats[call.layer] = torch.special.entr(scores.softmax(-1)).sum(-1).mean((0, 2))
        return super().attend(query, key, value, call)


def entropies(cell: Cell, rows: int) -> tuple[Tensor, Tensor]:
    """Entropies of the cell's first rows: [rows, layers, H] in nats, and their tokens [rows]."""
    method, task = arms.method_of(cell), cell.build_task()
    family = arms.load(cell, method)
    causal = family.workload(cell.length, 1).causal
    nats, tokens = [], []
    for row in cell.rows().rows[:rows]:
        family.method = entropy = Entropy(method, last=causal)
        encoded = task.encode(row, family.tokenizer, cell.length)
        ids, sequence = arms.collate([encoded], "cpu")
        with torch.inference_mode():
            family.encode(ids, sequence)
        nats.append(torch.stack([entropy.nats[layer] for layer in sorted(entropy.nats)]))
        tokens.append(ids.shape[1])
    return torch.stack(nats), torch.tensor(tokens)
