"""Batches of a task's rows to train on, as a function of the step alone: a run that goes on after a
kill sees what it would have seen."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.children import arms
from bench.errors import RequestError
from bench.models.base import Family
from methods.base import Sequence
from tasks.base import Encoded, Row, Task

IGNORED = -100
KEPT_TOKENS = 1 << 28
"""Rows of fewer tokens in all are encoded once and kept."""

SORTED_BATCHES = 32
"""Rows are sorted by length within so many batches: little of a batch is then padding."""


class Batch(NamedTuple):
    """ids [B, n] (of pairs [2·B, n]), what is known of them, and target [B, t], -100 ignored."""

    ids: Tensor
    sequence: Sequence
    target: Tensor


@dataclass(frozen=True)
class Feed:
    """Rows of one split. `batch` rows a step; the order is drawn anew for each pass over them."""

    task: Task
    tokenizer: Any
    rows: Items[Row]
    length: int
    target_length: int
    batch: int
    seed: int
    device: str
    known: dict[str, Encoded] = field(default_factory=dict, repr=False)
    learnt: dict[tuple[str, str], Items[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if len(self.rows) < self.batch:
            raise RequestError(
                f"{len(self.rows)} rows of {self.task.name} don't fill a batch of {self.batch}"
            )

    def at(self, step: int, part: int = 0, parts: int = 1) -> Batch:
        """Part `part` of the batch of step 0, 1, …; parts are of equal size."""
        passed, at = divmod(step, len(self.rows) // self.batch)
        places = _order(self, passed)[at][part::parts]
        return self.of([self.rows[i] for i in places], passed)

    def of(self, rows: Items[Row], passed: int = 0) -> Batch:
        """A batch of these rows; of several right answers each pass takes the next."""
        coded = [self._encoded(row) for row in rows]
        ids, sequence = arms.collate(coded, self.device)
        answers = [row.references[passed % len(row.references)] for row in rows]
        if self.task.answers == "text":
            targets = self._texts(answers)
        else:
            targets = [self._target(*one) for one in zip(rows, answers, coded, strict=True)]
        longest = max(map(len, targets))
        target = torch.full((len(targets), longest), IGNORED)
        for i, one in enumerate(targets):
            target[i, : len(one)] = torch.as_tensor(one)
        return Batch(ids, sequence, target.to(self.device))

    def _encoded(self, row: Row) -> Encoded:
        if row.id not in self.known:
            coded = compact(self.task.encode(row, self.tokenizer, self.length))
            if len(self.rows) * self.length > KEPT_TOKENS:
                return coded
            self.known[row.id] = coded
        return self.known[row.id]

    def _texts(self, answers: Items[str]) -> list[Items[int]]:
        end = self.tokenizer.eos_token_id
        coded = self.tokenizer(list(answers), add_special_tokens=False).input_ids
        return [[*one[: self.target_length - 1], end] for one in coded]

    def _target(self, row: Row, answer: str, coded: Encoded) -> Items[int]:
        if (row.id, answer) not in self.learnt:
            asked = replace(row, references=(answer,))
            target: Any = np.asarray(self.task.target(asked, coded, self.tokenizer))
            if row.id not in self.known:
                return list(target)
            self.learnt[row.id, answer] = target
        return self.learnt[row.id, answer]

    def __hash__(self) -> int:
        return id(self)


def compact(row: Encoded) -> Encoded:
    """The same row in arrays, some forty times smaller than lists."""
    arrays: Any = {"ids": np.asarray(row.ids, dtype=np.int32), "vip": np.asarray(row.vip)}
    if row.valid is not None:
        arrays["valid"] = np.asarray(row.valid)
    if row.second is not None:
        arrays["second"] = compact(row.second)
    return replace(row, **arrays)


@functools.lru_cache(maxsize=2)
def _order(feed: Feed, passed: int) -> list[list[int]]:
    """The rows of each batch of one pass; those that fill no batch wait for the next."""
    draw = np.random.default_rng([feed.seed, passed])
    order = draw.permutation(len(feed.rows))
    order = order[: len(order) // feed.batch * feed.batch]
    batches: list[list[int]] = []
    size = SORTED_BATCHES * feed.batch
    for start in range(0, len(order), size):
        near = sorted(order[start : start + size].tolist(), key=lambda i: _letters(feed.rows[i]))
        batches += [near[at : at + feed.batch] for at in range(0, len(near), feed.batch)]
    return [batches[i] for i in draw.permutation(len(batches))]


def _letters(row: Row) -> int:
    return max(len(row.document), len(row.second or ""))


def figures(family: Family, batch: Batch, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The mean loss over a batch's targets, and the share of them that come first, both []."""
    return family.learned(batch.ids, batch.sequence, batch.target, smoothing)
