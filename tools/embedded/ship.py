"""Ship a model that `bench train` made: `python -m tools.embedded.ship FOLDER WORDS`, with the
arguments of its training. Weights and config go into FOLDER with a card: recipe, data, seed, cost,
score."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

import bench
from bench.errors import RequestError
from bench.request import weights
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.request.weights import training_of
from tools.embedded import score
from tools.embedded.entropy import entropies
from tools.embedded.recipe import run

FILES = ("config.json", "model.safetensors")
ENTROPY_ROWS = 64


def even_shares(cell: Cell) -> list[float]:
    """The entropy of each layer's attention as a share of that of uniform attention: the mean over
    heads and over some of the cell's rows."""
    nats, tokens = entropies(cell, ENTROPY_ROWS)
    shares: Any = nats / tokens.log()[:, None, None]
    return [round(layer, 3) for layer in shares.mean((0, 2)).tolist()]


def main(folder: str, *words: str) -> None:
    out, cell = Path(folder), bench.compose(*words)
    if cell.recipe is None:
        raise RequestError("nothing to ship: give recipe=NAME and the other words of its training")
    trained = Path(cell.model["path"])
    training = weights.card(trained)
    if training is None:
        raise RequestError(f"not trained yet: bench train {' '.join(words)}")
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(trained / name, out / name)
    with tempfile.TemporaryDirectory() as results:
        test = score.figures(cell, results)
    card: dict[str, Any] = {
        "recipe": " ".join(words),
        "data": dict(training["data"]),
        "seed": training["seed"],
        "length": training["length"],
        "steps": training["best_step"],
        "wall_minutes": round(training["wall_ns"] / 60e9, 1),
        "training": training_of(cell.model),
        "start": training["protocol"],
        "dev_accuracy": round(100 * training["dev_score"], 1),
        "test": test,
    }
    if cell.method["name"] == BASELINE:
        card["attention_entropy"] = even_shares(cell)
    OmegaConf.save(card, out / "card.yaml")
    print(out, test)


if __name__ == "__main__":
    run(main, sys.argv[1:])
