"""llama.cpp's quantised KV caches, q8_0 and q4_0, as of its options --cache-type-k and
--cache-type-v.

Each token's key, and value, is cut into blocks of 32 channels of one head. A block of q8_0 has 32
codes of 8 bits and a scale of 16 bits, max |x| / 127: 1.0625 bytes a number. A block of q4_0 has
codes of 4 bits and the scale m / -8, where m is the signed number farthest from 0: 0.5625 bytes.
Keys and values have separate formats, and no entry is dropped. With `hadamard`, keys and queries
are first multiplied by an orthonormal Hadamard matrix over the channels of a head. It spreads
outliers over all channels and leaves the scores unchanged.

Official code: ggml-org/llama.cpp (MIT), ggml/src/ggml-quants.c; the rotation is that of
ikawrakow/ik_llama.cpp (MIT), --k-cache-hadamard. Differs from it: the prompt attends unquantised,
so that one reading of it serves several caches (there, to the stored numbers); halves are rounded
to even, as by llama.cpp's vector code; two neighbours share a byte of q4_0 (there numbers i and i +
16), which changes no number; queries are multiplied in float32 (there in 8 bits). Heads of fewer
than 32 channels are one block; heads that blocks of 32 don't divide are refused, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall, Feature, Workload
from methods.kernels.codes import unpacked
from methods.parts.attention import capped, logits, softmax, widened
from methods.parts.kv_cache import CacheMethod, Entries, EntriesCache, Storage

BLOCK = 32
"""Channels that share a scale."""
Q4_0 = tuple(code - 8.0 for code in range(16))
"""The numbers of codes of q4_0."""
Format = Literal["q8_0", "q4_0", "full"]


@dataclass(frozen=True)
class GGMLCache(CacheMethod):
    """Keys and values in blocks of a few bits.

    keys, values  the format of each: q8_0, q4_0, or full, the model's own precision
    hadamard      keys are rotated before they are quantised; the head size must be a power of two
    kernel        "native": methods/kernels multiplies with the codes; "torch": torch restores the
                  numbers first; "auto": native where it can run
    """

    honours: ClassVar[frozenset[Feature]] = frozenset(Feature)
    keys: Format = "q8_0"
    values: Format = "q8_0"
    hadamard: bool = False
    kernel: kernels.Kernel = "auto"
    kernel_used: ClassVar[str] = ""  # type: ignore[assignment]

    def unsupported(self, workload: Workload) -> str | None:
        if reason := super().unsupported(workload):
            return reason
        size, formats = workload.head_size, (self.keys, self.values)
        block = min(BLOCK, size)
        if set(formats) != {"full"} and (size % block or block % 2):
            return f"heads of {size} channels can't be cut into blocks of {BLOCK}"
        if self.hadamard and size & (size - 1):
            return f"hadamard takes heads of a power of two of channels; this model's have {size}"
        return None

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return self.keys == self.values == "full"

    def exact_limit(self) -> Self:
        return replace(self, keys="full", values="full", prefill=None)

    def scaled_down(self) -> Self:
        return replace(self, keys="q4_0", values="q4_0")

    def kv_cache(self, workload: Workload) -> EntriesCache:
        return EntriesCache(self, workload)

    def entries(
        self, key: Tensor, value: Tensor, call: AttentionCall, workload: Workload
    ) -> BlockEntries:
        return BlockEntries(self, key, value)


class BlockEntries(Entries):
    """The last `size` keys and values of one layer, in their formats."""

    def __init__(self, method: GGMLCache, key: Tensor, value: Tensor) -> None:
        """Copies the prompt's keys and values [B, G, n, d]."""
        self.method, self.dtype, self.seen = method, key.dtype, 0
        Storage.__init__(self, self._stored(key[:, :, :0], value[:, :, :0]))
        self.append(key, value)

    @property
    def key(self) -> Tensor:
        return restored(self._key_parts(), self.dtype)

    @property
    def value(self) -> Tensor:
        return restored(self._value_parts(), self.dtype)

    @property
    def token(self) -> Tensor:
        batch, heads = self._parts[0].shape[:2]
        first, device = self.seen - self.size, self._parts[0].device
        return torch.arange(first, self.seen, device=device).expand(batch, heads, -1)

    def append(self, key: Tensor, value: Tensor) -> None:
        self.add(*self._stored(key, value))
        self.seen += key.shape[2]

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        query = self._turned(query)
        natively = self.method.kernel != "torch"
        found = self._attended_by_codes(query, call) if natively else kernels.ASKED
        kernels.note(self.method, found)
        return super().attend(query, call) if isinstance(found, str) else found.to(query.dtype)

    def bytes(self) -> int:
        return sum(part.nbytes for part in self.parts())

    def _attended_by_codes(self, query: Tensor, call: AttentionCall) -> Tensor | str:
        """`attend` by the native kernel, in float32, or the reason why it can't run."""
        keys, values = (_codes(parts) for parts in (self._key_parts(), self._value_parts()))
        if keys is None and values is None:
            return "full precision"
        scores = logits(query, self.key, 1) if keys is None else kernels.code_scores(query, keys)
        if isinstance(scores, str):
            return scores
        scores, visible = capped(scores * call.scale, call), self._visible(query, call)
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        weights = softmax(scores, call)
        if values is not None:
            return kernels.code_sums(weights, values)
        value = self.value
        by_group = weights.view(*value.shape[:2], -1, value.shape[2]).to(value.dtype)
        return (by_group @ value).view(*query.shape[:3], -1)

    def _key_parts(self) -> list[Tensor]:
        return self.parts()[: 1 + (self.method.keys != "full")]

    def _value_parts(self) -> list[Tensor]:
        return self.parts()[1 + (self.method.keys != "full") :]

    def _turned(self, x: Tensor) -> Tensor:
        if not self.method.hadamard:
            return x
        wide = widened(x)
        return (wide @ hadamard(x.shape[3], wide.dtype, x.device)).to(x.dtype)

    def _stored(self, key: Tensor, value: Tensor) -> list[Tensor]:
        method, key = self.method, self._turned(key)
        if method.keys != method.values:
            return [*quantised(key, method.keys), *quantised(value, method.values)]
        both = quantised(torch.cat((key, value), 1), method.keys)
        return [part.chunk(2, 1)[i] for i in range(2) for part in both]


