"""Predictions paired with their right answers, and official submissions.

SCROLLS and ZeroSCROLLS take one CSV with columns Task, ID, Prediction for all their tasks, and
reject predictions with missing or additional ids (submission/verify_task.py of both).
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tasks import metrics
from tasks.base import Data, DataError, Row, Task
from tasks.generators import babi
from tasks.loading import prediction_files, records
from tasks.loading.prediction_files import Located, name_of, text_of
from tasks.loading.records import Record
from tasks.metrics.retrieval import References
from tasks.prompted import Prompted

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
KNOWN: Mapping[str, Mapping[str, Callable[[Any], Sequence[str]]]] = {
    "babilong": {"labels": lambda task: babi.LABELS[task.member]}
}
"""Benchmark → what a task knows of `metrics.needs` without a row."""


class Paired(NamedTuple):
    """Predictions with the right answers of each, the rows if the answers come from rows, and the
    number of records left out because they have no right answer."""

    predictions: list[str]
    references: list[Sequence[str]]
    rows: Sequence[Row] | None = None
    n_unanswerable: int = 0


def paired(
    task: Task, data: Data, path: Path, n: int | None = None, skip_unanswerable: bool = False
) -> Paired:
    """The predictions of a file with their right answers. The answers are those of the first n rows
    (None: all) of `data` if the file has none, or if local or hub data are requested and the
    records have ids; otherwise they come from the file. Raises DataError."""
    read_outputs = getattr(task, "read_outputs", None)
    if read_outputs and path.suffix == ".txt":
        return Paired(*read_outputs(path))
    located = prediction_files.read(path, task)
    where, first = located[0]
    accepted = (*prediction_files.answer_names(task, first), *prediction_files.id_names(task))
    if prediction_files.prediction_name(task, first) and name_of(first, accepted) is None:
        raise prediction_files.missing(where, "a right answer or an id", accepted, first)
    has_ids = name_of(first, prediction_files.id_names(task)) is not None
    needs, takes_empty = _demands(task)
    rows: Sequence[Row] | None = None
    n_unanswerable = 0
    references: list[Sequence[str]]
    if _has_answers(task, located) and (data.source == "embedded" or not has_ids):
        predictions = prediction_files.predictions(task, located)
        references = [_references(task, needs, *each) for each in located]
        places = [where for where, _ in located]
    else:
        by_id = prediction_files.by_id(task, located)
        data = replace(data, skip_unanswerable=skip_unanswerable)
        loaded = task.load(data, n, task.length, 0)
        rows, n_unanswerable = loaded.rows, loaded.n_unanswerable
        by_id = _named_as(rows, by_id)
        if n_unanswerable:  # the file may have predictions for the rows left out
            by_id = {row.id: by_id[row.id] for row in rows if row.id in by_id}
        if errors := verify(by_id, (row.id for row in rows)):
            raise DataError(f"{path}: {'; '.join(errors)}")
        predictions = [by_id[row.id] for row in rows]
        references = [row.references for row in rows]
        places = [f"{task.name} row {row.id}" for row in rows]
    if takes_empty:
        return Paired(predictions, references, rows)
    if not skip_unanswerable:
        for place, right in zip(places, references, strict=True):
            if not len(right):
                raise DataError(
                    f"{place}: no right answer, and metric {task.metric} needs one; "
                    "--skip-unanswerable leaves such rows out"
                )
        return Paired(predictions, references, rows)
    kept = [at for at, right in enumerate(references) if any(map(str.strip, right))]
    if not kept:
        raise DataError(f"{path}: no row has a right answer")
    return Paired(
        [predictions[at] for at in kept],
        [references[at] for at in kept],
        [rows[at] for at in kept] if rows else None,
        n_unanswerable + len(references) - len(kept),
    )


def _has_answers(task: Task, located: Located) -> bool:
    """Whether any record has a right answer, not only a column for it."""
    return any(
        (name := name_of(record, prediction_files.answer_names(task, record)))
        and record[name] is not None
        for _, record in located
    )


def _named_as(rows: Sequence[Row], by_id: dict[str, str]) -> dict[str, str]:
    """Predictions whose numeric ids are spelled as in the rows, which may have leading zeros."""
    number = re.compile(r"\d{1,18}")
    ids = {row.id for row in rows}
    numbered = {int(row_id): row_id for row_id in ids if number.fullmatch(row_id)}
    return {
        numbered.get(int(key), key) if key not in ids and number.fullmatch(key) else key: text
        for key, text in by_id.items()
    }


def _demands(task: Any) -> tuple[Mapping[str, str], bool]:
    """The further columns that the metric needs, and whether a row may have no answer. A metric
    that isn't in tasks.metrics needs no further columns."""
    name = getattr(task, "official", task.name), task.metric
    try:
        return metrics.needs(*name), metrics.takes_empty(*name)
    except ValueError:
        return {}, False


