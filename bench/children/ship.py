"""Ship a model that a recipe trained: `python -m bench.children.ship FOLDER WORDS`, in the words of
`bench train`. Weights and config go into FOLDER with a card: recipe, data, seed, cost, score."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from bench import stats, training
from bench.cell import BASELINE, Cell
from bench.children import arms
from bench.config import compose
from bench.errors import RequestError
from methods.base import Call, Method
from methods.vanilla import exact_attention

FILES = ("config.json", "model.safetensors")
WATCHED = 64
"""Rows whose attention is watched."""


@dataclass(frozen=True)
class Watched(Method):
    """Vanilla that notes in `told`, layer by layer, the mean entropy of its attention as a share of
    what attention to all valid keys alike has. Without biases."""

    told: list[tuple[int, float]] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        valid = call.sequence.valid
        if valid is None:
            valid = torch.ones_like(query[:, 0, :, 0], dtype=torch.bool)
        scores = (query @ key.transpose(-1, -2) * call.scale).float()
        weights = scores.masked_fill(~valid[:, None, None], -math.inf).softmax(-1)
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        share = entropy / valid.sum(1).log()[:, None, None]
        here = valid[:, None].expand_as(share)
        self.told.append((call.layer, share[here].mean().item()))
        return exact_attention(query, key, value, call)


def entropies(cell: Cell) -> list[float]:
    """Of each layer of the cell's model, over some of its rows one by one."""
    method = Watched()
    family, task = arms.load(cell, method), cell.build_task()
    for row in cell.rows().rows[:WATCHED]:
        ids, sequence = arms.collate([task.encode(row, family.tokenizer, cell.length)], "cpu")
        with torch.inference_mode():
            family.encode(ids, sequence)
    layers = sorted({layer for layer, _ in method.told})
    by_layer = [[share for at, share in method.told if at == layer] for layer in layers]
    return [round(sum(shares) / len(shares), 3) for shares in by_layer]


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
