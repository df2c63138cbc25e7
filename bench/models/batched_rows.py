"""Rows of one batch with caches of different methods, filled by one reading of a prompt.

Eviction, quantisation and sparse reading change a cache and not how the prompt is read, so each
layer's output is computed once and its queries, keys and values go to the caches of all methods.
While the rows decode, the model's linear layers run on all of them and read their weights once;
attention goes row by row to the row's own cache, with its own sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from bench.models.attention import Attend
from bench.models.base import Decoding
from methods.base import AttentionCall, Method, SequenceInfo

T = TypeVar("T")
LEAST_ROWS = 16
"""Minimum rows of a step, filled with copies of the first one: torch's CPU kernels for fewer rows
round differently, and an answer would depend on the number of its neighbours. 16 rows cost less
than 8 or 12 (SmolLM2-135M, AVX-512: 123, 145 and 176 ms of linear layers)."""


@dataclass
class Row(Decoding):
    """A batch of one row. A row that fails doesn't change the others.

    reach   the tokens that its cache may decode over; None: any number
    error   why it can't continue; None: it can
    """

    reach: int | None = None
    error: Exception | None = None

    def attempt(self, work: Callable[[], T]) -> T | None:
        """The result of `work`; None if it raises an error, or the row has failed before."""
        if self.error is None:
            try:
                return work()
            except Exception as error:
                self.error = error.with_traceback(None)  # would keep the row's tensors
        return None


def taking(reader: Method, rows: Sequence[Row]) -> Attend:
    """Attention to a prompt [1, H, n, d] by `reader`; each row's cache takes its entries."""

    def attend(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output = reader.attend(query, key, value, call)
        call = replace(call, memo={})
        for row in rows:
            cache = row.cache
            assert cache is not None
            row.attempt(partial(cache.take, query, key, value, call))
        return output

    return attend


def decoding(rows: Sequence[Row]) -> Attend:
    """Attention of the next token of each row, [R or more, H, 1, d], by the rows' caches; zeros for
    rows that have failed, and for those after the last one."""

    def attend(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output = torch.zeros_like(query)
        parts = (x.split(1) for x in (output, query, key, value))
        for row, out, q, k, v in zip(rows, *parts, strict=False):
            own, cache = replace(call, sequence=row.sequence), row.cache
            assert cache is not None
            read = row.attempt(partial(cache.decode, q, k, v, own))
            if read is not None:
                out.copy_(read)
        return output

    return attend


def batch(rows: Sequence[Row], ids: Tensor) -> tuple[Tensor, SequenceInfo]:
    """The next tokens ids [R, 1] of the rows and their positions, [LEAST_ROWS or more, 1] each."""
    places = [row.sequence.positions for row in rows]
    last = torch.cat([place[:, -1:] for place in places if place is not None])
    more = [x[:1].expand(max(0, LEAST_ROWS - len(rows)), -1) for x in (ids, last)]
    ids, last = (torch.cat(pair) for pair in zip((ids, last), more, strict=True))
    return ids, SequenceInfo(positions=last, causal=True)
