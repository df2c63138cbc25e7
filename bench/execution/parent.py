"""The processes from which a cell's processes are forked: one loads the model, and a fork of it
encodes the inputs.

They never import a method, and compute with one thread, since libgomp's threads don't survive a
fork. Their malloc returns freed memory from the start, as measurements of peak memory require.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.execution import arms, fork_server, loaded, worker
from bench.request.cell import Cell


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """Load the request's cell, report that it is loaded, and fork children until the supervisor
    ends this process. With `encodes`, encode inputs too: those of all texts, or of timed ones."""
    cell = Cell.from_json(request["cell"])
    worker.return_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(cell.seed)
    family = arms.load(cell, arms.vanilla())
    inputs = None
    if request["encodes"]:
        count = None if request["encodes"] == "all" else arms.timed_texts(cell)
        inputs = arms.inputs(cell, cell.build_task(), family.tokenizer, count)
    loaded.parent = loaded.Loaded(cell, family, inputs)
    report.send("loaded")
    fork_server.serve(report.link)
    return {}
