"""Checks of a task's contract: `bench check task=NAME`, also for a plugin's task.

By default the embedded rows are checked, which needs only the project's files. For a task without
embedded rows, the settings, the metric and the encoding of example rows are checked, or the rows of
a local copy.
"""

from __future__ import annotations

import builtins
import math
import pickle
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tasks.base import Data, DataError, Loaded, NoEmbeddedRows, Row, Task, Tokenizer
from tasks.loading.prompts import Prompt

ROWS = 8
# Embedded rows are loaded at the first of these lengths that has room for them.
LENGTHS = (1024, 2048, 4096, 8192, 16384)
ODD_PREDICTIONS = ("", " ", "\n", "(A) 42%", "3, 1, 2", "日本語", "é", "😀", "a" * 5000)
EXAMPLE_DOCUMENT = (
    "The silver lantern stood at the mill. Then the snow came, and it was late. " * 40
)
# Right answers of different kinds; the first that scores 100 is used.
EXAMPLE_ANSWERS = ("the silver lantern at the mill", "A", "42%", "2, 1, 3", "7")


@dataclass
class Report:
    """The result of a check.

    failures     broken rules; empty if the task keeps its contract
    not_checked  checks that couldn't run, and why
    load_s       processor time of loading ROWS embedded rows, for information
    """

    failures: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    load_s: float | None = None


def check(task: Task, tokenizer: Tokenizer, data: Data | None = None) -> Report:
    """Check a task on the rows of `data` (embedded ones by default). Errors of the task are
    reported as failures, not raised."""
    report = Report()
    for name in ("version", "max_new_tokens", "length"):
        value = getattr(task, name)
        if not isinstance(value, int) or value < (0 if name == "max_new_tokens" else 1):
            report.failures.append(f"{name} is {value!r}")
    try:
        if data is None or data.source == "embedded":
            _check_embedded(task, tokenizer, report)
        else:
            rows = task.load(data, ROWS, task.length, 0).rows
            _check_references(task, rows, report)
            _check_encoding(task, rows, tokenizer, task.length, report)
            _check_scores(task, rows, report)
    except Exception as error:  # any error is a failure of the task and part of the report
        report.failures.append(f"{type(error).__name__}: {error}")
    return report


def _check_embedded(task: Task, tokenizer: Tokenizer, report: Report) -> None:
    try:
        loaded, length = _load(task, report)
    except NoEmbeddedRows:
        _check_examples(task, tokenizer, report)
        return
    _check_loading(task, loaded, length, report)
    _check_references(task, loaded.rows, report)
    _check_encoding(task, loaded.rows, tokenizer, length, report)
    _check_scores(task, loaded.rows, report)


# --- without embedded rows --------------------------------------------------------------------


def _check_examples(task: Task, tokenizer: Tokenizer, report: Report) -> None:
    """The checks that need no rows of the task."""
    report.not_checked.append(
        f"loading, splits and references: {task.name} has no embedded rows; "
        "data=local data.dir=FOLDER checks its own rows"
    )
    missing = getattr(task, "missing_package", "")
    answer = None if missing else _example_answer(task)
    if missing:
        report.not_checked.append(missing)
    elif answer is None:
        report.not_checked.append(
            f"scores: the metric gives none of the example answers 100: {EXAMPLE_ANSWERS}"
        )
        if task.metric_version < 1:
            report.failures.append(f"metric_version is {task.metric_version}")
    rows = [
        Prompt(f"example-{at}", query, EXAMPLE_DOCUMENT, (answer or EXAMPLE_ANSWERS[0],))
        for at, query in enumerate(("Where is the silver lantern?", "summarize"))
    ]
    if answer is not None:
        _check_scores(task, rows, report)
    try:
        task.encode(rows[0], tokenizer, 1024)
    except Exception as error:  # the task may need its own columns or class of rows
        report.not_checked.append(f"encoding: example rows give {type(error).__name__}: {error}")
    else:
        _check_encoding(task, rows, tokenizer, 1024, report)


def _example_answer(task: Task) -> str | None:
    answers = map(str, range(task.labels)) if task.labels else EXAMPLE_ANSWERS
    for answer in answers:
        try:
            if task.score([answer], [[answer]])["value"] > 99.99:
                return answer
        except (ValueError, ZeroDivisionError):  # no answer in the metric's format
            continue
    return None


# --- rules ------------------------------------------------------------------------------------


def _load(task: Task, report: Report) -> tuple[Loaded, int]:
    for length in LENGTHS:
        started = time.process_time()
        try:
            with _no_network():
                loaded = task.load(Data(), ROWS, length, 0)
        except DataError as error:
            if "too short" in str(error) and length != LENGTHS[-1]:
                continue
            raise
        report.load_s = time.process_time() - started
        return loaded, length
    raise AssertionError("unreachable")


