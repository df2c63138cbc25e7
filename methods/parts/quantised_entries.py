"""The newest keys and values of a decoder's layer in full precision, the others in 2 or 4 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from methods import kernels
from methods.base import AttentionCall
from methods.kernels.codes import quantised, restored, unpacked
from methods.parts.attention import capped, logits, mask_future, mask_past, softmax
from methods.parts.kv_cache import BLOCK, Storage

AT_ONCE = 1 << 19
"""Numbers that are unpacked at a time: they stay in the cache of the CPU."""


class Quantising(Protocol):
    """The settings of `methods.kivi.KIVI`."""

    @property
    def bits(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def residual(self) -> int: ...
    @property
    def kernel(self) -> str: ...


class QuantisedEntries:
    """The keys and values of one layer, of rows without padding.

    keys    codes [B, G, blocks, group, d · bits / 8], scales and minima [B, G, blocks, 1, d]
    values  codes [B, G, tokens, groups, channels · bits / 8], scales and minima
            [B, G, tokens, groups, 1]
    key, value  the newest keys and values, in full precision
    """

    def __init__(self, method: Quantising, key: Tensor, value: Tensor) -> None:
        """Copies the prompt's keys and values [B, G, n, d]."""
        self.method, self.read = method, 0
        self.bits, self.group, self.residual = method.bits, method.group, method.residual
        self.key, self.value = key[:, :, :0], value[:, :, :0]
        self.keys = Storage(self._quantised_keys(key[:, :, :0]), block=1)
        self.values = Storage(self._quantised_values(value[:, :, :0]))
        self.append(key, value)
        self.quantise()

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds new tokens [B, G, t, d], in full precision."""
        self.key, self.value = torch.cat((self.key, key), 2), torch.cat((self.value, value), 2)

    def quantise(self) -> None:
        """Quantises the tokens that are older than the residual."""
        residual = self.residual
        full = self.key.shape[2] // residual * residual
        if full:
            self.keys.add(*self._quantised_keys(self.key[:, :, :full]))
            self.key = self.key[:, :, full:].clone()
        older = self.value.shape[2] - residual
        if older > 0:
            self.values.add(*self._quantised_values(self.value[:, :, :older]))
            self.value = self.value[:, :, older:].clone()

    def leave_window(self, window: int | None) -> None:
        """Frees whole groups of tokens that no later query reaches, a block at a time."""
        tokens = self.values.size + self.value.shape[2]
        left = 0 if window is None else tokens - window
        groups = min(left, self.values.size, self.keys.size * self.group) // self.group
        if groups * self.group >= BLOCK:
            self.keys.keep_last(self.keys.size - groups)
            self.values.keep_last(self.values.size - groups * self.group)

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        """Attention of the last t tokens, query [B, H, t, d], to all entries → [B, H, t, d]."""
        used = (*self.keys.parts(), *self.values.parts(), self.key, self.value)
        self.read += sum(x.nbytes for x in used)
        t, last = query.shape[2], self.value.shape[2]
        parts = [*self._scores(query, call.scale), logits(query, self.key, call.scale)]
        scores = capped(torch.cat(parts, 3), call)
        first = scores.shape[3] - t
        scores = mask_past(mask_future(scores, first) if t > 1 else scores, first, call)
        weights = softmax(scores, call).view(*self.key.shape[:2], -1, first + t)
        newest = weights[..., -last:].to(query.dtype) @ self.value
        output = self._weighted_sum(weights[..., :-last]) + newest
        return output.to(query.dtype).view(*query.shape[:3], -1)

    def held(self) -> list[Tensor]:
        return [*self.keys.held(), *self.values.held(), self.key, self.value]

    def _scores(self, query: Tensor, scale: float) -> list[Tensor]:
        """Scores of query [B, H, t, d] with the quantised keys, in parts [B, H, t, some]."""
        if not self.keys.size:
            return []
        codes, scales, minima = self.keys.parts()
        keys = kernels.Codes(
            codes.flatten(2, 3), scales[:, :, :, 0], minima[:, :, :, 0], self.bits, block=self.group
        )
        found = kernels.ASKED if self._asked else kernels.code_scores(query, keys)
        kernels.note(self.method, found)
        if not isinstance(found, str):
            return [found * scale]
        restored_keys = (key.flatten(2, 3) for key in self._restored_keys())
        return [logits(query, key, scale) for key in restored_keys]

    def _restored_keys(self) -> Iterator[Tensor]:
        """The quantised keys in full precision, some blocks at a time."""
        parts = self.keys.parts()
        split = (part.split(self._at_once(parts[0]), 2) for part in parts)
        for packed, scale, minimum in zip(*split, strict=True):
            yield restored(packed, scale, minimum, self.bits, self.key.dtype)

    def _weighted_sum(self, weights: Tensor) -> Tensor:
        """Weighted sum of the quantised values: weights [B, G, q, m] → [B, G, q, d]. In torch, a
        token's scales multiply its weights, once for each group of channels, not its values."""
        packed, scales, minima = self.values.parts()
        if self.values.size and not self._asked:
            values = kernels.Codes(packed.flatten(3), scales[..., 0], minima[..., 0], self.bits)
            found = kernels.code_sums(weights, values)
            kernels.note(self.method, found)
            if not isinstance(found, str):
                return found
        groups, size, dtype = scales.shape[3], self._at_once(packed), weights.dtype
        scales = scales.movedim(2, 4).contiguous().to(dtype)
        scaled = (weights[:, :, None] * scales).flatten(2, 3).split(size, 3)
        codes = (unpacked(x, self.bits, dtype).flatten(3) for x in packed.split(size, 2))
        least = weights @ minima[..., 0].to(dtype)
        every = weights.new_zeros(())
        for part, x in zip(scaled, codes, strict=True):
            every = every + part @ x
        # from the sums over all channels, each group's own channels
        every = every.unflatten(3, (groups, -1)).unflatten(2, (groups, -1))
        output: Tensor = every.diagonal(0, 2, 4) + least[:, :, :, None]
        return output.transpose(3, 4).flatten(3)

    @property
    def _asked(self) -> bool:
        """Whether the settings ask for torch."""
        return self.method.kernel == "torch"

    def _at_once(self, packed: Tensor) -> int:
        """How many entries are unpacked at a time."""
        return max(1, AT_ONCE * self.bits // 8 // max(1, packed[:, :, :1].numel()))

    def _quantised_keys(self, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return quantised(key.unflatten(2, (-1, self.group)), self.bits, -2)

    def _quantised_values(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        channels = min(self.group, value.shape[3])
        return quantised(value.unflatten(3, (-1, channels)), self.bits, -1)
