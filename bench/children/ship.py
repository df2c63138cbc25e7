"""Ship a model that a recipe trained: `python -m bench.children.ship FOLDER WORDS`, in the words of
`bench train`. Weights and config go into FOLDER with a card: recipe, data, seed, cost, score."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import OmegaConf

from bench import stats, training
from bench.cell import BASELINE, Cell
from bench.children import arms
from bench.children.check_pairs import Entropy
from bench.config import compose
from bench.errors import RequestError

FILES = ("config.json", "model.safetensors")
WATCHED = 64
"""Rows whose attention is watched."""


def entropies(cell: Cell) -> list[float]:
    """Of the attention of each layer of the cell's model, as a share of what attention to all keys
    alike has: the mean over heads, and over some of its rows one by one."""
    family, task = arms.load(cell, arms.vanilla()), cell.build_task()
    shares: list[list[float]] = []
    for row in cell.rows().rows[:WATCHED]:
        family.method = entropy = Entropy()
        ids, sequence = arms.collate([task.encode(row, family.tokenizer, cell.length)], "cpu")
        with torch.inference_mode():
            family.encode(ids, sequence)
        even = math.log(ids.shape[1])
        shares.append([mean(heads) / even for heads in entropy.means().values()])
    return [round(mean(layer), 3) for layer in zip(*shares, strict=True)]


def score(cell: Cell) -> dict[str, Any]:
    """The task's metric over the cell's rows with its interval, and the best constant answer's."""
    task, family = cell.build_task(), arms.load(cell, arms.method_of(cell))
    rows = cell.rows().rows
    answers: list[str] = []
    for group in arms.batches(rows, cell.batch):
        coded = [task.encode(row, family.tokenizer, cell.length) for row in group]
        ids, sequence = arms.collate(coded, "cpu")
        answers += family.generate(ids, sequence, task.max_new_tokens)
    references = [row.references for row in rows]
    told = [task.score(answers, references)["value"]]
    told += [
        task.score([str(label)] * len(rows), references)["value"]
        for label in range(task.labels or 0)
    ]
    interval = stats.bootstrap_mean(task.score_each(answers, references), seed=cell.seed)
    return {
        task.metric: round(told[0], 1),
        "interval": [end and round(end, 1) for end in (interval.lo, interval.hi)],
        "rows": len(rows),
        "chance": round(max(told[1:], default=0.0), 1),
    }


def main(out: Path, words: list[str]) -> None:
    cell = Cell.of(compose(words))
    if cell.recipe is None:
        raise RequestError("nothing to ship: give recipe=NAME and the other words of its training")
    place = Path(cell.model["path"])
    card = training.card(place)
    if card is None:
        raise RequestError(f"not trained yet: bench train {' '.join(words)}")
    out.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(place / name, out / name)
    told: dict[str, Any] = {
        "recipe": " ".join(words),
        "data": dict(card["data"]),
        "seed": card["seed"],
        "length": card["length"],
        "steps": card["best_step"],
        "wall_minutes": round(card["wall_ns"] / 60e9, 1),
        "start": card["protocol"],
        "dev_accuracy": round(100 * card["dev_score"], 1),
        "test": score(cell),
    }
    if cell.method["name"] == BASELINE:
        told["attention_entropy"] = entropies(cell)
    OmegaConf.save(told, out / "card.yaml")
    print(out, told["test"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
