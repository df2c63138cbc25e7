"""Prediction files: reading them, pairing them with references, and writing official submissions.

SCROLLS and ZeroSCROLLS take one CSV with columns Task, ID, Prediction for all their tasks, and
reject predictions with missing or additional ids (submission/verify_task.py of both).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.base import Data, DataError, Row, Task
from tasks.loading import records

COLUMNS = ("Task", "ID", "Prediction")
MEMBERS = {
    "scrolls": (
        "gov_report", "summ_screen_fd", "qmsum", "narrative_qa", "qasper", "quality",
        "contract_nli",
    ),
    "zero_scrolls": (
        "gov_report", "summ_screen_fd", "qmsum", "squality", "qasper", "narrative_qa", "quality",
        "musique", "space_digest", "book_sum_sort",
    ),
}  # fmt: skip


def read_predictions(path: Path, member: str | None = None) -> dict[str, Any]:
    """id → prediction from JSON lines {id, prediction}, from one JSON object {id: prediction}, or
    from a submission CSV, in which `member` names the task. DataErrors give file and line."""
    if not path.is_file():
        raise DataError(f"no file {path}")
    name = path.name.lower()
    if name.endswith(".csv"):
        return {row_id: text for task, row_id, text in _csv_rows(path) if task == member}
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _unique(_jsonl_predictions(path))
    if name.endswith(".json"):
        try:
            # Pairs, because a dict would drop duplicate ids.
            pairs = json.loads(path.read_bytes(), object_pairs_hook=_Pairs)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {error.lineno}: broken json: {error.msg}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
        if not isinstance(pairs, _Pairs):
            raise DataError(f"{path}: expected one object {{id: prediction}}")
        return _unique((f"{path}", row_id, prediction) for row_id, prediction in pairs)
    raise DataError(f"{path}: accepted: .jsonl, .jsonl.gz, .json, .csv")


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as its pairs."""


def _jsonl_predictions(path: Path) -> Iterable[tuple[str, str, Any]]:
    for where, record in records.read(path):
        prediction = records.column(record, "prediction", where)
        yield where, records.text(record, "id", where), prediction


