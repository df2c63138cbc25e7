"""Power spectrum of a model's hidden states by layer (Fourier Transformer, arXiv 2305.15099,
Figure 1): how much of what a layer reads lies in slow changes along the sequence."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from bench.cell import Cell
from bench.children import arms, child
from bench.errors import RequestError
from methods.base import Layer, Method, Sequence

BINS = 128


@dataclass(frozen=True)
class Listener(Method):
    """Exact attention that keeps what each layer reads, and what the last one gives."""

    heard: list[Tensor] = field(default_factory=list)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        for layer in layers:
            self.heard.append(hidden)
            hidden = layer(hidden, sequence)
        self.heard.append(hidden)
        return hidden


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """`power`: for each layer's input, and the last layer's output, the mean power in BINS equal
    bins of frequency from 0 to 0.5 cycles a token, over rows and hidden dimensions; each layer's
    mean over all frequencies is 1. Rows shorter than two tokens a bin are left out."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    listener = Listener()
    family = arms.load(cell, listener)
    task = cell.build_task()
    rows = cell.rows().rows
    total: Tensor | None = None
    tokens: list[int] = []
    with torch.inference_mode():
        for done, row in enumerate(rows):
            report("spectrum", done, len(rows))
            encoded = task.encode(row, family.tokenizer, cell.length)
            if len(encoded.ids) < 2 * BINS:
                continue
            ids, sequence = arms.collate([encoded], cell.device["kind"])
            listener.heard.clear()
            family.encode(ids[:1], sequence)
            power = torch.stack([spectrum(hidden[0]) for hidden in listener.heard])
            total = power if total is None else total + power
            tokens.append(ids.shape[1])
    if total is None:
        raise RequestError(
            f"no row of {cell.task['name']} at length={cell.length} has {2 * BINS} tokens or more"
        )
    power = total / len(tokens)
    power = power / power.mean(1, keepdim=True)
    return {"power": power.tolist(), "rows": len(tokens), "tokens_mean": sum(tokens) / len(tokens)}


def spectrum(hidden: Tensor) -> Tensor:
    """hidden [n, D] → power [BINS], the mean over dimensions and over the frequencies of a bin.

    The mean of the sequence itself (frequency 0) is part of the first bin."""
    power = torch.fft.rfft(hidden.double(), dim=0, norm="ortho").abs().square().mean(1)
    return interpolate(power[None, None], size=BINS, mode="area")[0, 0]
