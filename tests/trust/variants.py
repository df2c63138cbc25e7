"""A child that tries many cheats in one process, each through what a cell goes through."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench import plugins
from bench.cell import Cell
from bench.children import arms, child, gate, latency, quality


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """What was said of each method of `request["methods"]`: None, or the reason why not."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    family = arms.load(cell, arms.vanilla())
    told: dict[str, Any] = {}
    for name, conf in request["methods"].items():
        gate._found.clear()
        try:
            if request["results"]:
                folder = Path(request["results"]) / name.replace(" ", "-")
                quality.predict(replace(cell, method=conf), folder, "quality", report)
            else:
                family.method = plugins.build(conf)
                latency.against_vanilla(family, replace(cell, method=conf), report)
            told[name] = None
        except gate.Cheat as cheat:
            told[name] = str(cheat)
    return {"told": told}
