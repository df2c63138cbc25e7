"""Score an embedded model: `python -m tools.embedded.score RECIPE [NAME=VALUE]`.

Each block of `check` in a recipe is a request to `bench run` (`request`) that is measured with each
of some methods (`methods`) at each of some sizes (`rows`: size → number of rows; `by` is the name
in the request that takes the size). Scores are added to the model's card.yaml one by one, and the
entropy of attention for the sizes in `entropy_rows`, on the given numbers of rows.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import bench
from bench.errors import RunError
from bench.execution import cell_run, stages
from bench.request.cell import Cell
from bench.rows import derived_columns
from bench.status import Status
from tools.embedded import recipe as recipes
from tools.embedded.entropy import entropies


def figures(cell: Cell, results: Path | str) -> dict[str, Any]:
    """The quality of a cell as in its row: the metric with its interval, the number of rows, and
    the score of the best constant answer. Predictions are kept under `results`. Raises RunError
    when there are none."""
    run = cell_run.CellRun(cell, Path(results), stages.TRAINING_DEADLINE_S)
    outcome = stages.predicted(run, "quality")
    if outcome.status != Status.OK:
        raise RunError(outcome.detail or outcome.status)
    columns: Any = derived_columns.quality(cell, Path(results), [cell.prediction_key])
    interval = [end and round(end, 1) for end in (columns["ci_lo"], columns["ci_hi"])]
    return {
        cell.task["metric"]: round(columns["value"], 1),
        "interval": interval,
        "rows": columns["n_scored"],
        "chance": columns["chance"] and round(columns["chance"], 1),
    }


def main(path: str, *overrides: str) -> None:
    recipe = recipes.read(path, overrides)
    out = Path(recipe.out).resolve()
    card: Any = OmegaConf.load(out / "card.yaml")

    def add(key: str, value: Any) -> None:
        OmegaConf.update(card, key, value)
        OmegaConf.save(card, out / "card.yaml")
        print(key, value, flush=True)

    with tempfile.TemporaryDirectory() as results:
        for check in recipe.check:
            request = [f"model={out}", "threads=1", *check.request.split()]
            for name, method in check.methods.items():
                for size, rows in check.rows.items():
                    words = [*method.split(), f"{check.by}={size}", f"n={rows}"]
                    cell = bench.compose(*request, *words)
                    at = f"{cell.task['name']}.{name}.{size}"
                    add(f"scores.{at}", figures(cell, results))
                    if rows := check.get("entropy_rows", {}).get(size):
                        nats = entropies(cell, rows)[0].mean(0).tolist()
                        layers = [[round(head, 2) for head in layer] for layer in nats]
                        add(f"attention_entropy_nats.{at}", dict(enumerate(layers)))


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
