"""TurboQuant (Zandieh et al., arXiv 2504.19874, §3.1, Algorithm 1): a KV cache in 1 to 4 bits after
a random rotation.

A vector x of d channels is kept as its norm, in 16 bits, and the rotated direction √d·Πx/‖x‖, whose
numbers are nearly normal for any x. Each number becomes the nearest of 2^bits centroids, which
minimise the mean squared error of a normal number. A number takes bits + 16/d bits. The newest keys
and values are quantised too, as in the paper. No entry is dropped, so there is no budget. The
prompt attends unquantised.

Keys and values are not rotated back: the query is rotated once, and so is the sum of the values.
A native kernel reads codes of 2 to 4 bits; torch unpacks some entries at a time, so that the whole
cache is never in full precision. Attention is computed in float32 or float64.

There is no official code. Differs from the paper:
- Centroids are those of the normal distribution instead of the distribution for d channels, which
  tends to it as d grows.
- It has no 2.5 and 3.5 bits, where some channels have one bit more, and no form for unbiased inner
  products, which spends a bit on the sign of the residual (Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from math import inf, sqrt
from statistics import NormalDist
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, Feature, Workload
from methods.kernels.codes import packed, unpacked
from methods.parts.attention import capped, logits, mask_future, mask_past, softmax, widened
from methods.parts.kv_cache import BLOCK, CacheMethod, Storage
from methods.parts.parameters import NonNegative
from methods.parts.quantised_entries import AT_ONCE

ROUNDS = 1000
"""Of Lloyd's algorithm; after these the centroids of 4 bits move by less than 1e-9."""


@dataclass(frozen=True)
class TurboQuant(CacheMethod):
    """Keys and values in few bits after a rotation.

    bits    bits of each number; None: only rotated, in full precision, which is exact
    seed    seed of the rotation, the same for all layers and heads
    kernel  "native": methods/kernels multiplies with the codes; "torch": torch restores the numbers
            first; "auto": native where it can run
    """

    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)
    bits: Literal[1, 2, 3, 4] | None = 3
    seed: NonNegative = 0
    kernel: kernels.Kernel = "auto"
    kernel_used: ClassVar[str] = ""  # type: ignore[assignment]

    def unsupported(self, workload: Workload) -> str | None:
        if reason := super().unsupported(workload):
            return reason
        if self.bits is None or workload.head_size % 8 == 0:
            return None
        return f"heads of {workload.head_size} channels don't fill whole bytes: it takes 8, 16, …"

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return self.bits is None

    def exact_limit(self) -> Self:
        return replace(self, bits=None, prefill=None)

    def rotation(self, size: int) -> Tensor:
        """A random rotation or reflection [size, size], float64."""
        draw = torch.Generator().manual_seed(self.seed)
        normal = torch.randn(size, size, generator=draw, dtype=torch.float64)
        rotation, upper = torch.linalg.qr(normal)
        haar: Tensor = rotation * upper.diagonal().sign()
        return haar

    def kv_cache(self, workload: Workload) -> TurboQuantCache:
        return TurboQuantCache(self, self.rotation(workload.head_size))


@cache
def centroids(bits: int) -> tuple[float, ...]:
    """The 2^bits numbers, in ascending order, that minimise the mean squared error of rounding a
    standard normal number to the nearest of them (Lloyd 1982, Max 1960)."""
    normal, count = NormalDist(), 1 << bits
    numbers = [normal.inv_cdf((i + 0.5) / count) for i in range(count)]
    for _ in range(ROUNDS):
        edges = [-inf, *((a + b) / 2 for a, b in pairwise(numbers)), inf]
        numbers = [
            (normal.pdf(a) - normal.pdf(b)) / (normal.cdf(b) - normal.cdf(a))
            for a, b in pairwise(edges)
        ]
    return tuple(numbers)


