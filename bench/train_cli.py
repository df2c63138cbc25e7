"""bench train: the weights of a request, trained or found."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError

HELP = """\
usage: bench train recipe=NAME [NAME=VALUE …]

Trains the weights that `bench run` with the same words would use, or finds them, and prints the
folder. Interrupted, it goes on with the same command.

  recipe=lra_small_listops   how to train             bench ls recipes
  method=vanilla             with which method in it
  task=… model=… length=…    set by the recipe; named here, they replace what it says
  protocol=from-scratch      from-scratch | finetune | swap (trained with vanilla)
  seed=0                     of the first weights, the order of rows, and dropout
  recipe.steps=…             any of the recipe's numbers: bench train recipe=NAME --show
  checkpoints=FOLDER         where trained weights are kept

  bench train recipe=lra_small_listops method=bigbird
  bench run   recipe=lra_small_listops method=bigbird       # trained if need be, then measured

Several GPUs: accelerate launch --num_processes 2 -m bench.children.train, then the same words.
"""


def train(arguments: Sequence[str]) -> int:
    """Exit code 1 when a training failed, 2 for a wrong request or a method that can't train."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    from bench import config, runner, show, training
    from bench.cell import Cell

    words = [word for word in arguments if word != "--show"]
    if stray := [word for word in words if word.startswith("-") or "=" not in word]:
        raise RequestError(f"can't read '{stray[0]}': a request is made of NAME=VALUE")
    request = config.compose(words)
    if request["recipe"] is None:
        raise RequestError("nothing to train: give recipe=NAME; bench ls recipes lists them")
    if "--show" in arguments:
        _show(request)
        return 0
    cell = Cell.of(request)
    place = Path(cell.model["path"])
    found = training.card(place)
    if found is None:
        with show.progress(f"{cell.title}: {request['recipe']['name']}") as progress:
            outcome = runner.train(cell, progress)
        if outcome.status in ("request", "unsupported"):
            raise RequestError(_first(outcome.detail))
        if outcome.status != "ok":
            print(f"bench: {outcome.status} in training: {outcome.detail}", file=sys.stderr)
            return 1
        found = outcome.result
    print(place)
    minutes = found["wall_ns"] / 60e9
    print(
        f"dev score {found['dev_score']:.4f} at step {found['best_step']:,} of "
        f"{found['steps']:,}; {minutes:.1f} minutes on {found['device']}",
        file=sys.stderr,
    )
    return 0


def _show(request: dict[str, Any]) -> None:
    for name, value in request["recipe"].items():
        print(f"recipe.{name:<16} {'null' if value is None else value}")


def _first(detail: str | None) -> str:
    return next(iter((detail or "").splitlines()), "no reason given")