def _check_loading(task: Task, loaded: Loaded, length: int, report: Report) -> None:
    rows, failures = loaded.rows, report.failures
    if len(rows) != ROWS:
        failures.append(f"n={ROWS} gave {len(rows)} rows")
    if task.load(Data(), ROWS, length, 0) != loaded:
        failures.append("the same request gave other rows")
    if list(task.load(Data(), 2, length, 0).rows) != list(rows[:2]):
        failures.append("the first rows depend on n")
    if task.load(Data(), ROWS, length, 1).sha256 == loaded.sha256:
        failures.append("another seed gave the same rows")
    if loaded.n_available < len(rows) or len(loaded.sha256) != 64:
        failures.append("n_available or sha256 is wrong")
    documents = {loaded.split: {row.document for row in rows}}
    for split in ("train", "validation", "test"):
        if split not in documents:
            try:
                others = task.load(Data(split=split), ROWS, length, 0).rows
            except DataError:
                continue  # not every benchmark has every split
            new = {row.document for row in others}
            failures += [
                f"splits {split} and {name} share rows"
                for name, known in documents.items()
                if known & new
            ]
            documents[split] = new


def _check_references(task: Task, rows: Sequence[Row], report: Report) -> None:
    if len({row.id for row in rows}) != len(rows):
        report.failures.append("ids come twice")
    for row in rows:
        if (not row.references and not getattr(task, "takes_empty", False)) or any(
            isinstance(text, str) and not text.strip() for text in row.references
        ):
            report.failures.append(f"row {row.id} has an empty reference")
        if task.labels and row.references[0] not in map(str, range(task.labels)):
            report.failures.append(f"row {row.id}: label {row.references[0]} of {task.labels}")


def _check_encoding(
    task: Task, rows: Sequence[Row], tokenizer: Tokenizer, length: int, report: Report
) -> None:
    for limit in (length, length // 2, 1_000_000):
        for row in rows:
            try:
                with _no_imports():
                    encoded = task.encode(row, tokenizer, limit)
            except DataError:
                continue  # a query that is too long is refused with a message
            report.failures += [
                f"row {row.id}: {failure}" for failure in _encoding_failures(row, encoded, limit)
            ]
            # Rows are read in a process other than the model's.
            sent = pickle.loads(pickle.dumps(row))
            if sent != row or task.encode(sent, tokenizer, limit) != encoded:
                report.failures.append(f"row {row.id}: encoded twice, it isn't the same")


def _encoding_failures(row: Row, encoded: Any, limit: int) -> Iterator[str]:
    n_ids, n_vip = len(encoded.ids), len(encoded.vip)
    for one in (encoded, encoded.second):
        if one is not None and len(one.ids) > limit:
            yield f"{len(one.ids)} ids at length={limit}"
    if not n_ids or n_vip != n_ids:
        yield f"{n_vip} VIP marks, {n_ids} ids"
    if row.query and not any(encoded.vip):
        yield f"no VIP token at length={limit}"
    if encoded.tokens_in < n_ids:
        yield f"{encoded.tokens_in} tokens in, {n_ids} seen"


def _check_scores(task: Task, rows: Sequence[Row], report: Report) -> None:
    if task.metric_version < 1:
        report.failures.append(f"metric_version is {task.metric_version}")
    references = [row.references for row in rows]
    predictions = [perfect(task, row) for row in rows]
    best = 100.0 if task.higher_is_better else 0.0
    _expect(task, predictions, references, best, "references against themselves", report)
    if isinstance(predictions[0], str) and task.higher_is_better:
        _expect(task, [""] * len(rows), references, 0.0, "empty predictions", report)
        for prediction in ODD_PREDICTIONS:
            for score in task.score_each([prediction] * len(rows), references):
                if not 0 <= score < math.inf:
                    report.failures.append(f"prediction {prediction[:9]!r} scores {score}")


def perfect(task: Task, row: Row) -> Any:
    """A prediction with the best score. A task whose predictions aren't texts defines a method
    `perfect(row)`."""
    own = getattr(task, "perfect", None)
    return own(row) if own else row.references[0]


def _expect(
    task: Task, predictions: list[Any], references: list[Any], expected: float, what: str,
    report: Report,
) -> None:  # fmt: skip
    value = task.score(predictions, references)["value"]
    each = task.score_each(predictions, references)
    if abs(value - expected) > 1e-3:
        report.failures.append(f"{what} score {value}, expected {expected:g}")
    if each and abs(math.fsum(each) / len(each) - value) > 1e-3:
        report.failures.append(f"{what}: the mean over rows isn't the value {value}")
    if len(each) != len(predictions) or any(abs(score - expected) > 1e-3 for score in each):
        report.failures.append(
            f"{what}: rows score {sorted(set(each))}, expected {expected:g} each"
        )


# --- forbidden imports ------------------------------------------------------------------------


@contextmanager
def _no_network() -> Iterator[None]:
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
    """Refuse imports of tasks' modules: in a run, nothing that could reveal a label is available
    while rows are encoded."""
    real = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "tasks":
            raise ImportError(f"encode imports {name}; a task's modules are imported at their top")
        return real(name, *args, **kwargs)

    builtins.__import__ = refuse
    try:
        yield
    finally:
        builtins.__import__ = real
