"""Which cells of a sweep may answer together, each prompt read once for all of them
(bench.execution.shared_prefill). No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bench.request import plugins
from bench.request.cell import Cell
from bench.request.parameters import PART
from bench.request.schema import BASELINE

OWN = "methods."
"""The project's own methods: another's code could read a neighbour's cache in the same process."""


def key(cell: Cell) -> str | None:
    """Equal for cells that may answer together: answers of a decoder, one text at a time, by
    methods that read the prompt with the same attention and differ in their KV cache. None: the
    cell answers alone."""
    answers = cell.plan.quality and cell.model["weights"] != "random" and not cell.probe
    if not (answers and cell.decoder and cell.batch == 1 and cell.device["kind"] == "cpu"):
        return None
    if cell.recipe or not _shares(cell.method):
        return None
    content = asdict(cell) | {"method": cell.method.get(PART), "code_sha256": None}
    return json.dumps(content, sort_keys=True, default=dict)


def _shares(method: Mapping[str, Any]) -> bool:
    """Whether a method is vanilla or changes a KV cache, by code of this project alone."""
    written = plugins.conf("method", method["name"])
    if method["name"] == BASELINE:
        return method == plugins.undescribed(written)
    own = all(target.startswith(OWN) for target in plugins.targets(method))
    return PART in written and own and not written.get("facts", {}).get("needs")
