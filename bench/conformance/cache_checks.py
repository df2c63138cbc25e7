"""The checks of a method's KV cache (methods.base.KVCache): each yields one line for
each failure, and none for a method without a cache, or in a family that doesn't decode.

Some feed the cache of one layer by hand, with random queries, keys and values.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.conformance.subject import (
    CHANGED,
    CLOSE,
    LONG,
    Subject,
    Uncached,
    alone,
    error,
    vanilla,
)
from methods.base import KVCache, Method, SequenceInfo, refusal

FORCED = 9
"""Tokens of the target that a cache is led along."""
SPAN = 8
"""Entries that are changed together to see whether any of them is read."""
ROOM = 64
"""Entries of storage that a cache may hold unused, for later tokens."""


def decoding(subject: Subject) -> Iterator[str]:
    """In its exact limit a cache gives the outputs of vanilla for new tokens; one without such a
    limit, those of its method in one forward pass; also for several tokens at once."""
    exact = subject.method.exact_limit()
    method = exact or subject.method
    if not _decodes(Subject(method, subject.family)):
        return
    family, expected_of = subject.family, vanilla() if exact else Uncached(method)
    for lengths in ([61], [61, 30]):
        ids, sequence = subject.batch(lengths)
        target = _targets(len(lengths)).to(subject.device)
        with torch.no_grad():
            family.method = expected_of
            expected = family.logits(ids, sequence, target)
            family.method = method
            output = family.logits(ids, sequence, target)
            together = family.prefill(ids, sequence)
            last = together.step(target[:, :-1])
        if (far := error(output, expected)) > CLOSE:
            yield f"{lengths} tokens: one by one is {far:.1e} from one forward pass"
        if (far := error(last, expected[:, -1])) > CLOSE:
            yield f"{lengths} tokens: {FORCED - 1} at once are {far:.1e} from one forward pass"


def decoding_padded(subject: Subject) -> Iterator[str]:
    """Other rows and padding don't change the tokens that a row decodes."""
    if not _decodes(subject):
        return
    lengths = (61, 30, 2)
    subject.family.method = subject.method
    target = _targets(len(lengths)).to(subject.device)
    for side in ("right", "left"):
        ids, sequence = subject.batch(lengths, side)
        with torch.no_grad():
            together = subject.family.logits(ids, sequence, target)
            for row, length in enumerate(lengths):
                own = subject.family.logits(*alone(ids, sequence, row), target[row : row + 1])[0]
                if (far := error(together[row], own)) > CLOSE:
                    yield f"{length} tokens padded {side} are {far:.1e} from the same alone"


def held_is_kept(subject: Subject) -> Iterator[str]:
    """`held` lists every tensor that the cache keeps, and each is its whole storage: a slice would
    keep the whole storage of another tensor."""
    if not _is_fed(subject, LONG):
        return
    fed = Fed.of(subject, LONG)
    for when in ("the prompt", "new tokens"):
        held = {_address(x): x.untyped_storage().nbytes() for x in fed.cache.held()}
        own: dict[int, int] = {}
        for x in fed.cache.held():
            own[_address(x)] = own.get(_address(x), 0) + x.nbytes
        kept = {_address(x): x.untyped_storage().nbytes() for x in tensors_of(fed.cache)}
        if unnamed := sum(size for address, size in kept.items() if address not in held):
            yield f"after {when} it keeps {unnamed:,} bytes that held() doesn't name"
        if wasted := sum(size - min(size, own[address]) for address, size in held.items()):
            yield f"after {when} {wasted:,} bytes are kept behind the tensors of held()"
        if lost := sum(address not in held for address in fed.prompt()):
            yield f"after {when} {lost} of the prompt's tensors are still in memory"
        fed.decode()


