"""A decoder's cache whose KV heads hold different numbers of entries; dropped entries are freed.

The heads of a layer lie one after the other in one tensor, without padding. Neighbours of equal
length are read together, other heads one by one. Kept entries keep their positions, and every head
gets the new tokens. This cache is not for layers with a window (`WindowsApart` in
`parts.kv_cache`).

Shapes: B batch, G key heads, H query heads, n tokens, d head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from methods.base import AttentionCall, Workload
from methods.parts.attention import attend_masked
from methods.parts.kv_cache import BLOCK, SHARE
from methods.parts.sequence import unpadded


class Choice(NamedTuple):
    """The entries that a layer keeps for some rows of a prompt: `kept` [B, G, n], and the heads [B,
    G] that are `rolling`: once the last slot in `ring` is filled, new tokens take its slots in
    turn."""

    kept: Tensor
    rolling: Tensor
    ring: range = range(0)

    @classmethod
    def of(cls, kept: Tensor) -> Choice:
        """A choice without rolling heads."""
        return cls(kept, torch.zeros_like(kept[:, :, 0]))


class ChoosesByHead(Protocol):
    """A method that keeps more of a prompt in some heads than in others."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """See `Method.attend`."""
        ...

    def choice(
        self, row: int, prompt: Sequence[Tensor], call: AttentionCall, workload: Workload
    ) -> Choice:
        """The choice for a prompt's query [B, H, n, d], key and value [B, G, n, d], without
        padding, in the rows from `row` on."""
        ...


@dataclass
class Run:
    """K neighbouring heads with the same number of entries.

    size   entries that each head holds
    place  the slot of the next token
    ring   the slots that new tokens take in turn once the last one is held; empty: heads grow
    parts  their keys and values [1, K, room, d], views of the layer's storage
    """

    heads: int
    size: int
    place: int
    ring: range
    parts: Sequence[Tensor] = ()

    def slots_for(self, count: int) -> int:
        """How many slots each head needs with `count` new tokens."""
        return min(self.size + count, self.ring.stop) if self.ring else self.size + count


class RaggedEntries:
    """The entries of one layer. Keys and values are one tensor each, [slots, d], ordered by row and
    head, and each head is followed by equal room for new tokens.

    read  bytes of keys and values read so far
    """

    _parts: Sequence[Tensor]
    _next: Tensor

    def __init__(self, key: Tensor, value: Tensor, choice: Choice) -> None:
        """Copies the chosen entries of a prompt's keys and values [B, G, n, d]."""
        heads = zip(
            *(x.flatten().tolist() for x in (choice.kept.sum(-1), choice.rolling)), strict=True
        )
        self.runs, self.read, self._room = list[Run](), 0, 0
        for (size, rolls), run in groupby(heads):
            ring = choice.ring if rolls else range(0)
            place = ring.start if ring and size == ring.stop else size
            self.runs.append(Run(len([*run]), size, place, ring))
        self._divide([x[choice.kept] for x in (key, value)], [run.size for run in self.runs])

    @property
    def rolls(self) -> bool:
        """Whether new tokens have to come one at a time."""
        return any(run.ring for run in self.runs)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds the next tokens' keys and values [B, G, t, d] to every head."""
        count, wraps = key.shape[2], False
        if count > self._room:
            self._grow(count)
        self._room -= count
        slots = self._next
        if count > 1:
            slots = (slots[:, None] + torch.arange(count, device=key.device)).flatten()
        for part, new in zip(self._parts, (key, value), strict=True):
            part.index_copy_(0, slots, new.flatten(0, 2))
        for run in self.runs:
            run.place += count
            run.size = max(run.size, run.place)
            if run.ring and run.place == run.ring.stop:
                run.place, wraps = run.ring.start, True
        self._next = self._slots() if wraps else self._next.add_(count)

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        """Attention of the last t tokens, query [B, H, t, d], to their heads' entries, of which the
        last t are their own → [B, H, t, d]."""
        t, heads = query.shape[2], sum(run.heads for run in self.runs)
        queries, sinks = query.reshape(1, -1, t, query.shape[3]), [call.sinks] * len(self.runs)
        if t == 1 and call.sinks is None:  # a key head's query heads become its queries
            queries = queries.view(1, heads, -1, query.shape[3])
        sizes = [run.heads * queries.shape[1] // heads for run in self.runs]
        if call.sinks is not None:
            sinks = [*call.sinks.repeat(len(query)).split(sizes)]
        outputs = []
        for run, q, sink in zip(self.runs, queries.split(sizes, 1), sinks, strict=True):
            key, value = (part.narrow(2, 0, run.size) for part in run.parts)
            self.read += key.nbytes + value.nbytes
            seen = None
            if t > 1:
                seen = torch.ones(t, run.size, dtype=torch.bool, device=query.device)
                seen = seen.tril(run.size - t)[None, None]
            own = call if sink is None else replace(call, sinks=sink)
            outputs.append(attend_masked(q, key, value, seen, own))
        return torch.cat(outputs, 1).view(query.shape)

    def held(self) -> list[Tensor]:
        return [*(part for run in self.runs for part in run.parts), self._next]

    def _grow(self, count: int) -> None:
        """Makes room for `count` new tokens and some more, the same in each head that grows."""
        longest, old = max(run.size for run in self.runs), [run.parts for run in self.runs]
        self._room = max(BLOCK, longest // SHARE // BLOCK * BLOCK, count)
        rooms = [run.slots_for(self._room) for run in self.runs]
        slots = sum(run.heads * room for run, room in zip(self.runs, rooms, strict=True))
        self._divide([part.new_empty(slots, part.shape[1]) for part in self._parts], rooms)
        for run, parts in zip(self.runs, old, strict=True):
            for new, part in zip(run.parts, parts, strict=True):
                new[:, :, : run.size] = part[:, :, : run.size]

    def _divide(self, parts: Sequence[Tensor], rooms: Sequence[int]) -> None:
        """Gives each run its part of storage [slots, d], with its number of slots for each head."""
        self._parts = parts
        sizes = [run.heads * room for run, room in zip(self.runs, rooms, strict=True)]
        shares = zip(*(part.split(sizes) for part in parts), strict=True)
        for run, room, share in zip(self.runs, rooms, shares, strict=True):
            run.parts = [part.view(1, run.heads, room, part.shape[1]) for part in share]
        self._next = self._slots()

    def _slots(self) -> Tensor:
        """[B·G]: the slot in the storage that each head's next token takes."""
        slots, first = list[int](), 0
        for run in self.runs:
            room = run.parts[0].shape[2]
            slots += [first + head * room + run.place for head in range(run.heads)]
            first += run.heads * room
        return torch.tensor(slots, device=self._parts[0].device)


class RaggedLayers:
    """The entries of all layers while a model decodes.

    at_once  several new tokens at once are read as if each came alone
    """

    at_once: ClassVar[bool] = True

    def __init__(self) -> None:
        self.layers: dict[int, RaggedEntries] = {}

    @property
    def read_bytes(self) -> int:
        return sum(entries.read for entries in self.layers.values())

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries, outputs = self.layers[call.layer], []
        count = 1 if entries.rolls else query.shape[2]
        for q, k, v in zip(*(x.split(count, 2) for x in (query, key, value)), strict=True):
            entries.append(k, v)
            outputs.append(entries.attend(q, call))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)

    def held(self) -> Sequence[Tensor]:
        return [part for entries in self.layers.values() for part in entries.held()]


class RaggedCache(RaggedLayers):
    """The cache of a method that chooses by head, in each layer as soon as it has been read."""

    def __init__(self, method: ChoosesByHead, workload: Workload) -> None:
        super().__init__()
        self.method, self.workload = method, workload

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output = self.method.attend(query, key, value, call)
        self.take(query, key, value, call)
        return output

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        choice = Choice.of(torch.zeros(key.shape[:3], dtype=torch.bool, device=key.device))
        for rows, kept, prompt, row_call in unpadded(query, key, value, call):
            of_rows = self.method.choice(rows.start, prompt, row_call, self.workload)
            choice.kept[rows, :, slice(None) if kept is None else kept] = of_rows.kept
            choice.rolling[rows] = of_rows.rolling
            choice = choice._replace(ring=of_rows.ring)
        self.layers[call.layer] = RaggedEntries(key, value, choice)
