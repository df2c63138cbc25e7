"""What the children measure: a model with the method in it, the same with vanilla, and inputs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench import plugins, system
from bench.cell import BASELINE, Cell
from bench.errors import RequestError
from bench.models.base import Family, Spec
from methods.base import Method, Sequence, Unsupported
from tasks.base import Encoded, Task

WORDS = {
    "text": "text",
    "class": "a class",
    "choice": "one of the choices that a question gives",
    "span": "a span of the context",
}
"""What a task asks for and a model answers with (tasks.base.Task.answers)."""


def prepare(cell: Cell, timed: bool = False) -> None:
    """Threads and seeds of this process as the cell says. What is timed is alone on its machine,
    and stays on as many cores; others may be several, and go where there is room."""
    torch.set_num_threads(cell.threads)
    if timed:
        os.sched_setaffinity(0, system.spread_cpus(cell.threads))
    torch.manual_seed(cell.seed)
    torch.use_deterministic_algorithms(cell.device["kind"] == "cpu")
    if cell.device["kind"] == "cuda" and not torch.cuda.is_available():
        raise RequestError(
            f"device={cell.device['name']}: torch {torch.__version__} sees no CUDA GPU"
        )


def method_of(cell: Cell) -> Method:
    try:
        method: Method = plugins.build(dict(cell.method))
    except (TypeError, ValueError) as error:
        raise RequestError(str(error)) from error
    return method


def vanilla() -> Method:
    method: Method = plugins.build(plugins.conf("method", BASELINE))
    return method


def load(cell: Cell, method: Method) -> Family:
    """The cell's model with the method in it. Raises RequestError when the folder holds no such
    model, Unsupported with the method's reason."""
    model = cell.model
    marks = tuple(model.get("marks", ()))
    config = None if "training" in model else model.get("config")
    spec = Spec(model["name"], Path(model["path"]), config, cell.seed, marks)
    try:
        family: Family = plugins.load(model["family"]).load(
            spec, method, cell.dtype, cell.device["kind"]
        )
    except (OSError, ValueError) as error:
        raise RequestError(str(error).splitlines()[0]) from error
    reason = method.unsupported(family.shape(cell.length, cell.batch))
    if reason:
        raise Unsupported(reason)
    return family


def check_fit(cell: Cell, task: Task, family: Family) -> None:
    """Raises RequestError when the model answers with something else than the task asks for."""
    if task.answers != family.answers:
        asked = f"one of {task.labels} classes" if task.labels else WORDS[task.answers]
        raise RequestError(
            f"task {cell.task['name']} asks for {asked}, model {cell.model['name']} answers with "
            f"{WORDS[family.answers]}; bench ls models lists others"
        )
    config: Any = family.model.config
    # A head that isn't trained is of any size: it may be timed, and refuses to answer.
    trained = not getattr(family, "lacks", ())
    if task.labels is not None and config.num_labels != task.labels and trained:
        raise RequestError(
            f"task {cell.task['name']} has {task.labels} classes, model {cell.model['name']} knows "
            f"{config.num_labels}: it was made for another task"
        )
    vocabulary = getattr(config, "vocab_size", None)
    if task.vocabulary and vocabulary and task.vocabulary > vocabulary:
        raise RequestError(
            f"task {cell.task['name']} has {task.vocabulary} token ids, model "
            f"{cell.model['name']} knows {vocabulary}"
        )


def collate(encoded: Items[Encoded], device: str) -> tuple[Tensor, Sequence]:
    """Rows of ids padded on the right to the longest: ids [B, n] and what is known of them. Of
    pairs, the first texts come before all the second ones: ids [2B, n]."""
    encoded = [*encoded, *(row.second for row in encoded if row.second is not None)]
    longest = max(len(row.ids) for row in encoded)
    ids = torch.zeros(len(encoded), longest, dtype=torch.long)
    valid = torch.zeros_like(ids, dtype=torch.bool)
    vip = torch.zeros_like(valid)
    for i, row in enumerate(encoded):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        valid[i, : len(row.ids)] = True if row.valid is None else torch.tensor(row.valid)
        vip[i, : len(row.ids)] = torch.tensor(row.vip)
    padded = not bool(valid.all())
    ids, valid, vip = ids.to(device), valid.to(device), vip.to(device)
    return ids, Sequence(valid=valid if padded else None, vip=vip)


def batches(items: Items[Any], size: int) -> Iterable[Items[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def longest_inputs(cell: Cell, family: Family, count: int) -> list[tuple[Tensor, Sequence]]:
    """`count` batches for timing, made of the longest rows: what a cell of this length costs."""
    task = cell.build_task()
    check_fit(cell, task, family)
    some = cell.rows().rows[: max(64, count * cell.batch)]
    encoded = [task.encode(row, family.tokenizer, cell.length) for row in some]
    encoded.sort(key=lambda row: -len(row.ids))
    needed = count * cell.batch
    encoded = (encoded * -(-needed // len(encoded)))[:needed]
    return [collate(group, cell.device["kind"]) for group in batches(encoded, cell.batch)]


def first_token(family: Family, ids: Tensor, sequence: Sequence) -> Tensor:
    """What latency and memory are measured on: an input read, the first token's logits out."""
    start = torch.zeros(ids.shape[0], 1, dtype=torch.long, device=ids.device)
    return family.logits(ids, sequence, start)
