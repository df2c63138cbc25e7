"""A child that reports what its process has loaded and imported."""

import os
import sys
from typing import Any

from bench.execution import arms, worker
from bench.request.cell import Cell


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    method = arms.method_of(cell) if request["method"] else arms.vanilla()
    family = arms.load(cell, method)
    inputs = arms.inputs(cell, cell.build_task(), family.tokenizer)
    return {
        "shared": arms.parent is not None and family is arms.parent.family,
        "inputs": arms.parent is not None and inputs is arms.parent.inputs,
        "references": sum(len(row.references) for row in inputs.rows),
        "method": type(family.method).__name__,
        "imported": cell.method["target"].partition(":")[0] in sys.modules,
        "parent": os.getppid(),
    }
