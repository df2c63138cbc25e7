"""Estimates how precisely a method computes inside, which its error against exact attention doesn't
show: an approximation's error is far larger than that of its arithmetic.

The hidden states are changed by a few units in the last place, up and down. What a smooth function
of them does cancels in f(x + d) − 2 f(x) + f(x − d), and rounding remains. The median over tokens
leaves out those for which the method reads other keys than before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.measure.perturbed_inputs import Input
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from bench.store.columns import Row
from methods.base import Layer, SequenceInfo

CHANGE = 2.0**-18
LOWER = {2.0**-11: "bfloat16 or less", 2.0**-15: "float16 or tf32"}
"""What computes with a rounding error above each bound. Two layers with attention in bfloat16 have
about 1e-3, in float16 2e-4 to 3e-4, in float32 1e-6 (T5, BERT, Llama and LRA encoder)."""


@dataclass(frozen=True)
class Changed(Wrapped):
    """A method whose hidden states are changed by a share of their value, of random sign."""

    share: float = 0.0

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return super().encode(layers, self.changed(hidden), sequence)

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return super().encode_shorter(layers, self.changed(hidden), sequence)

    def changed(self, hidden: Tensor) -> Tensor:
        generator = torch.Generator(hidden.device).manual_seed(0)
        signs = torch.randint(0, 2, hidden.shape, generator=generator, device=hidden.device)
        return hidden * (1 + self.share * (2.0 * signs - 1))


def estimate(family: Family, batch: Input, dtype: str) -> Row:
    """The relative rounding error of the method's output, and the number format that has it. Only
    for float32 cells: in others a change this small is lost. The method is left as it was."""
    if dtype != "float32":
        return {}
    method = family.method
    outputs = []
    for share in (CHANGE, 0.0, -CHANGE):
        torch.manual_seed(0)
        family.method = Changed(method, share)
        outputs.append(family.encode(*batch).flatten(0, -2))
    family.method = method
    up, middle, down = outputs
    noise = (up - 2 * middle + down).norm(dim=-1) / (6**0.5 * middle.norm(dim=-1))
    error = float(noise.nanmedian())
    return {"fid_rounding": error, "dtype_effective": effective_dtype(error)}


def effective_dtype(error: float) -> str:
    return next((name for bound, name in LOWER.items() if error > bound), "float32")
