"""The two arms of a row's quality: with which weights each was measured, and their training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.request.schema import BASELINE, uses_adapted
from bench.status import QualityComparison, WeightsProtocol

NOT_RECORDED = "not recorded"
UNKNOWN_WEIGHTS = f"weights {NOT_RECORDED}"


def compared(own: str | None, other: str | None) -> QualityComparison | None:
    """How scores of weights with these hashes compare; None where one isn't known."""
    if own is None or other is None:
        return None
    same = own == other
    return QualityComparison.SAME_WEIGHTS if same else QualityComparison.TRAINED_EACH


def comparison(row: Mapping[str, Any]) -> QualityComparison | None:
    """How a row's score compares with vanilla's. Of an older row it follows from its cell; None:
    not recorded, or there is no score of vanilla."""
    stored = row.get("quality_comparison")
    if stored is not None or row.get("base_value") is None or not row.get("cell"):
        return stored and QualityComparison(stored)
    cell = json.loads(row["cell"])
    method, recipe = cell["method"]["name"], cell.get("recipe")
    if recipe:
        trained = cell.get("protocol") != WeightsProtocol.SWAP
    else:
        adapted = cell["model"].get("adapted") or {}
        uses = uses_adapted(cell.get("protocol"), recipe)
        trained = uses and adapted.get(method) != adapted.get(BASELINE)
    return QualityComparison.TRAINED_EACH if trained else QualityComparison.SAME_WEIGHTS


def comparison_text(row: Mapping[str, Any]) -> str:
    """The word shown with each difference of a row's score from vanilla's; empty where
    there is none."""
    if row.get("base_value") is None:
        return ""
    return comparison(row) or UNKNOWN_WEIGHTS


def training_text(training: str | None) -> str:
    """A column of training as text: 'from t5, 1.6 h, answers'."""
    record = json.loads(training or "{}")
    parts = (record.get("from") and f"from {record['from']}", _amount(record))
    return ", ".join(filter(None, (*parts, record.get("supervision")))) or NOT_RECORDED


def training_amount(training: str | None) -> str:
    """Length of the training in a column of training: '200 steps, 1.2 min'."""
    return _amount(json.loads(training or "{}")) or NOT_RECORDED


def _amount(record: Mapping[str, Any]) -> str:
    steps, hours = record.get("steps"), record.get("hours")
    times = None if hours is None else f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
    return ", ".join(filter(None, (None if steps is None else f"{steps:,} steps", times)))
