"""The kinds of figure: name → what draws it and what it shows."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from reports.figures.data import Rows
from reports.figures.sheet import Plot

Draw = Callable[[Rows, int], Plot | None]


class Kind(NamedTuple):
    """`draws` is module:function in this folder; `needs` are the rows without which there is
    nothing to draw."""

    draws: str
    shows: str
    needs: str

    def load(self) -> Draw:
        module, _, name = self.draws.partition(":")
        draw: Draw = getattr(importlib.import_module(f"reports.figures.{module}"), name)
        return draw


TWO = "two methods with quality and {} at one length, in one setting"
VARIANTS = "{} with two or more variants (method.NAME=…) on {}"
LENGTHS = "one method at two lengths or more, in one setting"

KINDS = {
    "pareto_latency": Kind(
        "pareto:latency", "quality against latency, with the Pareto front", TWO.format("latency")
    ),
    "pareto_memory": Kind(
        "pareto:memory", "quality against peak memory, with the Pareto front", TWO.format("memory")
    ),
    "latency_by_length": Kind("by_length:latency", "latency against length", LENGTHS),
    "memory_by_length": Kind("by_length:memory", "peak memory against length", LENGTHS),
    "fidelity_speed": Kind(
        "fidelity:speed", "output error against latency", "methods with an output error and a ratio"
    ),
    "vcc_1": Kind("efficiency:plot", "VCC Fig. 1: latency and memory as the input grows", LENGTHS),
    "vcc_5": Kind(
        "variants:runtime",
        "VCC Fig. 5 and 8: quality against latency over a method's parameters",
        VARIANTS.format("a method", "wikihop or any task"),
    ),
    "iceformer_3": Kind(
        "recall:plot",
        "IceFormer Fig. 3: recall of k-NN searches against their time",
        "a measured search: bench recall",
    ),
    "iceformer_4": Kind(
        "variants:attention",
        "IceFormer Fig. 4: accuracy on LRA against time, over k",
        VARIANTS.format("iceformer", "a task of LRA"),
    ),
    "iceformer_5": Kind(
        "longeval:plot",
        "IceFormer Fig. 5: LongEval's accuracy and time against length",
        "quality on longeval_topics or longeval_lines",
    ),
    "iceformer_6": Kind(
        "lra:latency",
        "IceFormer Fig. 6: time of the attention on LRA, beside vanilla's",
        "vanilla and another method on a task of LRA, with latency",
    ),
    "iceformer_7": Kind(
        "lra:memory",
        "IceFormer Fig. 7: peak memory on LRA, beside vanilla's",
        "vanilla and another method on a task of LRA, with memory",
    ),
    "fourier_1": Kind(
        "spectrum:plot",
        "Fourier Fig. 1: spectrum of the hidden states, layer by layer",
        "a measured spectrum: bench spectrum",
    ),
    "fourier_3": Kind(
        "retained:plot",
        "Fourier Fig. 3: quality against r",
        VARIANTS.format("fourier", "eli5 or any task") + ", which differ in method.r",
    ),
}
