"""Score an embedded causal model on LongEval's lines: `python -m bench.models.embedded.check_lines
RECIPE`.

Every figure is added to the model's card.yaml as it comes: the share of right numbers, and the
entropy of attention in nats when an answer's tokens are chosen, the mean over a layer's heads.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import OmegaConf
from rich.progress import track
from torch import Tensor

from bench import plugins
from bench.children.causal_pairs import looked
from bench.models.base import Spec
from methods.base import Sequence
from tasks.base import Data

ROOM = 1 << 20  # tokens: no prompt is cut


def entropies(family: Any, ids: Tensor) -> list[float]:
    """For each layer, of the attention of the last token of ids [1, n], before which an answer
    stands: the mean over heads, in nats."""
    hidden = family.model.model.embed_tokens(ids)
    found: list[float] = []
    last = torch.tensor([ids.shape[1] - 1])
    for layer in family.layers:
        found.append(float(torch.special.entr(looked(layer, hidden, last)).sum(-1).mean()))
        hidden = layer(hidden, Sequence(causal=True))
    return found


@torch.no_grad()
def score(family: Any, task: Any, rows: int, limit: int) -> dict[str, Any]:
    right, tokens, entropy = [], [], []
    for row in track(task.load(Data(), rows, ROOM, 0).rows, transient=True):
        coded = task.encode(row, family.tokenizer, ROOM)
        ids = torch.tensor([[*coded.ids]])
        given = family.generate(ids, Sequence(vip=torch.tensor([[*coded.vip]])), limit)
        right += task.score_each(given, [row.references])
        tokens.append(ids.shape[1])
        entropy.append(entropies(family, ids))
    layers = [round(mean(layer), 3) for layer in zip(*entropy, strict=True)]
    figures = {"accuracy": round(mean(right), 3), "n": rows, "tokens": round(mean(tokens))}
    return {**figures, "entropy_by_layer": layers}


def main(path: str) -> None:
    recipe: Any = OmegaConf.load(path)
    check, out = recipe.check, Path(recipe.out)
    card: Any = OmegaConf.load(out / "card.yaml")
    for name, conf in check.methods.items():
        method = plugins.build({**conf})
        family = plugins.load(recipe.family).load(Spec(out.name, out), method, "float32", "cpu")
        for lines, rows in check.lines.items():
            task = plugins.build({**plugins.conf("task", check.task), "lines": lines})
            figures = score(family, task, rows, check.max_new_tokens)
            OmegaConf.update(card, f"scores.{name}.{lines}", figures)
            OmegaConf.save(card, out / "card.yaml")
            print(name, lines, figures, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
