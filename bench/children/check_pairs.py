"""Score an embedded model on held-out texts: `python -m bench.children.check_pairs RECIPE`.

Every figure is added to the model's card.yaml as it comes. In a recipe `check` names the rows, the
score (0…1) and the key it goes under, the methods, and how many texts of each length; with
`entropy_at`, the attention entropy of vanilla is noted at that length.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from bench import plugins
from bench.children import recipes
from bench.models.base import Family, Spec
from bench.models.hf import positions
from methods.base import Call, Method, Sequence

EOS = 1


@dataclass(frozen=True)
class Entropy(Method):
    """Vanilla that notes the entropy of each head's attention in nats, layer by layer: the mean
    over queries of one text without padding."""

    nats: dict[int, list[Tensor]] = field(default_factory=dict)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        scores = query @ key.transpose(-1, -2) * call.scale
        if call.bias:
            at = positions(call.sequence, query.transpose(1, 2))
            scores = scores + call.bias(at, at)
        shares = scores.softmax(-1)
        entropy = -(shares * shares.clamp(min=1e-30).log()).sum(-1)
        self.nats.setdefault(call.layer, []).append(entropy.mean((0, 2)))
        return shares @ value

    def means(self) -> dict[int, list[float]]:
        """Layer → the mean of each head."""
        return {
            layer: [round(head, 2) for head in torch.stack(seen).mean(0).tolist()]
            for layer, seen in self.nats.items()
        }


def answer(family: Family, query: str, document: str, length: int, max_new_tokens: int) -> str:
    """The greedy answer to one row: question first, truncated right, end-of-sequence last."""
    parts = family.tokenizer([query, document], add_special_tokens=False).input_ids
    ids = torch.tensor([[*(parts[0] + parts[1])[: length - 1], EOS]])
    vip = torch.arange(ids.shape[1])[None] < len(parts[0])
    return family.generate(ids, Sequence(vip=vip), max_new_tokens)[0]


def main(path: str, *words: str) -> None:
    recipe = recipes.read(path, words)
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
            figures = {check.get("figure", "f1"): round(mean(scores), 3), "questions": len(scores)}
            OmegaConf.update(card, f"scores.{name}.{length}", figures)
            OmegaConf.save(card, out / "card.yaml")
            print(name, length, figures, flush=True)
    if length := check.get("entropy_at"):
        family.method = entropy = Entropy()
        for index in range(check.first, check.first + 4):
            query, document, _ = rows(index, length)[0]
            answer(family, query, document, length, 1)
        OmegaConf.update(card, f"attention_entropy_nats.{length}", entropy.means())
        OmegaConf.save(card, out / "card.yaml")


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
