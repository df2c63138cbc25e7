"""Predictions of the method and of vanilla on the same rows, kept in shards as they come."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.cell import Cell
from bench.children import arms, child, gate
from bench.children.labels import Sealed, sealed
from bench.store import Predictions
from tasks.base import Encoded, Row, Task


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """Answers each row that isn't answered yet, the method's first and then vanilla's.
    Returns the tokens that were there and seen."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    tokens = predict(cell, Path(request["results"]), "quality", report)
    if request["baseline"]:
        predict(cell.baseline(), Path(request["results"]), "quality of vanilla", report)
    return tokens


def predict(cell: Cell, results: Path, stage: str, report: child.Report) -> dict[str, Any]:
    """Predictions of one cell under results/predictions/<prediction key>.

    The rows are read first; from then on, before anything of the method is loaded, no label can be
    had."""
    task = cell.build_task()
    rows = [replace(row, references=Sealed(), support=()) for row in cell.rows().rows]
    known = Predictions(results / "predictions", cell.prediction_key)
    with sealed(task, _files(cell)):
        encoded = _answer(cell, task, rows, known, stage, report)
    read = sum(row.tokens_in for row in encoded)
    seen = sum(len(row.ids) for row in encoded)
    return {
        "tokens_in_mean": read / len(rows),
        "tokens_seen_mean": seen / len(rows),
        "truncated_frac": 1 - seen / read,
    }


def _answer(
    cell: Cell,
    task: Task,
    rows: list[Row],
    known: Predictions,
    stage: str,
    report: child.Report,
) -> list[Encoded]:
    """Answer what isn't answered yet, batch by batch; returns the rows as the model reads them."""
    family = arms.load(cell, arms.method_of(cell))
    arms.check_fit(cell, task, family)
    encoded = [task.encode(row, family.tokenizer, cell.length) for row in rows]
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
        gate.confirm_honest()
        known.append(
            {
                "id": rows[i].id,
                "input_sha256": hashes[i],
                "tokens_in": encoded[i].tokens_in,
                "prediction": task.spell(rows[i], answer),
            }
            for i, answer in zip(group, answers, strict=True)
        )
        answered += len(group)
        report(stage, answered, len(rows))
    if open_rows and not family.calls:
        gate.accuse("never calls its own attention: the model ignores the method")
    return encoded


def _files(cell: Cell) -> Path | None:
    """The folder that the rows came from; None for embedded ones."""
    if cell.data["source"] != "hub":
        return Path(cell.data["dir"]) if cell.data["dir"] else None
    from huggingface_hub.constants import HF_HUB_CACHE

    repo = cell.task["hub"]["repo"].replace("/", "--")
    return Path(HF_HUB_CACHE) / f"datasets--{repo}"
