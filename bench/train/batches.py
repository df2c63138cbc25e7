"""Training batches of a task's rows, as a function only of the step: a training that continues
after a kill sees the same batches as without it."""

from __future__ import annotations

import functools
import mmap
import pickle
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.errors import RequestError
from bench.execution import arms
from bench.execution.arms import filled
from methods.base import SequenceInfo
from tasks.base import Encoded, Row, Task

Value = TypeVar("Value")
IGNORED = -100
CACHED_TOKENS = 1 << 28
"""Rows with at most this total number of tokens are encoded once and kept in memory."""

SORTED_BATCHES = 32
"""Rows are sorted by length within this many batches, so that little of a batch is padding."""


class Batch(NamedTuple):
    """ids [B, n] (pairs: [2·B, n]), their SequenceInfo, and target [B, t], IGNORED at padding."""

    ids: Tensor
    sequence: SequenceInfo
    target: Tensor


class OutsideHeap:
    """Values by key, pickled in separate memory. On malloc's heap, values kept for later steps
    would lie between a step's large blocks, which couldn't be joined when they are freed."""

    BLOCK_BYTES = 1 << 26

    def __init__(self) -> None:
        self.blocks: list[mmap.mmap] = []
        self.places: dict[Hashable, tuple[mmap.mmap, int, int]] = {}

    def put(self, key: Hashable, value: Any) -> None:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        if not self.blocks or len(self.blocks[-1]) - self.blocks[-1].tell() < len(pickled):
            self.blocks.append(mmap.mmap(-1, max(self.BLOCK_BYTES, len(pickled))))
        block = self.blocks[-1]
        start = block.tell()
        self.places[key] = block, start, start + block.write(pickled)

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        if key not in self.places:
            return None
        block, start, end = self.places[key]
        return pickle.loads(block[start:end])


@dataclass(frozen=True, eq=False)
class BatchLoader:
    """Batches of the rows of one split, `batch` rows a step, in a new order each epoch; with `fill`
    the rows are filled up to `length`."""

    task: Task
    tokenizer: Any
    rows: Sequence[Row]
    length: int
    target_length: int
    batch: int
    seed: int
    device: str
    fill: bool = False
    kept: OutsideHeap = field(default_factory=OutsideHeap, repr=False)

    def __post_init__(self) -> None:
        if len(self.rows) < self.batch:
            raise RequestError(
                f"{len(self.rows)} rows of {self.task.name} don't fill a batch of {self.batch}"
            )

    def at_step(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Part `part` of the batch of step 0, 1, …; parts are of equal size."""
        epoch, number = divmod(step, len(self.rows) // self.batch)
        indices = _epoch_batches(self, epoch)[number][part::parts]
        return self.collate([self.rows[i] for i in indices], epoch)

    def collate(self, rows: Sequence[Row], epoch: int = 0) -> Batch:
        """A batch of these rows; if there are several right answers, each epoch takes the next."""
        encoded = [self._once(row.id, self._encoded, row) for row in rows]
        ids, sequence = arms.collate(encoded, self.device)
        answers = [row.references[epoch % len(row.references)] for row in rows]
        targets: Sequence[Sequence[int] | NDArray[np.int64]]
        if self.task.answers == "text":
            end, most = self.tokenizer.eos_token_id, self.target_length - 1
            token_ids = self.tokenizer(answers, add_special_tokens=False).input_ids
            targets = [[*one[:most], end] for one in token_ids]
        else:
            targets = [
                self._once((row.id, answer), self._target, row, answer, one)
                for row, answer, one in zip(rows, answers, encoded, strict=True)
            ]
        longest = max(map(len, targets))
        target = torch.full((len(targets), longest), IGNORED)
        for i, one in enumerate(targets):
            target[i, : len(one)] = torch.as_tensor(one)
        return Batch(ids, sequence, target.to(self.device))

    def _encoded(self, row: Row) -> Encoded:
        made = self.task.encode(row, self.tokenizer, self.length)
        return _as_arrays(filled(made, self.length) if self.fill else made)

    def _target(self, row: Row, answer: str, encoded: Encoded) -> NDArray[np.int64]:
        single = replace(row, references=(answer,))
        return np.asarray(self.task.target(single, encoded, self.tokenizer))

    def _once(self, key: Hashable, make: Callable[..., Value], *arguments: Any) -> Value:
        value: Value | None = self.kept.get(key)
        if value is None:
            value = make(*arguments)
            if len(self.rows) * self.length <= CACHED_TOKENS:
                self.kept.put(key, value)
        return value


def characters(row: Row) -> int:
    """Characters of a row, before it is encoded; for a pair, those of the longer text."""
    return max(len(row.document), len(row.second or ""))


def _as_arrays(row: Encoded) -> Encoded:
    """The row in arrays, which take about a fortieth of the memory of lists."""
    arrays: Any = {"ids": np.asarray(row.ids, dtype=np.int32), "vip": np.asarray(row.vip)}
    if row.valid is not None:
        arrays["valid"] = np.asarray(row.valid)
    if row.second is not None:
        arrays["second"] = _as_arrays(row.second)
    return replace(row, **arrays)


@functools.lru_cache(maxsize=2)
def _epoch_batches(loader: BatchLoader, epoch: int) -> list[Sequence[int]]:
    """The indices of each batch's rows in one epoch; rows that don't fill a batch are left out."""
    random = np.random.default_rng([loader.seed, epoch])
    order = random.permutation(len(loader.rows))
    order = order[: len(order) // loader.batch * loader.batch]
    batches: list[Sequence[int]] = []
    size = SORTED_BATCHES * loader.batch
    for start in range(0, len(order), size):
        chunk = order[start : start + size].tolist()
        chunk.sort(key=lambda i: characters(loader.rows[i]))
        batches += arms.batches(chunk, loader.batch)
    return [batches[i] for i in random.permutation(len(batches))]
