"""Score an embedded causal model on lines: `python -m bench.children.check_lines RECIPE`.

Every figure is added to the model's card.yaml as it comes: the share of right numbers, and the
entropy of attention in nats when an answer's first token is chosen, the mean over a layer's heads.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import OmegaConf
from rich.progress import track
from torch import Tensor

from bench import plugins
from bench.children import recipes
from bench.children.causal_pairs import looked
from bench.models.base import Spec
from methods.base import Sequence
from tasks.base import Data

ROOM = 1 << 20  # tokens: no prompt is cut
HASHED_ROWS = 100  # of each stage
ENTROPY_ROWS = 10


def entropies(family: Any, ids: Tensor) -> list[float]:
    """For each layer, of the attention of the last token of ids [1, n], which chooses an answer's
    first token: the mean over heads, in nats."""
    last = torch.tensor([ids.shape[1] - 1])
    found: list[float] = []
    hidden = family.model.model.embed_tokens(ids)
    for layer in family.layers:
        found.append(float(torch.special.entr(looked(layer, hidden, last)).sum(-1).mean()))
        if len(found) < len(family.layers):
            hidden = layer(hidden, Sequence(causal=True))
    return found


@torch.no_grad()
def score(family: Any, task: Any, rows: int, limit: int) -> dict[str, Any]:
    """The figures of the first so many rows of the task's own split."""
    right: list[float] = []
    tokens: list[int] = []
    entropy: list[list[float]] = []
    for row in track(task.load(Data(), rows, ROOM, 0).rows, transient=True):
        coded = task.encode(row, family.tokenizer, ROOM)
        ids = torch.tensor([[*coded.ids]])
        given = family.generate(ids, Sequence(vip=torch.tensor([[*coded.vip]])), limit)
        right += task.score_each(given, [row.references])
        tokens.append(ids.shape[1])
        if len(entropy) < ENTROPY_ROWS:
            entropy.append(entropies(family, ids))
    layers = [round(mean(layer), 3) for layer in zip(*entropy, strict=True)]
    figures = {"accuracy": round(mean(right) / 100, 3), "n": rows, "tokens": round(mean(tokens))}
    return {**figures, "entropy_by_layer": layers}


def data_sha256(recipe: Any) -> str:
    """Of the first rows that each stage trains on."""
    pair, seed, digest = plugins.load(recipe.pairs), 1000 * recipe.seed, hashlib.sha256()
    for stage in recipe.stages:
        for index in range(HASHED_ROWS):
            digest.update(json.dumps(pair(index, seed, **stage.pair)).encode())
    return digest.hexdigest()


def main(path: str, *words: str) -> None:
    recipe = recipes.read(path, words)
    check, out = recipe.check, Path(recipe.out)
    card: Any = OmegaConf.load(out / "card.yaml")
    card.data, card.data_sha256 = recipe.pairs, data_sha256(recipe)
    for name, asked in check.methods.items():
        method = plugins.build({**asked.method})
        family = plugins.load(recipe.family).load(Spec(out.name, out), method, "float32", "cpu")
        for lines, rows in asked.lines.items():
            task = plugins.build({**plugins.conf("task", check.task), "lines": lines})
            figures = score(family, task, rows, check.max_new_tokens)
            OmegaConf.update(card, f"scores.{name}.{lines}", figures)
            OmegaConf.save(card, out / "card.yaml")
            print(name, lines, figures, flush=True)


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
