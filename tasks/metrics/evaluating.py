"""The official metrics as those of Hugging Face's `evaluate`: its `compute`, `add` and `add_batch`,
and no network.

    Official("scrolls/qmsum", "rouge_geo_mean").compute(predictions=…, references=…)

Importing `evaluate` takes seconds, so nothing else here does.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import evaluate
from datasets import Features, Value
from datasets import Sequence as Several

from tasks import metrics


class Official(evaluate.Metric):  # type: ignore[misc]
    """`metrics.compute` of one task and metric, on texts: one prediction and a list of references
    a row."""

    def __init__(self, task: str, name: str) -> None:
        """Raises ValueError for an unknown metric."""
        metrics.version(task, name)
        self.task, self.metric = task, name
        # Two with the same id would wait for each other's lock.
        super().__init__(keep_in_memory=True, experiment_id=uuid.uuid4().hex)

    def _info(self) -> Any:
        text = Value("string")
        return evaluate.MetricInfo(
            description=f"{self.metric} as {self.task} defines it",
            citation="",
            inputs_description="texts, and a list of right texts for each",
            features=Features({"predictions": text, "references": Several(text)}),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        return metrics.compute(self.task, self.metric, predictions, references)
