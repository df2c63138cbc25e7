"""Finds the tasks that an embedded model reads: `python -m tools.embedded.survey MODEL [TASK ...]`.

Vanilla is scored on 16 embedded rows of 1,024 tokens of each task, and the scores are written to
the field `tasks` of the model's card, which `bench ls tasks` reads. A task may come with arguments
of a request ("hotpotqa task.form=roberta", "lra_listops n=128"). Without tasks: all that have
embedded rows and take the model's kind of answers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

import bench
from bench.errors import RequestError, RunError
from bench.models import stored
from bench.request import answering, plugins
from bench.request.answering import models_for
from bench.request.cell import task_of
from tasks.base import DataError
from tools.embedded import score
from tools.embedded.recipe import run

DEFAULTS = {"method": "vanilla", "n": 16, "length": 1024, "threads": 1}
ABOUT = "# Vanilla on embedded rows, seed 0, greedy, float32: tools.embedded.survey."


def main(*arguments: str) -> None:
    if not arguments:
        raise RequestError("name a model: python -m tools.embedded.survey MODEL [TASK ...]")
    model, *tasks = arguments
    card = Path(plugins.conf("model", model)["path"]) / stored.CARD
    for task in tasks or answered_by(model):
        with tempfile.TemporaryDirectory() as results:
            try:
                given = f"task={task}".split()
                names = {word.partition("=")[0] for word in given}
                rest = [f"{name}={value}" for name, value in DEFAULTS.items() if name not in names]
                cell = bench.compose(f"model={model}", *given, *rest)
                found = {"tokens": cell.length, **score.figures(cell, results)}
            except (RequestError, RunError, DataError) as error:
                print(f"{task}: {error}", flush=True)
                continue
        add(card, cell.task["name"], found)
        print(task, found, flush=True)


def answered_by(model: str) -> list[str]:
    """The tasks that have embedded rows and take the model's kind of answers."""
    found = []
    for name, conf in plugins.usable("task").items():
        task: Any = task_of(conf)
        if getattr(task, "has_embedded", True) and model in models_for(task.answers):
            found.append(name)
    return found


def add(card: Path, task: str, found: dict[str, Any]) -> None:
    """Write a task's score as a line at the end of a card. Its other lines stay unchanged."""
    head = f"\n{answering.FIELD}:\n"
    before, found_head, after = card.read_text().rstrip().partition(head)
    about = "" if found_head else f"\n{ABOUT}"
    scores = {**(yaml.safe_load(after) or {}), task: found}
    lines = [
        f"  {name}: {yaml.safe_dump(score, default_flow_style=True, sort_keys=False, width=999)}"
        for name, score in scores.items()
    ]
    card.write_text(f"{before}{about}{head}{''.join(lines)}")


if __name__ == "__main__":
    run(main, sys.argv[1:])
