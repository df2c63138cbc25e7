"""NoMAD-Attention (Zhang et al., arXiv 2403.01273, §3): a decoder's keys as codes of 4 bits, whose
products with a query are looked up in registers.

The channels of a key are cut into groups. Each group of a KV head has 16 centroids, and a key is
kept as the numbers of the nearest ones. A query is multiplied only with the centroids: for each
group, a table of 16 numbers in 8 bits fits a register of 16 bytes, from which one instruction looks
up the products of 16 keys or more. A score is the sum of a key's products. Values are stored and
read exactly; no entry is dropped, so there is no budget. The prompt attends exactly.

Differs from the official code (tonyzhang617/nomad-dist, a fork of llama.cpp, MIT):
- There, centroids are learned for each layer and head from the keys of a calibration text; here
  from at most `SAMPLE` evenly spaced keys of the prompt, while it is read.
- There, keys are codes while the prompt is read, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, Feature, Workload
from methods.parts.attention import capped, softmax, widened
from methods.parts.kv_cache import CacheMethod, FullCache, Storage
from methods.parts.sequence import unpadded

CENTROIDS, BLOCK = 16, 32
"""Centroids of a group, and keys in a block of codes."""
SAMPLE, ROUNDS = 1024, 8
"""Keys of a prompt from which centroids are learned, and rounds of k-means."""
AT_ONCE = 1024
"""Keys that are coded at a time."""


@dataclass(frozen=True)
class NoMAD(CacheMethod):
    """Keys in 4 bits for each group of channels.

    channels  channels of a key that share a code; 1, 2 and 4 in the paper. None: keys in full
              precision, which is exact
    kernel    "native": sums by the kernel of methods/kernels; "torch": the same sums by torch;
              "auto": native where it can run
    """

    honours: ClassVar[frozenset[Feature]] = frozenset({Feature.SOFTCAP, Feature.SINKS})
    channels: Literal[1, 2, 4] | None = 1
    kernel: kernels.Kernel = "auto"
    kernel_used: ClassVar[str] = ""  # type: ignore[assignment]

    def unsupported(self, workload: Workload) -> str | None:
        if reason := super().unsupported(workload):
            return reason
        size = workload.head_size
        if self.channels is None or size % self.channels == 0:
            return None
        return f"heads of {size} channels can't be cut into groups of {self.channels}"

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return self.channels is None

    def exact_limit(self) -> Self:
        return replace(self, channels=None, prefill=None)

    def kv_cache(self, workload: Workload) -> NoMADCache | FullCache:
        if self.channels is None:
            return FullCache(self.attend)
        return NoMADCache(self, self.channels)


@dataclass
class NoMADCache:
    """The cache of `NoMAD`, by layer."""

    method: NoMAD
    channels: int
    layers: dict[int, CodedEntries] = field(default_factory=dict)
    read_bytes: int = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        rows = unpadded(query, key, value, call)
        centroids = [learned(k, self.channels) for _, _, (_, k, _), _ in rows]
        self.layers[call.layer] = entries = CodedEntries(torch.cat(centroids), value)
        entries.append(key, value)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries = self.layers[call.layer]
        entries.append(key, value)
        self.read_bytes += entries.bytes()
        found: Tensor | str = kernels.ASKED
        plain = call.softcap is None and call.sinks is None and call.sequence.valid is None
        if self.method.kernel != "torch" and query.shape[2] == 1 and plain:
            codes = entries.codes.parts()[0]
            found = kernels.lookups(query, entries.centroids, codes, entries.value, call.scale)
        elif self.method.kernel != "torch":
            found = "padding, soft caps, sinks or several new tokens"
        kernels.note(self.method, found, "int8")
        return entries.attend(query, call) if isinstance(found, str) else found.to(query.dtype)

    def held(self) -> Sequence[Tensor]:
        return [x for entries in self.layers.values() for x in entries.held()]


class CodedEntries:
    """The entries of one layer.

    centroids  [B, G, S, 16, channels] for S groups of channels
    codes      [B, G, E / 32, S, 16]: in a block of 32 keys, byte i has key i in its low half and
               key 16 + i in its high half
    values     [B, G, E, d]
    """

    def __init__(self, centroids: Tensor, value: Tensor) -> None:
        """Creates it empty; `value` [B, G, n, d] gives the sizes and the dtype of values."""
        self.centroids = centroids
        empty = centroids.new_zeros(*centroids.shape[:2], 0, centroids.shape[2], CENTROIDS)
        self.codes = Storage([empty.to(torch.uint8)], block=2)
        self.values = Storage([value[:, :, :0]])

    @property
    def size(self) -> int:
        return self.values.size

    @property
    def value(self) -> Tensor:
        return self.values.parts()[0]

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds new tokens' keys and values [B, G, t, d]."""
        self.values.add(value)
        [codes] = self.codes.parts()
        if missing := -(-self.size // BLOCK) - self.codes.size:
            self.codes.add(codes.new_zeros(*codes.shape[:2], missing, *codes.shape[3:]))
            [codes] = self.codes.parts()
        if isinstance(kernels.encode(key, self.centroids, codes, self.size), str):
            first = self.size - key.shape[2]
            for start in range(0, key.shape[2], AT_ONCE):
                part = _groups(key[:, :, start : start + AT_ONCE], self.centroids.shape[4])
                write(nearest(part, self.centroids), codes, first + start)

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        """`kernels.lookups` in torch, for the last t tokens, query [B, H, t, d]."""
        n, t, valid = self.size, query.shape[2], call.sequence.valid
        scores = capped(self.scores(query, call.scale), call)
        if t > 1 or valid is not None:
            at = torch.arange(n, device=query.device)
            hidden = at > at[n - t :, None]
            if valid is not None:
                hidden = hidden | ~valid[:, None, None, :n]
            scores = scores.masked_fill(hidden, -inf)
        weights = softmax(scores, call).to(self.value.dtype)
        output = weights.view(*self.value.shape[:2], -1, n) @ self.value
        return output.view(*query.shape[:3], -1)

    def scores(self, query: Tensor, scale: float) -> Tensor:
        """Query [B, H, t, d] → approximate scores [B, H, t, E] in float32 or wider."""
        centroids, heads = self.centroids, self.centroids.shape[1]
        rows = widened(query).reshape(len(query), heads, -1, query.shape[3])  # [B, G, R, d]
        groups = _groups(rows, centroids.shape[4])
        products = torch.einsum("bgsrc,bgskc->bgrsk", groups, centroids) * scale
        least, most = products.aminmax(dim=-1, keepdim=True)
        step = (most - least).amax(3, keepdim=True).clamp(min=1e-30) / 255
        tables = ((products - least) / step).round().to(torch.uint8)
        codes = self.codes.parts()[0]
        code = torch.cat((codes & 15, codes >> 4), 4).movedim(3, 2).flatten(3).long()
        sums = [table.gather(3, code).sum(2, dtype=torch.int32) for table in tables.unbind(2)]
        scores = torch.stack(sums, 2) * step[..., 0] + least.sum((3, 4))[..., None]
        return scores[..., : self.size].reshape(*query.shape[:3], self.size)

    def bytes(self) -> int:
        """Bytes that a new token reads, without the spare room."""
        return sum(x.nbytes for x in (self.value, *self.codes.parts(), self.centroids))

    def held(self) -> list[Tensor]:
        return [*self.values.held(), *self.codes.held(), self.centroids]


def learned(key: Tensor, channels: int) -> Tensor:
    """The centroids [B, G, S, 16, channels] of keys [B, G, m, d], by k-means. It starts from keys
    that are evenly spaced in the order of each group's first channel."""
    points = _groups(widened(key[:, :, :: max(1, -(-key.shape[2] // SAMPLE))]), channels)
    count = points.shape[3]
    if not count:
        return points.new_zeros(*points.shape[:3], CENTROIDS, channels)
    places = (torch.arange(CENTROIDS, device=key.device) + 0.5) * count / CENTROIDS
    ranked = points[..., 0].argsort(-1)[..., places.long()]
    centroids = points.gather(3, _wide(ranked, points))
    for _ in range(ROUNDS):
        code = _wide(nearest(points, centroids), points)
        counts = torch.zeros_like(centroids).scatter_add_(3, code, torch.ones_like(points))
        sums = torch.zeros_like(centroids).scatter_add_(3, code, points)
        centroids = torch.where(counts > 0, sums / counts.clamp(min=1), centroids)
    return centroids


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """The number [B, G, S, m] of the nearest centroid [B, G, S, 16, c] of points
    [B, G, S, m, c]."""
    products = points.to(centroids.dtype) @ centroids.mT
    return (products - centroids.square().sum(-1)[..., None, :] / 2).argmax(-1)


def write(code: Tensor, codes: Tensor, first: int) -> None:
    """Writes the codes [B, G, S, t] of keys from number `first` on into blocks of zeros."""
    key = torch.arange(first, first + code.shape[3], device=code.device)
    shifted = code.to(torch.uint8) << (key % BLOCK // CENTROIDS * 4).to(torch.uint8)
    for half in (key % BLOCK < CENTROIDS, key % BLOCK >= CENTROIDS):
        block, byte = key[half] // BLOCK, key[half] % CENTROIDS
        codes[:, :, block, :, byte] |= shifted[..., half].permute(3, 0, 1, 2)


def _groups(x: Tensor, channels: int) -> Tensor:
    """[B, G, m, d] → [B, G, S, m, channels]"""
    groups: Tensor = x.unflatten(3, (-1, channels))
    return groups.transpose(2, 3)


def _wide(index: Tensor, x: Tensor) -> Tensor:
    """Indices [B, G, S, k] of points of x [B, G, S, m, c], expanded over the channels."""
    return index[..., None].expand(*index.shape, x.shape[4])
