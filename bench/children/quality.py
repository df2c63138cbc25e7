"""Predictions of the method and of vanilla on the same rows, kept in shards as they come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.cell import Cell
from bench.children import arms, child
from bench.children.gate import Cheat
from bench.store import Predictions


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """Answers each row that isn't answered yet, the method's first and then vanilla's.
    Returns the tokens that were there and seen."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    tokens = predict(cell, Path(request["results"]), "quality", report)
    if request["baseline"]:
        predict(cell.baseline(), Path(request["results"]), "quality of vanilla", report)
    return tokens


class Sealed(tuple[str, ...]):
    """References that can't be read while predictions are made: scoring happens elsewhere."""

    def _refuse(self, *_: object) -> Any:
        raise Cheat("reads the labels while it predicts")

    __getitem__ = __iter__ = __len__ = __contains__ = _refuse


def predict(cell: Cell, results: Path, stage: str, report: child.Report) -> dict[str, Any]:
    """Predictions of one cell under results/predictions/<prediction key>."""
    task = arms.task_of(cell)
    rows = [replace(row, references=Sealed()) for row in arms.rows(cell, task).rows]
    family = arms.load(cell, arms.method_of(cell))
    encoded = [task.encode(row, family.tokenizer, cell.length) for row in rows]
    known = Predictions(results / "predictions", cell.prediction_key)
    done = known.done()
    hashes = [hashlib.sha256(json.dumps([*row.ids]).encode()).hexdigest()[:16] for row in encoded]
    open_rows = [
        i for i, row in enumerate(rows) if done.get(row.id, {}).get("input_sha256") != hashes[i]
    ]
    # Rows of like length share a batch, so that little of it is padding.
    open_rows.sort(key=lambda i: len(encoded[i].ids))
    answered = len(rows) - len(open_rows)
    report(stage, answered, len(rows))
    family.calls = 0
    for group in arms.batches(open_rows, cell.batch):
        ids, sequence = arms.collate([encoded[i] for i in group], cell.device["kind"])
        with torch.inference_mode():
            answers = family.generate(ids, sequence, task.max_new_tokens)
        known.append(
            {"id": rows[i].id, "input_sha256": hashes[i], "prediction": answer}
            for i, answer in zip(group, answers, strict=True)
        )
        answered += len(group)
        report(stage, answered, len(rows))
    if open_rows and not family.calls:
        raise Cheat("never calls its own attention: the model ignores the method")
    read = sum(row.tokens_in for row in encoded)
    seen = sum(len(row.ids) for row in encoded)
    return {
        "tokens_in_mean": read / len(rows),
        "tokens_seen_mean": seen / len(rows),
        "truncated_frac": 1 - seen / read,
    }
