"""The contract of a task, checked: what `bench check task=NAME` says of it, a plugin's too.

Only embedded rows are used, so nothing but the project's files is needed.
"""

from __future__ import annotations

import builtins
import math
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tasks.base import Data, DataError, Loaded, Row, Task, Tokenizer

# Of processor time: a test shouldn't fail because something else keeps the machine busy.
LOAD_S = 5.0
ROWS = 8
# The first of these that has room for a row is taken.
LENGTHS = (1024, 2048, 4096, 8192, 16384)
ODD = ("", " ", "\n", "(A) 42%", "3, 1, 2", "日本語", "é", "😀", "a" * 5000)


def check(task: Task, tokenizer: Tokenizer) -> list[str]:
    """What is wrong with a task, in words; empty if nothing is. Never raises for a task's fault."""
    failures: list[str] = []
    for name in ("version", "max_new_tokens", "length"):
        if getattr(task, name) < (0 if name == "max_new_tokens" else 1):
            failures.append(f"{name} is {getattr(task, name)}")
    try:
        loaded, length = _load(task, failures)
        _check_rows(task, loaded, length, failures)
        _check_encoding(task, loaded.rows, tokenizer, length, failures)
        _check_scores(task, loaded.rows, failures)
    except Exception as error:  # a task's fault, whatever it is, is what is asked for
        failures.append(f"{type(error).__name__}: {error}")
    return failures


def _load(task: Task, failures: list[str]) -> tuple[Loaded, int]:
    for length in LENGTHS:
        started = time.process_time()
        try:
            with _no_network():
                loaded = task.load(Data(), ROWS, length, 0)
        except DataError as error:
            if "too short" in str(error) and length != LENGTHS[-1]:
                continue
            raise
        seconds = time.process_time() - started
        if seconds > LOAD_S:
            failures.append(f"{ROWS} embedded rows took {seconds:.1f} s; at most {LOAD_S:.0f} s")
        return loaded, length
    raise AssertionError("unreachable")


def _check_rows(task: Task, loaded: Loaded, length: int, failures: list[str]) -> None:
    rows = loaded.rows
    ids = [row.id for row in rows]
    if len(rows) != ROWS:
        failures.append(f"n={ROWS} gave {len(rows)} rows")
    if len(set(ids)) != len(ids):
        failures.append("ids come twice")
    if task.load(Data(), ROWS, length, 0) != loaded:
        failures.append("the same request gave other rows")
    if list(task.load(Data(), 2, length, 0).rows) != list(rows[:2]):
        failures.append("the first rows depend on n")
    if task.load(Data(), ROWS, length, 1).sha256 == loaded.sha256:
        failures.append("another seed gave the same rows")
    if loaded.n_available < len(rows) or len(loaded.sha256) != 64:
        failures.append("n_available or sha256 is wrong")
    for row in rows:
        if not row.references or any(
            isinstance(one, str) and not one.strip() for one in row.references
        ):
            failures.append(f"row {row.id} has an empty reference")
        if task.labels and row.references[0] not in map(str, range(task.labels)):
            failures.append(f"row {row.id}: label {row.references[0]} of {task.labels}")
    seen = {loaded.split: {row.document for row in rows}}
    for split in ("train", "validation", "test"):
        if split not in seen:
            try:
                found = task.load(Data(split=split), ROWS, length, 0).rows
            except DataError:
                continue  # not every benchmark has every split
            for other, documents in seen.items():
                if documents & {row.document for row in found}:
                    failures.append(f"splits {split} and {other} share rows")
            seen[split] = {row.document for row in found}


def _check_encoding(
    task: Task, rows: Sequence[Row], tokenizer: Tokenizer, length: int, failures: list[str]
) -> None:
    for limit in (length, length // 2, 1_000_000):
        for row in rows:
            try:
                with _no_imports():
                    found = task.encode(row, tokenizer, limit)
            except DataError:
                continue  # a query that alone is too long is refused in words
            for one in (found, found.second):
                if one is not None and len(one.ids) > limit:
                    failures.append(f"row {row.id}: {len(one.ids)} ids at length={limit}")
            if not found.ids or len(found.vip) != len(found.ids):
                failures.append(f"row {row.id}: {len(found.vip)} VIP marks, {len(found.ids)} ids")
            if row.query and not any(found.vip):
                failures.append(f"row {row.id}: no VIP token at length={limit}")
            if found.tokens_in < len(found.ids):
                failures.append(f"row {row.id}: {found.tokens_in} tokens in, {len(found.ids)} seen")
            if task.encode(row, tokenizer, limit) != found:
                failures.append(f"row {row.id}: encoded twice, it isn't the same")


def _check_scores(task: Task, rows: Sequence[Row], failures: list[str]) -> None:
    if task.metric_version < 1:
        failures.append(f"metric_version is {task.metric_version}")
    references = [row.references for row in rows]
    right = [perfect(task, row) for row in rows]
    _expect(task, right, references, 100.0, "references against themselves", failures)
    if isinstance(right[0], str):
        _expect(task, [""] * len(rows), references, 0.0, "empty predictions", failures)
        for odd in ODD:
            for score in task.score_each([odd] * len(rows), references):
                if not 0 <= score < math.inf:
                    failures.append(f"prediction {odd[:9]!r} scores {score}")


def perfect(task: Task, row: Row) -> Any:
    """A prediction that can't be better. A task whose predictions aren't texts says so itself, in
    a method `perfect(row)`."""
    own = getattr(task, "perfect", None)
    return own(row) if own else row.references[0]


def _expect(
    task: Task, given: list[Any], references: list[Any], value: float, what: str,
    failures: list[str],
) -> None:  # fmt: skip
    found = task.score(given, references)["value"]
    each = task.score_each(given, references)
    if abs(found - value) > 1e-3:
        failures.append(f"{what} score {found}, expected {value:g}")
    if each and abs(math.fsum(each) / len(each) - found) > 1e-3:
        failures.append(f"{what}: the mean over rows isn't the value {found}")
    if len(each) != len(given) or any(abs(score - value) > 1e-3 for score in each):
        failures.append(f"{what}: rows score {sorted(set(each))}, expected {value:g} each")


@contextmanager
def _no_network() -> Iterator[None]:
    """Embedded rows must need none."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise OSError(f"embedded rows asked the network for {address}")

    connect = socket.socket.connect
    socket.socket.connect = refuse  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]


@contextmanager
def _no_imports() -> Iterator[None]:
    """When rows are encoded, what could give a label is locked away, tasks' modules among it."""
    real = builtins.__import__

    def refuse(name: str, *given: Any, **named: Any) -> Any:
        if name.split(".")[0] == "tasks":
            raise ImportError(f"encode imports {name}; a task's modules are imported at their top")
        return real(name, *given, **named)

    builtins.__import__ = refuse
    try:
        yield
    finally:
        builtins.__import__ = real
