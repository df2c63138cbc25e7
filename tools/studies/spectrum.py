"""Power spectrum of a model's hidden states by layer (Fourier Transformer, arXiv 2305.15099,
Figure 1): the share of low frequencies along the sequence in a layer's input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from bench.errors import RequestError
from bench.execution import arms, worker
from bench.request.cell import Cell
from methods.base import Layer, Method, SequenceInfo

BINS = 128


@dataclass(frozen=True)
class HiddenStateRecorder(Method):
    """Exact attention that keeps each layer's input and the last layer's output."""

    states: list[Tensor] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        for layer in layers:
            self.states.append(hidden)
            hidden = layer(hidden, sequence)
        self.states.append(hidden)
        return hidden


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """`power`: for each layer's input and the last layer's output, the power in BINS equal bins of
    frequency from 0 to 0.5 cycles per token, averaged over rows and hidden dimensions; each layer's
    mean over all frequencies is 1. Rows of fewer than two tokens per bin are skipped."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    recorder = HiddenStateRecorder()
    family = arms.load(cell, recorder)
    total: Tensor | None = None
    tokens: list[int] = []
    with torch.inference_mode():
        inputs = arms.inputs(cell, cell.build_task(), family.tokenizer).encoded
        for done, encoded in enumerate(inputs):
            report("spectrum", done, len(inputs))
            if len(encoded.ids) < 2 * BINS:
                continue
            ids, sequence = arms.collate([encoded], cell.device["kind"])
            recorder.states.clear()
            family.encode(ids[:1], sequence)
            power = torch.stack([spectrum(hidden[0]) for hidden in recorder.states])
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
    """hidden [n, D] → power [BINS], averaged over dimensions and over the frequencies of a bin.

    The first bin includes the mean of the sequence (frequency 0)."""
    power = torch.fft.rfft(hidden.double(), dim=0, norm="ortho").abs().square().mean(1)
    return interpolate(power[None, None], size=BINS, mode="area")[0, 0]
