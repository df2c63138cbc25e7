"""Score an embedded model with heads on embedded rows that it was not trained on: `python -m
bench.children.check_heads RECIPE`.

Every figure is added to the model's card.yaml as it comes. `check` in a recipe names the tasks with
what they replace in conf/task, the methods, the lengths, and how many rows.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from omegaconf import OmegaConf

from bench import plugins
from bench.children import recipes
from bench.children.check_pairs import Entropy
from bench.models import auto
from bench.models.base import Family, Spec
from methods.base import Sequence
from tasks.base import Data, Row, Task

FAMILY = "bench.models.bert:RobertaFamily"


def chance(task: Task, rows: list[Row]) -> float:
    """The score of guessing: of choices one over their number, else of the best constant answer."""
    if task.answers == "choice":
        return mean(1 / row.query.count("[ent]") for row in rows)
    references = [row.references for row in rows]
    answers = Counter(one for given in references for one in given).most_common(20)
    return max(mean(task.score_each([a] * len(rows), references)) / 100 for a, _ in answers)


def predict(family: Family, task: Task, rows: list[Row], length: int) -> list[str]:
    """The answers to rows, one at a time."""
    found = []
    for row in rows:
        coded = task.encode(row, family.tokenizer, length)
        sequence = Sequence(vip=torch.tensor([list(coded.vip)]))
        ids = torch.tensor([list(coded.ids)])
        with torch.inference_mode():
            found.append(task.spell(row, family.generate(ids, sequence, task.max_new_tokens)[0]))
    return found


def main(path: str, *words: str) -> None:
    recipe = recipes.read(path, words)
    check, out = recipe.check, Path(recipe.out)
    card: Any = OmegaConf.load(out / "card.yaml")
    torch.set_num_threads(1)
    for name, replaced in check.tasks.items():
        task: Task = plugins.build({**plugins.conf("task", name), **(replaced or {})})
        spec = Spec(out.name, out, marks=tuple(task.special_tokens))
        kind = plugins.load(auto.headed(FAMILY, task.answers))
        for length in check.lengths:
            rows = list(task.load(Data(), check.rows, length, check.seed).rows)
            figures: dict[str, Any] = {"n": len(rows), "chance": round(chance(task, rows), 3)}
            for method, conf in check.methods.items():
                family = kind.load(spec, plugins.build({**conf}), "float32", "cpu")
                given = predict(family, task, rows, length)
                scores = task.score_each(given, [row.references for row in rows])
                figures[method] = round(mean(scores) / 100, 3)
            if length == check.lengths[-1]:
                family.method = entropy = Entropy()
                predict(family, task, rows[:2], length)
                nats = [round(mean(heads), 2) for heads in entropy.means().values()]
                OmegaConf.update(card, f"attention_entropy_nats.{name}.{length}", nats)
            OmegaConf.update(card, f"scores.{name}.{length}", figures)
            OmegaConf.save(card, out / "card.yaml")
            print(name, length, figures, flush=True)


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