def _unique(located: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    predictions: dict[str, Any] = {}
    for where, row_id, prediction in located:
        if row_id in predictions:
            raise DataError(f"{where}: id '{row_id}' came before; expected each id once")
        predictions[row_id] = prediction
    return predictions


def verify(predictions: Mapping[str, Any], ids: Iterable[str]) -> list[str]:
    """Violations of the official rules by predictions for these ids; empty if there are none."""
    wanted, errors = dict.fromkeys(ids), []
    missing = [row_id for row_id in wanted if row_id not in predictions]
    redundant = [row_id for row_id in predictions if row_id not in wanted]
    for what, row_ids in (("missing", missing), ("redundant", redundant)):
        if row_ids:
            more = f" and {len(row_ids) - 5} more" if len(row_ids) > 5 else ""
            errors.append(f"{len(row_ids)} {what} ids: {', '.join(row_ids[:5])}{more}")
    wrong = [row_id for row_id, text in predictions.items() if not isinstance(text, str)]
    if wrong:
        kind = type(predictions[wrong[0]]).__name__
        errors.append(f"id {wrong[0]}: prediction is {kind}, expected text")
    return errors


def paired(
    task: Task, data: Data, path: Path, n: int | None = None
) -> tuple[list[Any], list[Sequence[str]], Sequence[Row] | None]:
    """Predictions, references and rows: predictions and references of the file itself if it has
    both, otherwise the references of the first n rows (None: all) of `data`. Raises DataError if
    the ids don't match the rows."""
    if pairs := _own_pairs(task, path):
        return *pairs, None
    rows = task.load(data, n, task.length, 0).rows
    predictions = read_predictions(path, getattr(task, "member", None))
    if task.labels is not None:
        predictions = {row_id: _class(value) for row_id, value in predictions.items()}
    if errors := verify(predictions, (row.id for row in rows)):
        raise DataError(f"{path}: {'; '.join(errors)}")
    return [predictions[row.id] for row in rows], [row.references for row in rows], rows


def _class(value: Any) -> Any:
    """A class as text, from its number or the scores of all classes."""
    if isinstance(value, list) and value and all(isinstance(x, int | float) for x in value):
        return str(max(range(len(value)), key=value.__getitem__))
    return str(value) if type(value) is int else value


def _own_pairs(task: Task, path: Path) -> tuple[list[Any], list[Sequence[str]]] | None:
    """The pairs of JSON lines {prediction, reference} or {prediction, references: […]}, or of a
    benchmark's own output file (`task.read_outputs`)."""
    if not path.is_file():
        return None
    read_outputs = getattr(task, "read_outputs", None)
    if read_outputs and path.suffix == ".txt":
        predictions, references = read_outputs(path)
        return predictions, references
    if not path.name.lower().endswith((".jsonl", ".jsonl.gz")):
        return None
    predictions, references = [], []
    for where, record in records.read(path):
        if not predictions and not {"reference", "references"} & set(record):
            return None
        right = record["references"] if "references" in record else record.get("reference")
        right = [right] if isinstance(right, str) else right
        if not isinstance(right, list) or not all(isinstance(one, str) for one in right):
            raise DataError(f"{where}: expected 'reference' with text or 'references' with texts")
        predictions.append(records.text(record, "prediction", where))
        references.append(right)
    return (predictions, references) if predictions else None


def export(
    task: Task, predictions: Mapping[str, str], reference_ids: Iterable[str], path: Path
) -> list[str]:
    """Write a task's predictions to a .json as {id: prediction}, or into a .csv, which keeps those
    of other tasks. Returns the members of the benchmark that a .csv still lacks. Raises DataError
    if the benchmark has no submissions or its rules are violated."""
    member = getattr(task, "member", "")
    if member not in MEMBERS.get(task.benchmark, ()):
        benchmarks = ", ".join(MEMBERS)
        raise DataError(f"{task.name} has no official submission; tasks of {benchmarks} have")
    if errors := verify(predictions, reference_ids):
        raise DataError(f"{task.name}: {'; '.join(errors)}")
    if path.suffix == ".json":
        path.write_text(json.dumps(dict(predictions), ensure_ascii=False, indent=1) + "\n")
        return []
    if path.suffix != ".csv":
        raise DataError(f"{path}: accepted: .csv, .json")
    existing = list(_csv_rows(path)) if path.is_file() else []
    rows = [row for row in existing if row[0] != member]
    if unknown := {row[0] for row in rows} - set(MEMBERS[task.benchmark]):
        raise DataError(f"{path} holds tasks that {task.benchmark} has not: {', '.join(unknown)}")
    rows += [(member, row_id, text) for row_id, text in predictions.items()]
    with path.open("w", newline="", encoding="utf-8") as file:
        # Everything is quoted, so that no prediction is parsed as a number or as missing.
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])
    present = {row[0] for row in rows}
    return [one for one in MEMBERS[task.benchmark] if one not in present]


def _csv_rows(path: Path) -> list[tuple[str, str, str]]:
    csv.field_size_limit(1 << 30)
    with path.open(newline="", encoding="utf-8") as file:
        try:
            head, *rows = list(csv.reader(file)) or [[]]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: broken csv: {error}") from None
    if tuple(head) != COLUMNS:
        raise DataError(f"{path} line 1: columns {', '.join(head)}; expected {', '.join(COLUMNS)}")
    keys = set()
    for number, row in enumerate(rows, start=1):
        if len(row) != len(COLUMNS):
            raise DataError(f"{path} row {number}: {len(row)} values, expected {len(COLUMNS)}")
        if (key := (row[0], row[1])) in keys:
            raise DataError(f"{path} row {number}: id '{row[1]}' of {row[0]} came before")
        keys.add(key)
    return [(row[0], row[1], row[2]) for row in rows]
