"""Storage of a decoder's keys and values (`KVCache`): storage that grows in blocks,
exact attention to its entries, and the cache that keeps every token.

Shapes: B batch, G key heads, H query heads, E entries, n tokens so far, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from methods.base import KVCache
from methods.parts.attention import attend_masked, exact_attention
from methods.parts.sequence import AttentionCall

BLOCK = 64
"""Entries that storage grows by: appending one token copies nothing in 63 of 64 steps."""
SHARE = 32
"""Large storage grows by a 32nd: a token then copies 32 entries, at any length."""

Attention = Callable[[Tensor, Tensor, Tensor, AttentionCall], Tensor]


class Storage:
    """Tensors [B, G, E, …] that grow by entries together, with room for some more.

    size  entries that are held
    """

    def __init__(self, parts: Sequence[Tensor], block: int = BLOCK) -> None:
        """Uses `parts` without copying them, with no spare room."""
        self._parts, self.size, self._block = list(parts), parts[0].shape[2], block

    def parts(self) -> list[Tensor]:
        """Each tensor without the spare room."""
        return [part.narrow(2, 0, self.size) for part in self._parts]

    def add(self, *new: Tensor) -> None:
        """Adds t entries: [B, G, t, …] for the first part; the others must broadcast to it."""
        count = new[0].shape[2]
        end = self.size + count
        if end > self._parts[0].shape[2]:
            step = max(self._block, end // SHARE // self._block * self._block)
            room = -(-end // step) * step
            for i, part in enumerate(self._parts):
                self._parts[i] = _grown(part, self.size, room)
        for part, more in zip(self._parts, new, strict=True):
            part.narrow(2, self.size, count).copy_(more)
        self.size = end

    def keep_last(self, count: int) -> None:
        """Frees all entries but the last ones."""
        first = max(0, self.size - count)
        self._parts = [part[:, :, first:].clone() for part in self.parts()]
        self.size -= first

    def held(self) -> list[Tensor]:
        return list(self._parts)


class Entries(Storage):
    """The entries of one layer: keys and values [B, G, E, d], and the number [B, G, E] of each
    entry's token.

    seen  tokens so far, kept or not
    """

    def __init__(self, key: Tensor, value: Tensor) -> None:
        """Copies the prompt's keys and values [B, G, n, d]."""
        token = torch.empty(key.shape[:3], dtype=torch.long, device=key.device)
        super().__init__([x[:, :, :0] for x in (key, value, token)])
        self.seen = 0
        self.append(key, value)

    @property
    def key(self) -> Tensor:
        return self._parts[0].narrow(2, 0, self.size)

    @property
    def value(self) -> Tensor:
        return self._parts[1].narrow(2, 0, self.size)

    @property
    def token(self) -> Tensor:
        return self._parts[2].narrow(2, 0, self.size)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds the next tokens' keys and values [B, G, t, d]."""
        seen = self.seen + key.shape[2]
        self.add(key, value, torch.arange(self.seen, seen, device=key.device))
        self.seen = seen

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        """Exact attention of the last t tokens, query [B, H, t, d], to all entries, of which the
        last t are their own → [B, H, t, d]. Padding and entries before a window aren't read."""
        return attend_masked(query, self.key, self.value, self._visible(query, call), call)

    def bytes(self) -> int:
        """Bytes of the keys and values, without the spare room."""
        return sum(x.numel() * x.element_size() for x in (self.key, self.value))

    def _visible(self, query: Tensor, call: AttentionCall) -> Tensor | None:
        """[B, H, t, E] bool: the entries that each query may read; None: all."""
        t, valid = query.shape[2], call.sequence.valid
        window = self.seen if call.window is None else call.window
        if t == 1 and valid is None and window >= self.seen:
            return None
        at = torch.arange(self.seen - t, self.seen, device=query.device)[:, None]
        token = self.token[:, :, None]
        visible = (token <= at) & (token > at - window)
        if valid is not None:
            of_entries = valid[:, None].expand(-1, self.token.shape[1], -1)
            visible = visible & of_entries.gather(2, self.token)[:, :, None]
        return visible.repeat_interleave(query.shape[1] // self.key.shape[1], 1)


def _grown(x: Tensor, size: int, room: int) -> Tensor:
    storage = x.new_empty(*x.shape[:2], room, *x.shape[3:])
    storage[:, :, :size] = x[:, :, :size]
    return storage


@dataclass
class FullCache:
    """Keeps the keys and values of every token; in a layer with a window, of those within reach.
    `attention` reads the prompt; new tokens attend to all entries by `decoding`, or exactly
    (None)."""

    attention: Attention = exact_attention
    decoding: Attention | None = None
    layers: dict[int, Entries] = field(default_factory=dict)
    read_bytes: int = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.attention(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.layers[call.layer] = entries = Entries(key, value)
        self._leave_window(entries, call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries = self.layers[call.layer]
        self._leave_window(entries, call)
        entries.append(key, value)
        self.read_bytes += entries.bytes()
        if self.decoding is not None:
            return self.decoding(query, entries.key, entries.value, call)
        return entries.attend(query, call)

    def _leave_window(self, entries: Entries, call: AttentionCall) -> None:
        """Frees the tokens that no later query reaches, a block at a time."""
        if call.window is not None and entries.size >= call.window + BLOCK:
            entries.keep_last(call.window)

    def held(self) -> Sequence[Tensor]:
        return [part for entries in self.layers.values() for part in entries.held()]


@dataclass
class WindowsApart:
    """A method's cache for some layers, and exact attention with a `FullCache` in the `exact`
    layers."""

    cache: KVCache
    exact: frozenset[int]
    windows: FullCache = field(default_factory=FullCache)

    @property
    def read_bytes(self) -> int:
        return self.cache.read_bytes + self.windows.read_bytes

    @property
    def layers(self) -> Mapping[int, Any]:
        return {**getattr(self.cache, "layers", {}), **self.windows.layers}

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self._of(call).prefill(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self._of(call).take(query, key, value, call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self._of(call).decode(query, key, value, call)

    def held(self) -> Sequence[Tensor]:
        return [*self.cache.held(), *self.windows.held()]

    def _of(self, call: AttentionCall) -> KVCache:
        return self.windows if call.layer in self.exact else self.cache


def decodes_exactly(cache: KVCache | None) -> bool:
    """Whether new tokens read all keys and values except those outside a window; None is the cache
    of a method that has none."""
    inner = cache.cache if isinstance(cache, WindowsApart) else cache
    return inner is None or (isinstance(inner, FullCache) and inner.decoding is None)


def decoding_singly(cache: KVCache) -> Attention | None:
    """`cache.decode` for several new tokens at once, each read as if it came alone. None for a
    cache of another package, which could let a token read later ones."""
    inner = cache.cache if isinstance(cache, WindowsApart) else cache
    if type(inner).__module__.partition(".")[0] != __name__.partition(".")[0]:
        return None
    if decodes_exactly(inner) or getattr(inner, "at_once", False):
        return cache.decode

    def decode(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        each = zip(query.split(1, 2), key.split(1, 2), value.split(1, 2), strict=True)
        return torch.cat([cache.decode(q, k, v, call) for q, k, v in each], 2)

    return decode
