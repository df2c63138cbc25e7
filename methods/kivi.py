"""KIVI (Liu et al., arXiv 2402.02750, §3.2, Algorithm 1): a KV cache in 2 or 4 bits.

Keys, whose channels have outliers, are quantised by channel, over groups of tokens; values by
token, over groups of channels. The newest tokens stay in full precision: the last `residual`
values, and the keys since `residual` of them were last quantised. The prompt attends unquantised,
and so do several new tokens at once (a question after the prompt) among themselves. No entry is
dropped, so there is no budget.

Codes are packed into bytes. Scales and minima take 16 bits, as in the paper, whose models have 16
bits too: with 2 bits and groups of 32 a number takes 3 bits. A native kernel reads the codes; torch
unpacks some entries at a time, so that the whole cache is never in full precision.

Differs from the official code (jy-yuan/KIVI, MIT): that code divides by a scale of 0 where a
group's numbers are equal; its scripts set a residual of 32 or 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, Feature, Workload
from methods.parts.kv_cache import CacheMethod
from methods.parts.parameters import Positive
from methods.parts.quantised_entries import QuantisedEntries
from methods.parts.sequence import unpadded


@dataclass(frozen=True)
class KIVI(CacheMethod):
    """Keys and values in few bits.

    bits      bits of each number
    group     numbers that share a scale and a minimum: tokens of a channel of the keys, channels of
              a token of the values (at most the head size)
    residual  newest tokens in full precision; a multiple of group
    kernel    "native": methods/kernels multiplies with the codes; "torch": torch restores the
              numbers first; "auto": native where it can run
    """

    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)
    bits: Literal[2, 4] = 2
    group: Positive = 32
    residual: Positive = 128
    kernel: kernels.Kernel = "auto"
    kernel_used: ClassVar[str] = ""  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.residual % self.group:
            raise ValueError(
                f"residual is {self.residual}; it takes a multiple of group={self.group}"
            )
        if self.group * self.bits % 8:
            raise ValueError(
                f"group is {self.group}; {self.bits} bits take a multiple of {8 // self.bits}"
            )

    def unsupported(self, workload: Workload) -> str | None:
        if reason := super().unsupported(workload):
            return reason
        size, group = workload.head_size, min(self.group, workload.head_size)
        if size % group == 0 and group * self.bits % 8 == 0:
            return None
        return f"heads of {size} channels can't be cut into groups of {group} in {self.bits} bits"

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return workload.length < self.residual

    def exact_limit(self) -> Self:
        residual = self.group * (4096 // self.group + 1)
        return replace(self, residual=residual, prefill=None)

    def scaled_down(self) -> Self:
        return replace(self, group=8, residual=16)

    def kv_cache(self, workload: Workload) -> KIVICache:
        return KIVICache(self)


@dataclass
class KIVICache:
    """The cache of `KIVI`: a layer's entries of the whole batch, or with padding those of each row,
    so that a group has tokens of one row only."""

    method: KIVI
    layers: dict[int, list[QuantisedEntries]] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        return sum(entries.read for layer in self.layers.values() for entries in layer)

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        method = self.method
        self.layers[call.layer] = [
            QuantisedEntries(method, k, v)
            for _, _, (_, k, v), _ in unpadded(query, key, value, call)
        ]
        for entries in self.layers[call.layer]:
            entries.leave_window(call.window)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        rows = self.layers[call.layer]
        split = [x.chunk(len(rows)) for x in (query, key, value)]
        outputs = []
        for entries, q, k, v in zip(rows, *split, strict=True):
            entries.append(k, v)
            outputs.append(entries.attend(q, call))
            entries.quantise()
            entries.leave_window(call.window)
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def held(self) -> Sequence[Tensor]:
        return [x for layer in self.layers.values() for entries in layer for x in entries.held()]
