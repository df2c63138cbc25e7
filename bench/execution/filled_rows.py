"""Inputs of exactly a length, for costs at that length: a task's own rows end where their text
does, and generated ones where their words do, whatever the tokenizer makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, groupby, islice

from tasks.base import Encoded


def filled(row: Encoded, length: int) -> Encoded:
    """The row with as many more tokens as it lacks, copies of its longest stretch of tokens that
    aren't VIP tokens, put in behind that stretch: beginning, end and query stay as they are. Both
    texts of a pair are filled. A row without such a stretch is returned unchanged."""
    second = None if row.second is None else filled(row.second, length)
    start, end = _longest(_plain(row))
    lacking = length - len(row.ids)
    if lacking <= 0 or start == end:
        return replace(row, second=second)
    more = list(islice(cycle(row.ids[start:end]), lacking))
    return replace(
        row,
        ids=[*row.ids[:end], *more, *row.ids[end:]],
        vip=[*row.vip[:end], *[False] * lacking, *row.vip[end:]],
        valid=row.valid and [*row.valid[:end], *[True] * lacking, *row.valid[end:]],
        second=second,
    )


def _plain(row: Encoded) -> list[bool]:
    """For each token whether it is part of the text to be filled with."""
    valid: Sequence[bool] = [True] * len(row.ids) if row.valid is None else row.valid
    return [bool(ok and not vip) for ok, vip in zip(valid, row.vip, strict=True)]


def _longest(plain: Sequence[bool]) -> tuple[int, int]:
    """Start and end of the longest run of true values but for the last one of the row, such as an
    end-of-sequence token."""
    runs, at = [(0, 0)], 0
    for is_plain, run in groupby(plain[:-1]):
        size = len(list(run))
        if is_plain:
            runs.append((at, at + size))
        at += size
    return max(runs, key=lambda run: run[1] - run[0])
