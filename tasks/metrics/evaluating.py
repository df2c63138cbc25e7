"""The official metrics with the interface of Hugging Face's `evaluate` (`compute`, `add`,
`add_batch`), without a network.

    Official("scrolls/qmsum", "rouge_geo_mean").compute(predictions=…, references=…)

Importing `evaluate` takes seconds, so no other module does.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import evaluate
from datasets import Features, Value
from datasets import Sequence as SequenceFeature

from tasks import metrics


class Official(evaluate.Metric):  # type: ignore[misc]
    """`tasks.metrics.compute` for one task and metric; a row is a prediction and a list of
    references, all texts."""

    def __init__(self, task: str, name: str) -> None:
        """Raises ValueError for an unknown metric."""
        metrics.version(task, name)
        self.task, self.metric = task, name
        # Two objects with the same id would wait for each other's lock.
        super().__init__(keep_in_memory=True, experiment_id=uuid.uuid4().hex)

    def _info(self) -> Any:
        text = Value("string")
        return evaluate.MetricInfo(
            description=f"{self.metric} as {self.task} defines it",
            citation="",
            inputs_description="predictions, and for each a list of references",
            features=Features({"predictions": text, "references": SequenceFeature(text)}),
        )

    def _compute(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Any:
        return metrics.compute(self.task, self.metric, predictions, references)
