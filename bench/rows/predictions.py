"""A model's predictions, in append-only shards of JSON lines.

A metric is a pure function of these, so a corrected metric needs no new run, and a killed run
resumes from the last shard.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.rows.shards import unique_name, write_whole


class Predictions:
    """The predictions of one cell, in `folder`/`key`. A record is one sample: its `id` (string or
    integer), its `prediction`, and other values for its metric, as JSON."""

    def __init__(self, folder: str | Path, key: str) -> None:
        if not key or "/" in key or key.startswith("."):
            raise ValueError(f"a key of predictions is a plain name, got '{key}'")
        self.folder = Path(folder) / key
        self.warnings: list[str] = []

    def append(self, records: Iterable[Mapping[str, Any]]) -> Path | None:
        """Store records as one new shard and return its path; None when there are none.

        Raises ValueError for a record without an id or not of JSON, StoreError when the folder
        can't be written; earlier shards are untouched.
        """
        lines = []
        for record in records:
            if not isinstance(record.get("id"), (str, int)):
                raise ValueError(f"a prediction needs an id, got {dict(record)!r:.80}")
            lines.append(_line(record))
        if not lines:
            return None
        path = self.folder / unique_name("part", ".jsonl")
        write_whole(path, b"".join(lines))
        return path

    def done(self) -> dict[str | int, dict[str, Any]]:
        """Id → record over all shards; of two records of one sample, the later one.

        A line that isn't a record, as at the end of a torn file, is left out, and `warnings` names
        the first of each shard.
        """
        records = {}
        warnings: dict[Path, str] = {}
        for path in sorted(filter(Path.is_file, self.folder.glob("part-*.jsonl"))):
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                try:
                    record = json.loads(line)
                    if b"\\ud" in line.lower():  # perhaps a lone surrogate, which isn't valid text
                        _line(record)
                    record["prediction"]  # required in a record
                    records[record["id"]] = record
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    reason = f"{type(error).__name__}: {error}"
                    warnings.setdefault(path, f"{path} line {number} is no prediction: {reason}")
        self.warnings = list(warnings.values())
        return records

    def sha256(self, ids: Collection[str | int] | None = None) -> str:
        """Hash of ids and predictions, in the order of ids: the same answers give the same hash,
        independent of shards and of other recorded fields. `ids` leaves other samples out.
        """
        lines = sorted(
            _line({"id": key, "prediction": record.get("prediction")})
            for key, record in self.done().items()
            if ids is None or key in ids
        )
        return hashlib.sha256(b"".join(lines)).hexdigest()


def _line(record: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(record), sort_keys=True, ensure_ascii=False).encode() + b"\n"
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"a prediction is JSON in UTF-8: {error}") from error


def documents(rows: Iterable[Any]) -> list[str]:
    """Keys of the documents of rows: their text, or a row's id if it has no text."""
    return [row.document or row.id for row in rows]
