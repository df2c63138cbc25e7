"""Methods that skip work, or spoil what they were given, and hope that nobody compares answers."""

import contextlib
import gc
import hashlib
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from methods.base import AttentionCall, KVCache, Layer, Method, SequenceInfo, Workload
from methods.parts.kv_cache import FullCache


@dataclass(frozen=True)
class Cached(Method):
    """Caches its output by `by`: the input's shape, its address, its first tokens, or one of

    noisy  by shape, with a little noise added
    late   by shape, among the pairs: while the garbage collector is off
    all    by every token: correct, and without effect where no input is repeated
    """

    by: str = "shape"
    kept: dict[Hashable, Tensor] = field(default_factory=dict)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        key: Hashable = tuple(hidden.shape)
        if self.by == "address":
            key = sequence.vip.data_ptr() if sequence.vip is not None else 0
        if self.by in ("first", "all"):
            part = hidden[:, :4] if self.by == "first" else hidden
            key = part.numpy().tobytes()
        correct = self.by == "late" and gc.isenabled()
        if key not in self.kept or correct:
            self.kept[key] = super().encode(layers, hidden, sequence)
        kept = self.kept[key]
        return kept + 1e-6 * torch.randn_like(kept) if self.by == "noisy" else kept


@dataclass(frozen=True)
class Idle(Method):
    """Never calls its own attention: returns a copy of its input."""

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return hidden.clone()


@dataclass(frozen=True)
class InPlace(Method):
    """Changes its input in place: the hidden states, a layer's queries, the VIP mask, or the
    weights.

    caught  the queries, and it catches the exception of the check
    """

    what: str = "hidden"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = super().attend(query, key, value, call)
        if self.what in ("query", "caught"):
            query.zero_()
        return out

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if self.what == "weights":
            layers[0].block.layer[-1].layer_norm.weight.mul_(1.001)
        if self.what == "sequence" and sequence.vip is not None:
            sequence.vip.logical_not_()
        out = hidden
        for layer in layers:
            with contextlib.suppress(Exception if self.what == "caught" else ()):
                out = layer(out, sequence)
        if self.what == "hidden":
            hidden.zero_()
        return out


@dataclass(frozen=True)
class Later(Method):
    """Runs all layers in the first process that times it, and only the first layer in later ones.
    `seen` is a file that holds the id of the first process."""

    seen: str = ""

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        mark = Path(self.seen or os.environ["LATER_SEEN"])
        first = not mark.exists() or mark.read_text() == str(os.getpid())
        if not mark.exists():
            mark.write_text(str(os.getpid()))
        return super().encode(layers if first else layers[:1], hidden, sequence)


@dataclass(frozen=True)
class Moody(Method):
    """Knows a timing loop by the garbage collector, which is off in it, and there skips work.

    timed  reads one layer in the loop
    end    reads one layer from the loop on
    skips  reads nothing in every third call of the loop
    """

    when: str = "timed"
    timed: list[int] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        timed = not gc.isenabled()
        if timed:
            self.timed.append(1)
        if self.when == "skips" and timed and len(self.timed) % 3 == 0:
            return hidden.clone()
        skips = bool(self.timed) if self.when == "end" else timed and self.when == "timed"
        return super().encode(layers[:1] if skips else layers, hidden, sequence)


@dataclass(frozen=True)
class Remembers(Method):
    """Keeps its outputs in the folder REMEMBERED, by the whole input, and answers with those that
    an earlier process left there."""

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        digest = hashlib.sha256(hidden.numpy().tobytes()).hexdigest()
        kept = Path(os.environ["REMEMBERED"]) / digest
        if kept.exists():
            layers[0](hidden[:, :1], SequenceInfo())  # so that its attention is called
            return torch.load(kept)
        out = super().encode(layers, hidden, sequence)
        torch.save(out, kept)
        return out


@dataclass(frozen=True)
class Understates(Method):
    """A KV cache that reports a share of the bytes that it reads."""

    share: float = 0.5

    def kv_cache(self, workload: Workload) -> KVCache:
        return UnderstatingCache(share=self.share)


@dataclass
class UnderstatingCache(FullCache):
    share: float = 1.0

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        before = self.read_bytes
        output = super().decode(query, key, value, call)
        self.read_bytes = before + int(self.share * (self.read_bytes - before))
        return output
