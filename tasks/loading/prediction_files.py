"""Prediction files, read in the layouts of benchmarks and of evaluation tools.

A file is a list of records: JSON lines, a JSON array, CSV or parquet, a JSON object of id →
prediction or id → record, or a JSON object with one list of records. The tables below list the
names of columns for a prediction, its right answers and its id; the first name that a record has
counts, in upper or lower case. `doc` (lm-evaluation-harness) is read as part of its record.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.base import DataError, Task
from tasks.loading import records
from tasks.loading.records import Record

PREDICTIONS = (
    "filtered_resps", "resps", "prediction", "pred", "predicted_answer", "response",
    "generated_text", "generation", "completion", "model_output", "output",
)  # fmt: skip
ANSWERS = (
    "references", "reference", "ground_truths", "ground_truth", "outputs", "answers", "answer",
    "answer_nodes", "gold", "target", "label", "output",
)  # fmt: skip
IDS = (
    "id", "_id", "qid", "q_id", "question_id", "example_id", "sample_id", "doc_id", "index", "idx",
)  # fmt: skip
JSON = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
SUFFIXES = (*JSON, ".csv", ".parquet")
LETTERS = {"choice": ("ABCD", "The correct answer is ({})")}
"""Metric → the letters that a file may have as extracted answers, and how the metric spells one."""
_ITEM = re.compile(
    r"""\s*('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?)\s*,?\s*""", re.DOTALL
)

Located = list[tuple[str, Record]]


def read(path: Path, task: Task) -> Located:
    """The records of a file that belong to the task, at least one, each with its location. Raises
    DataError."""
    if not path.is_file():
        raise DataError(f"no file {path}")
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"{path}: accepted: {', '.join(SUFFIXES)}")
    located = _json(path) if name.endswith(JSON) else list(records.read(path))
    if not located:
        raise DataError(f"{path} has no predictions")
    is_csv = name.endswith(".csv")
    return [
        (where, _unpacked(task, record, is_csv)) for where, record in _of_task(task, located, path)
    ]


def _unpacked(task: Task, record: Record, is_csv: bool) -> Record:
    """The record with the columns of its `doc`, and with lists where a list was written as text:
    in CSV files by Python or NumPy, and in the `target` of lm-evaluation-harness."""
    if isinstance(doc := record.get("doc"), dict):
        record = {**doc, **record}
    prediction = prediction_name(task, record)
    packed = [name for name in record if is_csv and name != prediction]
    if "filtered_resps" in record and "target" in record:
        packed.append("target")
    return record | {name: _listed(record[name]) for name in packed}


def _listed(text: Any) -> Any:
    if not (isinstance(text, str) and text.startswith("[") and text.endswith("]")):
        return text
    at, items = 1, []
    while found := _ITEM.match(text, at, len(text) - 1):
        at, item = found.end(), found[1]
        try:
            items.append(ast.literal_eval(item) if item[0] in "'\"" else item)
        except (SyntaxError, ValueError):
            return text
    return items if not text[at:-1].strip() else text


def _json(path: Path) -> Located:
    lines = [(where, raw) for where, raw in records.lines(path) if raw.strip()]
    text = b"".join(raw for _, raw in lines)
    is_array = text.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    if not path.name.lower().endswith((".json", ".json.gz")) and not is_array:
        return [(where, records.json_object(raw, where)) for where, raw in lines]
    try:
        content = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and not is_array:
            return [(where, records.json_object(raw, where)) for where, raw in lines]
        raise DataError(f"{path} line {error.lineno}: broken json: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {error}") from None
    if isinstance(content, dict):
        lists = [
            value
            for value in content.values()
            if isinstance(value, list)
            and _objects(value)
            and any(_has_prediction(r) for r in value)
        ]
        if _has_prediction(content):
            content = [content]
        elif len(lists) == 1:
            (content,) = lists
        else:
            content = [
                {"id": key, **value}
                if isinstance(value, dict)
                else {"id": key, "prediction": value}
                for key, value in content.items()
            ]
            return [(f"{path}: id '{record['id']}'", record) for record in content]
    if not isinstance(content, list) or not _objects(content):
        raise DataError(
            f"{path}: found {type(content).__name__}, expected an object {{id: prediction}} or a "
            "list of objects"
        )
    return [(f"{path} entry {number}", record) for number, record in enumerate(content, start=1)]


def _object(pairs: list[tuple[str, Any]]) -> Record:
    """A JSON object. Raises an error for duplicate names, of which a dict would keep the last."""
    found: Record = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"id '{name}' came before; expected each id once")
        found[name] = value
    return found


