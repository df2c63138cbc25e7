"""Train the weights that a cell asks for, in a child of `bench train` or `bench run`, or in one of
the processes that accelerate's launcher or torchrun starts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from accelerate import Accelerator, DistributedDataParallelKwargs

from bench.errors import RequestError
from bench.execution import arms, cell_lock, worker
from bench.execution.supervisor import Progress
from bench.request import weights
from bench.request.cell import Cell
from bench.train.trainer import Trainer


def measure(request: dict[str, Any], report: Progress) -> dict[str, Any]:
    cell = Cell.from_json(request["cell"])
    worker.keep_freed_memory()
    arms.prepare(cell)
    return train(cell, report)


def train(cell: Cell, report: Progress) -> dict[str, Any]:
    """The card of the cell's checkpoint, which is trained unless it is there. Raises Unsupported
    with the method's reason, RequestError, Diverged or DiskFull."""
    assert cell.recipe is not None
    folder = Path(cell.model["path"])
    folder.mkdir(parents=True, exist_ok=True)
    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[cell.recipe["dtype"]]
    cpu = cell.device["kind"] == "cpu"
    if cpu and precision == "fp16":
        raise RequestError("recipe.dtype=float16 needs a GPU; on the CPU: float32, bfloat16")
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(mixed_precision=precision, cpu=cpu, kwargs_handlers=[unused])
    lock = cell_lock.held(folder / ".lock", report)
    with lock if accelerator.is_main_process else contextlib.nullcontext():
        accelerator.wait_for_everyone()
        card = weights.card(folder)
        if card is None:
            card = Trainer(cell, folder, accelerator, report).run()
        accelerator.wait_for_everyone()
    accelerator.end_training()  # a gloo thread at work while the interpreter ends aborts it
    return card
