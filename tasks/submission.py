"""Predictions of anyone: read from a file, scored, and written as the official submission.

SCROLLS and ZeroSCROLLS take one CSV with columns Task, ID, Prediction for all their tasks, and
refuse predictions that lack an id or have one too many (submission/verify_task.py of both).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks import records, sources
from tasks.base import Data, DataError, Task

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
    """id → prediction from json lines {id, prediction}, from one json object {id: prediction}, or
    from a submission CSV, of which `member` names the task. DataError with file and line."""
    if not path.is_file():
        raise DataError(f"no file {path}")
    name = path.name.lower()
    if name.endswith(".csv"):
        return {row_id: said for task, row_id, said in _csv_rows(path) if task == member}
    if name.endswith((".jsonl", ".jsonl.gz")):
        return _unique(_lines(path))
    if name.endswith(".json"):
        try:
            # Pairs, since a dict would drop an id that comes twice.
            found = json.loads(path.read_bytes(), object_pairs_hook=_Pairs)
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {error.lineno}: broken json: {error.msg}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
        if not isinstance(found, _Pairs):
            raise DataError(f"{path}: expected one object {{id: prediction}}")
        return _unique((f"{path}", key, value) for key, value in found)
    raise DataError(f"{path}: accepted: .jsonl, .jsonl.gz, .json, .csv")


class _Pairs(list[tuple[str, Any]]):
    """A json object as its pairs."""


def _lines(path: Path) -> Iterable[tuple[str, str, Any]]:
    for where, record in records.read(path):
        if "prediction" not in record:
            found = ", ".join(record) or "none"
            raise DataError(f"{where}: no column 'prediction'; found {found}")
        yield where, sources.text(record, "id", where), record["prediction"]


def _unique(found: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
    predictions: dict[str, Any] = {}
    for where, row_id, said in found:
        if row_id in predictions:
            raise DataError(f"{where}: id '{row_id}' came before; expected each id once")
        predictions[row_id] = said
    return predictions


def verify(predictions: Mapping[str, Any], ids: Iterable[str]) -> list[str]:
    """What the official rules say against predictions for these ids; empty if nothing."""
    wanted, errors = list(dict.fromkeys(ids)), []
    known = set(wanted)
    missing = [row_id for row_id in wanted if row_id not in predictions]
    redundant = [row_id for row_id in predictions if row_id not in known]
    for what, found in (("missing", missing), ("redundant", redundant)):
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            errors.append(f"{len(found)} {what} ids: {', '.join(found[:5])}{more}")
    wrong = [row_id for row_id, said in predictions.items() if not isinstance(said, str)]
    if wrong:
        kind = type(predictions[wrong[0]]).__name__
        errors.append(f"id {wrong[0]}: prediction is {kind}, expected text")
    return errors


def paired(
    task: Task, data: Data, path: Path, n: int | None = None
) -> tuple[list[Any], list[Sequence[str]]]:
    """Predictions and references: those in the file itself, where it has both, otherwise of the
    first n rows (None: all) of `data`. DataError if they aren't predictions of these rows."""
    if own := _own_pairs(task, path):
        return own
    rows = task.load(data, n, task.length, 0).rows
    predictions = read_predictions(path, getattr(task, "member", None))
    if task.labels is not None:
        predictions = {row_id: _class(said) for row_id, said in predictions.items()}
    if errors := verify(predictions, (row.id for row in rows)):
        raise DataError(f"{path}: {'; '.join(errors)}")
    return [predictions[row.id] for row in rows], [row.references for row in rows]


def _class(said: Any) -> Any:
    """A class as text, which may be given as its number or as the scores of all classes."""
    if isinstance(said, list) and said and all(isinstance(x, int | float) for x in said):
        return str(max(range(len(said)), key=said.__getitem__))
    return str(said) if type(said) is int else said


def _own_pairs(task: Task, path: Path) -> tuple[list[Any], list[Sequence[str]]] | None:
    """The pairs of json lines {prediction, reference} or {prediction, references: […]}, or of a
    benchmark's own file of outputs (`task.read_outputs`)."""
    if not path.is_file():
        return None
    read_outputs = getattr(task, "read_outputs", None)
    if read_outputs and path.suffix == ".txt":
        given, references = read_outputs(path)
        return given, references
    if not path.name.lower().endswith((".jsonl", ".jsonl.gz")):
        return None
    predictions: list[Any] = []
    found: list[Sequence[str]] = []
    for where, record in records.read(path):
        if not predictions and not {"reference", "references"} & set(record):
            return None
        right = record["references"] if "references" in record else record.get("reference")
        right = [right] if isinstance(right, str) else right
        if not isinstance(right, list) or not all(isinstance(one, str) for one in right):
            raise DataError(f"{where}: expected 'reference' with text or 'references' with texts")
        predictions.append(sources.text(record, "prediction", where))
        found.append(right)
    return (predictions, found) if predictions else None


def export(
    task: Task, predictions: Mapping[str, str], reference_ids: Iterable[str], path: Path
) -> list[str]:
    """Writes a task's predictions: to a .json as {id: prediction}, or into a .csv, where those of
    other tasks stay. Returns the members of the benchmark that the file still lacks (a .json is one
    task's). DataError if the benchmark has no submissions, or by its rules."""
    member = getattr(task, "member", "")
    if member not in MEMBERS.get(task.benchmark, ()):
        known = ", ".join(MEMBERS)
        raise DataError(f"{task.name} has no official submission; tasks of {known} have")
    if errors := verify(predictions, reference_ids):
        raise DataError(f"{task.name}: {'; '.join(errors)}")
    if path.suffix == ".json":
        path.write_text(json.dumps(dict(predictions), ensure_ascii=False, indent=1) + "\n")
        return []
    if path.suffix != ".csv":
        raise DataError(f"{path}: accepted: .csv, .json")
    others = list(_csv_rows(path)) if path.is_file() else []
    rows = [row for row in others if row[0] != member]
    if strange := {row[0] for row in rows} - set(MEMBERS[task.benchmark]):
        raise DataError(f"{path} holds tasks that {task.benchmark} has not: {', '.join(strange)}")
    rows += [(member, row_id, said) for row_id, said in predictions.items()]
    with path.open("w", newline="", encoding="utf-8") as file:
        # All is quoted, so that no prediction is read as a number or as nothing.
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])
    held = {row[0] for row in rows}
    return [one for one in MEMBERS[task.benchmark] if one not in held]


def _csv_rows(path: Path) -> list[tuple[str, str, str]]:
    csv.field_size_limit(1 << 30)
    with path.open(newline="", encoding="utf-8") as file:
        try:
            head, *rows = list(csv.reader(file)) or [[]]
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}: broken csv: {error}") from None
    if tuple(head) != COLUMNS:
        raise DataError(f"{path} line 1: columns {', '.join(head)}; expected {', '.join(COLUMNS)}")
    seen = set()
    for at, row in enumerate(rows, start=1):
        if len(row) != len(COLUMNS):
            raise DataError(f"{path} row {at}: {len(row)} values, expected {len(COLUMNS)}")
        if (key := (row[0], row[1])) in seen:
            raise DataError(f"{path} row {at}: id '{row[1]}' of {row[0]} came before")
        seen.add(key)
    return [(row[0], row[1], row[2]) for row in rows]
