"""A method in a tiny model, its inputs, and the comparison of two outputs."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import deterministic

from bench.models import own_parameters
from bench.models.base import Family
from bench.models.checkpoints import cast
from bench.models.wrappers import Wrapped
from bench.request import plugins
from bench.request.schema import BASELINE
from methods.base import AttentionCall, KVCache, Method, SequenceInfo, Sublayer, Workload

MIXED = (61, 30, 1, 17)
"""Lengths of the rows of a padded batch."""
LONG = 331
CHANGED = 1e-5
CLOSE = 1e-4
"""Relative to the largest output; the rounding of float32 through a few layers is far smaller."""


@dataclass(frozen=True)
class Subject:
    """A method, and the family in which it runs."""

    method: Method
    family: Family

    def encode(self, ids: Tensor, sequence: SequenceInfo, method: Method | None = None) -> Tensor:
        self.family.method = method or self.method
        with torch.no_grad():
            return self.family.encode(ids, sequence)

    @property
    def device(self) -> torch.device:
        return next(self.family.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.family.model.parameters()).dtype

    def batch(
        self, lengths: Sequence[int], side: str = "right", seed: int = 0
    ) -> tuple[Tensor, SequenceInfo]:
        """The same `batch` on every device."""
        ids, sequence = batch(lengths, side, seed)
        positions, valid, vip = (
            None if x is None else x.to(self.device)
            for x in (sequence.positions, sequence.valid, sequence.vip)
        )
        return ids.to(self.device), SequenceInfo(positions, valid, vip)

    def random_states(self) -> list[Tensor]:
        """The global random states from which a method on this device could draw."""
        on_gpu = self.device.type == "cuda"
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]

    def recast(self, dtype: torch.dtype, device: str | None = None) -> Subject:
        """The same weights in another dtype, and on another device if one is given."""
        family = copy.copy(self.family)
        family.model = cast(copy.deepcopy(self.family.model), dtype)
        if device:
            family.model.to(device)
        if dtype == torch.float64:
            for module in family.model.modules():
                if hasattr(module, "variance_epsilon"):
                    module.forward = partial(rms_norm, module)
        return replace(self, family=family)

    def own_weights(self) -> set[str]:
        """The names of the method's own parameters among the model's."""
        own = [name for name, _ in self.family.model.named_parameters()]
        return {name for name in own if name.startswith(f"{own_parameters.NAME}.")}

    def unused_weights(self) -> set[str]:
        """The names of the projections that the method does not use."""
        unused: set[int] = set()
        for part in self.method.unused():
            layers: Any = self.family.layers
            modules = [getattr(layer.projections(), part) for layer in layers]
            unused |= {id(weight) for module in modules for weight in module.parameters()}
        return {name for name, w in self.family.model.named_parameters() if id(w) in unused}

    @property
    def causal(self) -> bool:
        return self.family.workload(LONG, 1).causal


def rms_norm(module: Any, hidden: Tensor) -> Tensor:
    """In the input's dtype: Hugging Face's own computes in float32, too coarse for slopes."""
    variance = hidden.pow(2).mean(-1, keepdim=True)
    normed: Tensor = module.weight * hidden * torch.rsqrt(variance + module.variance_epsilon)
    return normed


def vanilla() -> Method:
    method: Method = plugins.build(plugins.conf("method", BASELINE))
    return method


def batch(
    lengths: Sequence[int], side: str = "right", seed: int = 0
) -> tuple[Tensor, SequenceInfo]:
    """Rows that depend only on the seed and their own length: ids [B, n], random at padding, and
    every seventh token VIP. Padding is on the "right" or "left", or "scattered" among the tokens,
    whose positions then have gaps."""
    scattered = side == "scattered"
    n = max(lengths) + 10 * scattered
    noise = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(3, 64, (len(lengths), n), generator=noise)
    valid = torch.zeros(len(lengths), n, dtype=torch.bool)
    vip = torch.zeros_like(valid)
    for row, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * seed + length)
        tokens = torch.randint(3, 64, (length,), generator=generator)
        places = torch.arange(length) + (n - length if side == "left" else 0)
        if scattered:
            places = torch.randperm(n, generator=generator)[:length].sort().values
        ids[row, places] = tokens
        valid[row, places] = True
        vip[row, places[::7]] = True
    positions = torch.arange(n).expand(len(lengths), n) if scattered else None
    return ids, SequenceInfo(positions, None if bool(valid.all()) else valid, vip)


def alone(ids: Tensor, sequence: SequenceInfo, row: int) -> tuple[Tensor, SequenceInfo]:
    """One row of a batch without its padding."""
    assert sequence.valid is not None and sequence.vip is not None
    valid, positions = sequence.valid[row], sequence.positions
    alone_info = SequenceInfo(
        positions=None if positions is None else positions[row : row + 1, valid],
        vip=sequence.vip[row : row + 1, valid],
    )
    return ids[row : row + 1, valid], alone_info


def rows(output: Tensor, sequence: SequenceInfo) -> list[Tensor]:
    """The valid outputs [length, D] of each row."""
    if sequence.valid is None:
        return list(output)
    return [row[valid] for row, valid in zip(output, sequence.valid, strict=True)]


def error(output: Tensor, expected: Tensor) -> float:
    """Largest difference relative to the largest expected number; inf where one isn't finite."""
    if output.shape != expected.shape or not bool(output.isfinite().all()):
        return float("inf")
    most = expected.double().abs().max().clamp(min=1e-30)
    return float((output.double() - expected.double()).abs().max() / most)


def moved(output: Tensor, before: Tensor) -> Tensor:
    """[B, n]: whether each token's output changed."""
    change = (output.double() - before.double()).abs().amax(-1)
    return change > CHANGED * before.double().abs().max()


@dataclass(frozen=True)
class LayerRecorder(Wrapped):
    """A method that records the layers whose attention it computed."""

    layers: set[int] = field(default_factory=set)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.layers.add(call.layer)
        return super().attend(query, key, value, call)

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        out = super().mix(hidden, sublayer, call)
        if not sublayer.attended:
            self.layers.add(call.layer)
        return out


class Uncached(Wrapped):
    """A method without its cache: all tokens go through it in one forward pass."""

    def kv_cache(self, workload: Workload) -> KVCache | None:
        return None


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Memory that torch allocates uninitialized is filled with NaN."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = deterministic
    filled = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    memory.fill_uninitialized_memory = True
    try:
        yield
    finally:
        memory.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