def quantised(x: Tensor, form: Format) -> list[Tensor]:
    """x [B, G, n, d] → its codes [B, G, n, blocks, bytes], signed 8-bit ones or two 4-bit ones a
    byte, and scales [B, G, n, blocks, 1]; x itself in full precision."""
    if form == "full":
        return [x]
    blocks = widened(x).unflatten(3, (-1, min(BLOCK, x.shape[3])))
    sizes, at = blocks.abs().max(-1, keepdim=True)
    scale = sizes / 127 if form == "q8_0" else blocks.gather(-1, at) / -8
    codes = blocks * torch.where(scale == 0, 0, 1 / scale)
    if form == "q8_0":
        return [codes.round_().to(torch.int8), scale.half()]
    codes = (codes + 8.5).clamp_(0, 15).to(torch.uint8)
    return [codes[..., ::2] | codes[..., 1::2] << 4, scale.half()]


def restored(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The inverse of `quantised`, up to rounding → [B, G, n, d]."""
    if len(parts) == 1:
        return parts[0]
    codes, scale = parts[0], widened(parts[1])
    if codes.dtype == torch.int8:
        numbers = codes.to(scale.dtype)
    else:
        numbers = unpacked(codes, 4, scale.dtype).sub_(8)
    return numbers.mul_(scale).flatten(3).to(dtype)


def _codes(parts: Sequence[Tensor]) -> kernels.Codes | None:
    """The result of `quantised` as the native kernel's argument; None in full precision."""
    if len(parts) == 1:
        return None
    codes, scales = parts[0].flatten(3), parts[1][..., 0]
    if codes.dtype == torch.int8:
        return kernels.Codes(codes, scales)
    return kernels.Codes(codes, scales, bits=4, numbers=Q4_0)


@cache
def hadamard(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal, symmetric Hadamard matrix [size, size]; size is a power of two."""
    matrix = torch.full((1, 1), size**-0.5, dtype=dtype, device=device)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix
