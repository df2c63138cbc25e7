"""A decoder's keys and values: the base of methods that change only which of them are kept, and
how; storage that grows in blocks, and exact attention to it; caches that keep every token.

Shapes: B batch, G key heads, H query heads, E entries, n tokens so far, d head size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from methods.base import (
    AttentionCall,
    Feature,
    KVCache,
    Method,
    Unsupported,
    Workload,
    refusal,
    runs_layers,
)
from methods.parts.attention import attend_masked, exact_attention
from methods.parts.sequence import Attend

NO_DECODER = "it changes the KV cache of a decoder, which this model has not"
TRAINING = "it changes the KV cache of a decoder, which training has not"
BIAS = "a KV cache of its own takes no position bias and no multiplicities"
BLOCK = 64
"""Entries that storage grows by: appending one token copies nothing in 63 of 64 steps."""
SHARE = 32
"""Large storage grows by a 32nd: a token then copies 32 entries, at any length."""


@dataclass(frozen=True)
class CacheMethod(Method):
    """Exact attention with its own `kv_cache`.

    prefill  the method whose attention reads the prompt; None: exact attention. The cache sees the
             same queries, keys and values
    """

    prefill: Method | None = field(default=None, kw_only=True)

    @property
    def kernel_used(self) -> str:
        """The kernel of `prefill`; raises AttributeError if it has none, as methods that run on
        torch do."""
        used: str = self.prefill.kernel_used  # type: ignore[union-attr]
        return used

    @property
    def chooses_ahead(self) -> bool:  # type: ignore[override]
        return self.prefill is not None and self.prefill.chooses_ahead

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention by `prefill`. Raises Unsupported where a gradient is needed, and for inputs
        that no cache keeps."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise Unsupported(TRAINING)
        if call.bias is not None or call.sequence.log_multiplicity is not None:
            raise Unsupported(BIAS)
        prefill, windowed = self.prefill, call.window is not None and call.window < key.shape[2]
        if prefill is None or (windowed and Feature.WINDOW not in prefill.honours):
            return exact_attention(query, key, value, call)
        return prefill.attend(query, key, value, call)

    def reads_all(self, workload: Workload, layer: int) -> bool:
        prefill = self.prefill is None or self.prefill.reads_all(workload, layer)
        return prefill and self.keeps_all(workload, layer)

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        """Whether a new token reads all of a prompt of `workload.length` tokens, unchanged."""
        return False

    def exact_twin(self) -> Method | None:
        return None if self.prefill is None else self.prefill.exact_twin()

    def unsupported(self, workload: Workload) -> str | None:
        if not workload.causal:
            return NO_DECODER
        if workload.training:
            return TRAINING
        return None if self.prefill is None else self._refused(self.prefill, workload)

    def _refused(self, prefill: Method, workload: Workload) -> str | None:
        """Why another method can't read the prompt."""
        name = type(prefill).__name__
        if runs_layers(prefill) or isinstance(prefill, CacheMethod):
            return f"{name} can't read the prompt for another cache: it is no attention alone"
        reason = refusal(prefill, workload)
        return f"{name}, which reads the prompt: {reason}" if reason else None


def once(call: AttentionCall, of: Any, compute: Callable[[], Tensor]) -> Tensor:
    """The result of `compute`, computed once for all caches that take the same prompt. `of` is the
    key: all else on which the result depends."""
    if call.memo is None:
        return compute()
    if of not in call.memo:
        call.memo[of] = compute()
    return call.memo[of]


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


class _ByLayer:
    """What the caches of every token have in common: the `Entries` of each layer."""

    layers: dict[int, Entries]

    def held(self) -> Sequence[Tensor]:
        return [part for entries in self.layers.values() for part in entries.held()]

    def _leave_window(self, entries: Entries, call: AttentionCall) -> None:
        """Frees the tokens that no later query reaches, a block at a time."""
        if call.window is not None and entries.size >= call.window + BLOCK:
            entries.keep_last(call.window)


@dataclass
class FullCache(_ByLayer):
    """Keeps the keys and values of every token; in a layer with a window, of those within reach.
    `attention` reads the prompt; new tokens attend to all entries by `decoding`, or exactly
    (None)."""

    attention: Attend = exact_attention
    decoding: Attend | None = None
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


class HasEntries(Protocol):
    """The interface of a method for `EntriesCache`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor: ...

    def entries(
        self, key: Tensor, value: Tensor, call: AttentionCall, workload: Workload
    ) -> Entries:
        """The entries of one layer of a prompt, keys and values [B, G, n, d]."""
        ...


@dataclass
class EntriesCache(_ByLayer):
    """Keeps every token in the method's own kind of `Entries`, which store them in another format
    or read a part of them; in a layer with a window, the tokens within reach.

    at_once  several new tokens at once are read as if each came alone
    """

    at_once: ClassVar[bool] = True
    method: HasEntries
    workload: Workload
    layers: dict[int, Entries] = field(default_factory=dict)
    read_bytes: int = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        self.take(query, key, value, call)
        return self.method.attend(query, key, value, call)

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        self.layers[call.layer] = entries = self.method.entries(key, value, call, self.workload)
        self._leave_window(entries, call)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries = self.layers[call.layer]
        self._leave_window(entries, call)
        entries.append(key, value)
        self.read_bytes += entries.bytes()
        return entries.attend(query, call)


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


def decoding_singly(cache: KVCache) -> Attend | None:
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