def _references(task: Any, needs: Mapping[str, str], where: str, record: Record) -> References:
    """The right answers of a record and the further columns that the metric needs."""
    names = prediction_files.answer_names(task, record)
    if (name := name_of(record, names)) is None:
        raise prediction_files.missing(where, "a right answer", names, record)
    answers = _texts(record[name], name, where)
    if isinstance(task, Prompted) and name.lower() == task.answers_in.lower():
        answers = [_as_in_rows(task, answer) for answer in answers]
    given = {what: know(task) for what, know in KNOWN.get(task.benchmark, {}).items()}
    lacking = []
    for what, official in needs.items():
        own = getattr(task, "labels_in", "") if what == "labels" else ""
        column = name_of(record, [own or official, official])
        if what in given:
            continue
        if column and (found := _texts(record[column], column, where)):
            given[what] = found
        else:
            lacking.append(own or official)
    if lacking:
        raise DataError(
            f"{where}: metric {task.metric} also needs {' and '.join(lacking)}; found "
            f"{', '.join(record)}. Add the columns, or give each row an id and take the rows by "
            "--data-dir DIR"
        )
    return References(answers, "\n".join(given.get("question", ())), given.get("labels", ()))


def _as_in_rows(task: Prompted, answer: str) -> str:
    """An answer from the task's own column, in the form of its rows."""
    texts = {str(key): text for key, text in task.texts.get(task.answers_in, {}).items()}
    answer = str(texts.get(answer, answer))
    return answer.rpartition(task.answer_after)[2].strip() if task.answer_after else answer


def _texts(value: Any, name: str, where: str) -> list[str]:
    """The texts of a column: one, a list, or as in ELI5 {text: [...]} or [{answer: text}]."""
    if isinstance(value, dict) and isinstance(value.get("text"), list):
        value = value["text"]
    values = value if isinstance(value, list) else [value]
    values = [one.get("answer") if isinstance(one, dict) else one for one in values]
    return [text_of(one, name, where) for one in values if one is not None]


def read_predictions(path: Path, task: Task) -> dict[str, str]:
    """id → prediction of a file; for a file of several tasks, those of `task`. Raises DataError."""
    return prediction_files.by_id(task, prediction_files.read(path, task))


def verify(predictions: Mapping[str, Any], ids: Iterable[str]) -> list[str]:
    """Violations of the official rules by predictions for these ids; empty if there are none."""
    wanted, errors = dict.fromkeys(ids), []
    missing = [row_id for row_id in wanted if row_id not in predictions]
    redundant = [row_id for row_id in predictions if row_id not in wanted]
    for what, row_ids in (("missing", missing), ("redundant", redundant)):
        if row_ids:
            more = f" and {len(row_ids) - 5} more" if len(row_ids) > 5 else ""
            errors.append(f"{len(row_ids)} {what} ids: {', '.join(row_ids[:5])}{more}")
    return errors


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
    existing = records.read(path) if path.is_file() else ()
    try:
        rows = [tuple(record[name] for name in COLUMNS) for _, record in existing]
    except KeyError as error:
        raise DataError(f"{path}: no column {error}; expected {', '.join(COLUMNS)}") from None
    if len({row[:2] for row in rows}) < len(rows):
        raise DataError(f"{path}: an id of a task comes twice; expected each once")
    rows = [row for row in rows if row[0] != member]
    if unknown := {row[0] for row in rows} - set(MEMBERS[task.benchmark]):
        raise DataError(f"{path} holds tasks that {task.benchmark} has not: {', '.join(unknown)}")
    rows += [(member, row_id, text) for row_id, text in predictions.items()]
    with path.open("w", newline="", encoding="utf-8") as file:
        # Everything is quoted, so that no prediction is parsed as a number or as missing.
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([COLUMNS, *rows])
    present = {row[0] for row in rows}
    return [one for one in MEMBERS[task.benchmark] if one not in present]