def _objects(values: list[Any]) -> bool:
    return all(isinstance(value, dict) for value in values)


def _has_prediction(record: Record) -> bool:
    return next(_columns(record, PREDICTIONS), None) is not None


def _of_task(task: Task, located: Located, path: Path) -> Located:
    """The records of the task in a file of several tasks (a submission, kvpress), and those of the
    first filter in a file of several (lm-evaluation-harness)."""
    _, first = located[0]
    if "filtered_resps" in first:
        return [each for each in located if each[1].get("filter") == first.get("filter")]
    column, member = name_of(first, ("task",)), getattr(task, "member", "")
    if column is None or not member:
        return located
    chosen = [each for each in located if each[1].get(column) in (member, task.name)]
    found = sorted({str(record.get(column)) for _, record in located})
    if not chosen and len(found) > 1:
        raise DataError(
            f"{path} has no predictions with {column}={member}; it has {', '.join(found)[:200]}"
        )
    return chosen or located


# --- columns ----------------------------------------------------------------------------------


def answer_names(task: Any, record: Record) -> list[str]:
    """The names of columns with right answers, the task's own first. The prediction's column is not
    among them."""
    columns = getattr(task, "columns", None)
    summary = columns.get("summary", "") if isinstance(columns, Mapping) else ""
    own = [getattr(task, "answers_in", ""), summary]
    prediction = str(prediction_name(task, record)).lower()
    return [name for name in (*own, *ANSWERS) if name and name.lower() != prediction]


def id_names(task: Any) -> Sequence[str]:
    own = getattr(task, "id_in", "")
    return (own, *IDS) if own else IDS


def prediction_name(task: Any, record: Record) -> str | None:
    """The column of the prediction: the first one, even without a value."""
    own = getattr(task, "answers_in", "")
    return next(_columns(record, [name for name in PREDICTIONS if name != own]), None)


def name_of(record: Record, names: Iterable[str]) -> str | None:
    """The column of the first name that has a value in the record, else of the first that
    exists."""
    found = [*_columns(record, names)]
    return next((name for name in found if record[name] is not None), next(iter(found), None))


def _columns(record: Record, names: Iterable[str]) -> Iterator[str]:
    columns = {str(column).strip().lower(): column for column in record}
    return (columns[name.lower()] for name in names if name.lower() in columns)


def missing(where: str, what: str, names: Iterable[str], record: Record) -> DataError:
    """The error for a record without any of the columns `names`."""
    accepted = list(names)
    near = [
        name
        for column in record
        for name in difflib.get_close_matches(str(column).lower(), accepted, 1, 0.75)
    ]
    hint = f" Did you mean {near[0]}?" if near else ""
    return DataError(
        f"{where}: no column with {what}; found {', '.join(map(str, record)) or 'none'}."
        f"{hint} Accepted: {', '.join(accepted)}"
    )


def by_id(task: Task, located: Located) -> dict[str, Any]:
    """id → prediction. Raises DataError."""
    found: dict[str, Any] = {}
    for (where, record), text in zip(located, predictions(task, located), strict=True):
        if (name := name_of(record, id_names(task))) is None:
            raise missing(where, "an id", id_names(task), record)
        row_id = text_of(record[name], name, where)
        if row_id in found:
            raise DataError(f"{where}: id '{row_id}' came before; expected each id once")
        found[row_id] = text
    return found


def predictions(task: Task, located: Located) -> list[str]:
    """The prediction of each record. Raises DataError."""
    found = []
    for where, record in located:
        if (name := prediction_name(task, record)) is None:
            raise missing(where, "a prediction", PREDICTIONS, record)
        found.append(_prediction(task, record[name], name, where))
    letters, spelling = LETTERS.get(task.metric, ("", ""))
    if letters and all(text.strip() in ("", *letters) for text in found):
        return [spelling.format(text.strip()) if text.strip() else "" for text in found]
    return found


def _prediction(task: Task, value: Any, name: str, where: str) -> str:
    """A prediction as text; a class from its number or from the scores of all classes."""
    while isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, dict) and "answer" in value:  # KILT
        value = value["answer"]
    if value is None and task.metric in LETTERS:
        return ""
    is_scores = isinstance(value, list) and value and all(map(_is_number, value))
    if task.labels is not None and is_scores:
        return str(max(range(len(value)), key=value.__getitem__))
    return text_of(value, name, where)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def text_of(value: Any, name: str, where: str) -> str:
    """A text or number of the column `name` as text. Raises DataError."""
    return records.text({name: str(value) if _is_number(value) else value}, name, where)
