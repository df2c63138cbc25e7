"""Score an embedded model on held-out stories: `python -m bench.models.embedded.check RECIPE`.

Every figure is added to the model's card.yaml as it comes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import OmegaConf

from bench import plugins
from bench.models.base import Family, Spec
from methods.base import Sequence

EOS = 1


def answer(family: Family, query: str, document: str, length: int, max_new_tokens: int) -> str:
    """The greedy answer to one row: question first, truncated right, end-of-sequence last."""
    parts = family.tokenizer([query, document], add_special_tokens=False).input_ids
    ids = torch.tensor([[*(parts[0] + parts[1])[: length - 1], EOS]])
    vip = torch.arange(ids.shape[1])[None] < len(parts[0])
    return family.generate(ids, Sequence(vip=vip), max_new_tokens)[0]


def main(path: str) -> None:
    recipe: Any = OmegaConf.load(path)
    check, out = recipe.check, Path(recipe.out)
    rows, score = plugins.load(check.rows), plugins.load(check.score)
    card: Any = OmegaConf.load(out / "card.yaml")
    for name, conf in check.methods.items():
        method = plugins.build({**conf})
        family = plugins.load(recipe.family).load(Spec(out.name, out), method, "float32", "cpu")
        for length, stories in check.stories.items():
            scores = []
            for index in range(check.first, check.first + stories):
                for query, document, right in rows(index, length):
                    given = answer(family, query, document, length, check.max_new_tokens)
                    scores.append(score(given, right))
            figures = {"f1": round(mean(scores), 3), "questions": len(scores)}
            OmegaConf.update(card, f"scores.{name}.{length}", figures)
            OmegaConf.save(card, out / "card.yaml")
            print(name, length, figures, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