class Rotated(Storage):
    """The keys and values of one layer: codes [B, G, E, d · bits / 8] and scales [B, G, E, 1] of
    the keys, and those of the values. A vector is its scale, ‖x‖/√d, times its centroids.

    rotation  [d, d]
    read      bytes that new tokens have read so far
    """

    def __init__(self, method: TurboQuant, rotation: Tensor, key: Tensor, value: Tensor) -> None:
        self.method, self.bits, self.rotation, self.read = method, method.bits, rotation, 0
        super().__init__(self._coded(key, value))

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds new tokens [B, G, t, d]."""
        self.add(*self._coded(key, value))

    def leave_window(self, window: int | None) -> None:
        """Frees the tokens that no later query reaches, a block at a time."""
        if window is not None and self.size >= window + BLOCK:
            self.keep_last(window)

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        """Attention of the last t tokens, query [B, H, t, d], to all entries → [B, H, t, d]."""
        keys, key_scale, values, value_scale = self.parts()
        self.read += sum(x.nbytes for x in (*self.parts(), self.rotation))
        t, first = query.shape[2], self.size - query.shape[2]
        rotated = widened(query) @ self.rotation.mT
        scores = capped(self._scores(rotated, keys, key_scale) * call.scale, call)
        scores = mask_past(mask_future(scores, first) if t > 1 else scores, first, call)
        if call.sequence.valid is not None:
            padding = ~call.sequence.valid[:, None, None, -self.size :]
            scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
        output = self._weighted_sum(softmax(scores, call), values, value_scale)
        return (output.view_as(rotated) @ self.rotation).to(query.dtype)

    def _scores(self, query: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
        """The products of rotated queries [B, H, t, d] with keys → [B, H, t, E]."""
        found = self._natively(kernels.code_scores, query, codes, scale)
        if not isinstance(found, str):
            return found
        parts = [logits(query, key, 1) for key in self._directions(codes)]
        scores = torch.cat(parts, 3).view(*codes.shape[:2], -1, self.size) * scale.mT
        return scores.view(*query.shape[:3], self.size)

    def _weighted_sum(self, weights: Tensor, codes: Tensor, scale: Tensor) -> Tensor:
        """Sum of the values, still rotated: weights [B, H, t, E] → the numbers of [B, H, t, d]."""
        found = self._natively(kernels.code_sums, weights, codes, scale)
        if not isinstance(found, str):
            return found
        scaled = weights.view(*codes.shape[:2], -1, self.size) * scale.mT
        output = scaled.new_zeros(*scaled.shape[:3], len(self.rotation))
        for part, value in zip(self._split(scaled, 3), self._directions(codes), strict=True):
            output += part @ value
        return output

    def _natively(
        self,
        function: Callable[[Tensor, kernels.Codes], Tensor | str],
        rows: Tensor,
        codes: Tensor,
        scale: Tensor,
    ) -> Tensor | str:
        """The kernel's result for rows of queries or weights, or the reason why it can't run."""
        if self.method.kernel == "torch":
            found: Tensor | str = kernels.ASKED
        elif self.bits is None:
            found = "full precision"
        else:
            found = function(
                rows, kernels.Codes(codes, scale, None, self.bits, centroids(self.bits))
            )
        kernels.note(self.method, found)
        return found

    def _coded(self, key: Tensor, value: Tensor) -> list[Tensor]:
        """Codes and scales of keys and of values [B, G, t, d]; scales are 1 if numbers aren't
        quantised."""
        x = torch.cat((key, value), 1)
        half = torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float16
        codes = widened(x) @ self.rotation.mT
        scale = torch.ones_like(codes[..., :1])
        if self.bits is not None:
            scale = codes.norm(dim=-1, keepdim=True) / sqrt(x.shape[3])
            numbers = torch.tensor(centroids(self.bits), dtype=scale.dtype, device=x.device)
            edges = (numbers[1:] + numbers[:-1]) / 2
            nearest = torch.bucketize(codes / torch.where(scale == 0, 1, scale), edges)
            codes = packed(nearest.to(torch.uint8), self.bits)
        scale = scale.to(half)
        return [part.chunk(2, 1)[i] for i in range(2) for part in (codes, scale)]

    def _directions(self, codes: Tensor) -> Iterator[Tensor]:
        """The centroids [B, G, some, d] of codes [B, G, E, …], some entries at a time."""
        dtype, device = self.rotation.dtype, codes.device
        for some in self._split(codes, 2):
            if self.bits is None:
                yield some
                continue
            numbers = torch.tensor(centroids(self.bits), dtype=dtype, device=device)
            which = unpacked(some, self.bits, torch.int32)
            yield numbers.index_select(0, which.flatten()).view_as(which)

    def _split(self, x: Tensor, dim: int) -> Sequence[Tensor]:
        """x, split along `dim`, the dimension of entries, into parts that are unpacked at once."""
        numbers = x.shape[0] * x.shape[1] * len(self.rotation)
        parts: Sequence[Tensor] = x.split(max(1, AT_ONCE // numbers), dim)
        return parts


@dataclass
class TurboQuantCache:
    """The cache of `TurboQuant`.

    at_once  several new tokens at once are read as if each came alone
    """

    at_once: ClassVar[bool] = True
    method: TurboQuant
    rotation: Tensor
    layers: dict[int, Rotated] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        return sum(entries.read for entries in self.layers.values())

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.rotation = self.rotation.to(key.device, torch.promote_types(key.dtype, torch.float32))
        entries = Rotated(self.method, self.rotation, key, value)
        entries.leave_window(call.window)
        self.layers[call.layer] = entries

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries = self.layers[call.layer]
        entries.leave_window(call.window)
        entries.append(key, value)
        return entries.attend(query, call)

    def held(self) -> Sequence[Tensor]:
        return [self.rotation, *(x for entries in self.layers.values() for x in entries.held())]