def held_is_read(subject: Subject) -> Iterator[str]:
    """Held entries can be read: those that no query reads should have been freed. Room for new
    entries is allowed, and the same amount of storage again as is read."""
    if not _is_fed(subject, LONG):
        return
    fed = Fed.of(subject, LONG)
    fed.decode()
    for index, x in enumerate(fed.cache.held()):
        if not _has_entries(x):
            continue
        starts = range(0, x.shape[2], SPAN)
        read = sum(
            SPAN
            for start in starts
            if any(fed.reads((index, ..., slice(start, start + SPAN), slice(None)), query)
                   for query in (fed.toward(start + SPAN // 2), *range(4)))
        )  # fmt: skip
        if x.shape[2] > 2 * read + ROOM:
            yield f"tensor {index} of held() has {x.shape[2]} entries, of which {read} are read"


def read_is_counted(subject: Subject) -> Iterator[str]:
    """`read_bytes` counts at least the bytes that change a new token's output, and at most all
    held bytes and the token's own."""
    if not _is_fed(subject):
        return
    fed = Fed.of(subject, 21)
    fed.decode()
    least = sum(
        x.element_size()  # of one head: the others may read other entries
        for index, x in enumerate(fed.cache.held())
        if _has_entries(x)
        for entry in range(x.shape[2])
        if fed.reads((index, ..., entry, slice(None)), 0)
        for number in range(x.shape[3])
        if fed.reads((index, ..., entry, number), 0)
    )
    before = fed.cache.read_bytes
    fed.decode()
    counted = fed.cache.read_bytes - before
    most = sum(x.nbytes for x in fed.cache.held())
    if not least <= counted <= most:
        yield f"a token counts {counted:,} bytes as read; {least:,} change it, {most:,} are held"


@dataclass
class Fed:
    """The cache of a method whose first layer has read n random tokens; `arrays` are the prompt's
    numpy arrays, by which the checks see when their memory is freed; `plain` has the next token's
    output by the number of tokens before it and the seed of its query."""

    cache: KVCache
    subject: Subject
    n: int
    generator: torch.Generator
    keys: Tensor
    arrays: list[weakref.ref[Any]] = field(default_factory=list)
    plain: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, subject: Subject, n: int) -> Fed:
        subject.family.method = subject.method
        cache = subject.method.kv_cache(subject.family.workload(n, 1))
        assert cache is not None
        fed = cls(cache, subject, n, torch.Generator().manual_seed(n), torch.empty(0))
        arrays = [x.numpy().copy() for x in fed._random(n)]
        fed.keys = torch.tensor(arrays[1])
        fed.arrays = [weakref.ref(array) for array in arrays]
        with torch.no_grad():
            query, key, value = map(torch.from_numpy, arrays)
            cache.prefill(query, key, value, fed._call(n))
        return fed

    def prompt(self) -> list[int]:
        """The addresses of the prompt's queries, keys and values that are still in memory."""
        return [array.ctypes.data for ref in self.arrays if (array := ref()) is not None]

    def decode(self, aimed: Tensor | None = None) -> Tensor:
        """The next random token, or one with this query [1, H, 1, d]: [1, H, 1, d]."""
        self.n += 1
        with torch.no_grad():
            query, key, value = self._random(1)
            query = query if aimed is None else aimed
            return self.cache.decode(query, key, value, self._call(self.n))

    def toward(self, token: int) -> Tensor:
        """A query [1, H, 1, d] that looks for this token of the prompt."""
        key = self.keys[:, :, min(token, self.keys.shape[2] - 1), None]
        heads = self.subject.family.workload(self.n, 1).heads
        return 2 * key.repeat_interleave(heads // key.shape[1], 1)

    def reads(self, part: tuple[Any, ...], query: Tensor | int) -> bool:
        """Whether the next token, with this query or one drawn from a seed, depends on this part of
        the held tensors: `part` is the number of a tensor, and indices into it."""
        if isinstance(query, Tensor):
            plain = self._next(query)
        else:
            if (self.n, query) not in self.plain:
                self.plain[self.n, query] = self._next(query)
            plain = self.plain[self.n, query]
        return error(self._next(query, part), plain) > CHANGED

    def _next(self, query: Tensor | int, changed: tuple[Any, ...] = ()) -> Tensor:
        """The next token's output, from a copy of the cache, where a part may be changed."""
        fed = copy.copy(self)
        fed.cache, fed.generator = copy.deepcopy(self.cache), torch.Generator()
        if isinstance(query, int):
            fed.generator.manual_seed(query)
        if changed:
            fed.cache.held()[changed[0]][changed[1:]] = math.pi
        return fed.decode(None if isinstance(query, int) else query)

    def _call(self, n: int) -> Any:
        layer: Any = self.subject.family.layers[0]
        positions = torch.arange(n)[None]
        return layer.route(SequenceInfo(positions, causal=True)).call(1.0, 0.0)

    def _random(self, t: int) -> list[Tensor]:
        workload = self.subject.family.workload(self.n, 1)
        shared = workload.key_heads or workload.heads
        sizes = (workload.heads, shared, shared)
        return [
            torch.randn(1, heads, t, workload.head_size, generator=self.generator)
            for heads in sizes
        ]


def tensors_of(thing: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """The tensors that an object keeps, in its attributes and containers, without those of methods
    and models."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, (Method, torch.nn.Module, str, type)):
        return
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, dict):
        for value in thing.values():
            yield from tensors_of(value, seen)
    elif isinstance(thing, (list, tuple, set)):
        for value in thing:
            yield from tensors_of(value, seen)
    else:
        yield from tensors_of(getattr(thing, "__dict__", {}), seen)


def _has_entries(x: Tensor) -> bool:
    """Whether a tensor holds numbers by row, head and entry."""
    return x.ndim == 4 and x.is_floating_point()


def _decodes(subject: Subject, n: int = 61) -> bool:
    """Whether the method has a cache here, for prompts of n tokens."""
    workload = subject.family.workload(n, 2)
    if not workload.causal or refusal(subject.method, workload):
        return False
    return subject.method.kv_cache(workload) is not None


def _is_fed(subject: Subject, n: int = 61) -> bool:
    """Whether the method has a cache that can be fed without a model."""
    return not subject.method.reads_modules and _decodes(subject, n)


def _targets(count: int) -> Tensor:
    """Tokens [count, FORCED] that each row is led along."""
    return torch.randint(3, 64, (count, FORCED), generator=torch.Generator().manual_seed(count))


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


CHECKS = (decoding, decoding_padded, held_is_kept, held_is_read, read_is_counted)
