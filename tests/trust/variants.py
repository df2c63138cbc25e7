"""A child that times many methods in one process, each with the checks of a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.measure.replaced_functions import Functions

from bench.execution import arms, worker
from bench.measure import failed_check, latency, other_work
from bench.measure.timed_call import ProcessGuard
from bench.request import plugins
from bench.request.cell import Cell
from tests.cheaters import native_patch


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """For each of `request["methods"]` the check that it failed, or None."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell, costs=True)
    other_work.adopt_orphans()
    family = arms.load(cell, arms.vanilla())
    failures: dict[str, Any] = {}
    functions = Functions()
    for name, conf in request["methods"].items():
        failed_check._failures.clear()
        try:
            family.method = plugins.build(conf)
            guard = ProcessGuard()
            latency.time_method(family, replace(cell, method=conf), report, guard)
            failures[name] = None
        except failed_check.IntegrityError as error:
            failures[name] = str(error)
        functions.put_back()
        native_patch.restore()
    return {"failures": failures}
