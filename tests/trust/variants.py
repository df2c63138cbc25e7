"""A child that times many methods in one process, each with the checks of a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.execution import arms, worker
from bench.measure import integrity, latency
from bench.request import plugins
from bench.request.cell import Cell


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """For each of `request["methods"]` the check that it failed, or None."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell, costs=True)
    family = arms.load(cell, arms.vanilla())
    failures: dict[str, Any] = {}
    for name, conf in request["methods"].items():
        integrity._failures.clear()
        try:
            family.method = plugins.build(conf)
            latency.time_method(family, replace(cell, method=conf), report)
            failures[name] = None
        except integrity.IntegrityError as error:
            failures[name] = str(error)
    return {"failures": failures}
