"""Training objectives of embedded models: from rows to batches, and from batches to a loss."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from bench.models.base import Family, Spec
from bench.request import plugins
from methods.base import Method


class Objective:
    """A model that a recipe trains, and its objective. Subclasses provide `batches` and `loss`.

    model         the Hugging Face module
    tokenizer     its tokenizer
    method        the method that is in the model in the present stage
    right_weight  weight of a new batch in the running share of right answers
    """

    right_weight = 0.03
    model: Any
    tokenizer: Any
    method: Method

    def __init__(self, recipe: Any, start: Path, rank: int = 0) -> None:
        """Load the model in the folder `start`. Processes differ in `rank` and so in their rows."""
        self.recipe = recipe
        self.method = plugins.build({**recipe.method})

    def begin_stage(self, stage: Any, resumed: bool) -> None:
        """Put the stage's method into the model. A stage that is resumed has begun before."""
        self.method = plugins.build({**self.recipe.method, **stage.get("method", {})})

    def batches(self, stage: Any, step: int) -> Iterator[tuple[str, Any]]:
        """The stage's batches from this step on, each with the name of its kind of rows: a stage
        ends when the kind with the smallest share of right answers is good enough."""
        raise NotImplementedError

    def loss(self, batch: Any, guidance: float) -> tuple[Tensor, float]:
        """The loss, a scalar, and the share of right answers. `guidance` is the weight of the part
        of the loss that guides attention: without it, models stay on a plateau for a long time
        before they retrieve by content."""
        raise NotImplementedError


class Generated(Objective):
    """An objective of a model that generates text, on the rows of one generator
    (`recipe.pairs`)."""

    family: Family

    def __init__(self, recipe: Any, start: Path, rank: int = 0) -> None:
        super().__init__(recipe, start, rank)
        spec = Spec(start.name, start)
        self.family = plugins.load(recipe.family).load(spec, self.method, "float32", "cpu")
        self.model, self.tokenizer = self.family.model, self.family.tokenizer
        self.make, self.seed = plugins.load(recipe.pairs), 1000 * recipe.seed + rank

    def begin_stage(self, stage: Any, resumed: bool) -> None:
        super().begin_stage(stage, resumed)
        self.family.method = self.method

    def batches(self, stage: Any, step: int) -> Iterator[tuple[str, Any]]:
        """As in `Objective`; in the share `stage.single` of the batches, rows ask one question."""
        while True:
            options = dict(stage.pair)
            if step * stage.single % 1 + stage.single >= 1:
                options["questions"] = 1
            count = self.rows_in_a_batch(stage)
            rows = [self.make(step * count + row, self.seed, **options) for row in range(count)]
            yield "right", self.encode(rows)
            step += 1

    def rows_in_a_batch(self, stage: Any) -> int:
        raise NotImplementedError

    def encode(self, rows: list[Any]) -> NamedTuple:
        """A batch of rows of the generator."""
        raise NotImplementedError
