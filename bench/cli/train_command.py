"""bench train: the weights of a request, trained or found."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import RequestError, RunError
from bench.status import Status
from bench.terminal.options import as_written, check_words, command, request_words

if TYPE_CHECKING:
    from bench.request.cell import Cell


@command(as_written(Path(__file__).with_name("templates").joinpath("train_help.txt").read_text()))
@click.option("--show", is_flag=True, help="Print the recipe and train nothing.")
@request_words()
def train(words: Sequence[str], show: bool) -> int:
    """Exit code 1 when a training failed, 2 for a wrong request or a method that can't train."""
    from bench.request import compose, protocol
    from bench.request.cell import Cell

    request = compose.compose(check_words(words))
    if request["recipe"] is None:
        raise RequestError("nothing to train: give recipe=NAME; bench ls recipes lists them")
    if show:
        for name, value in request["recipe"].items():
            print(f"recipe.{name:<16} {'null' if value is None else value}")
        return 0
    cell = Cell.of(request)
    title = f"{cell.title}: {request['recipe']['name']}"
    if "RANK" in os.environ:  # set by accelerate's launcher and torchrun
        card = _train_in_this_process(cell, title)
        if os.environ["RANK"] != "0":
            return 0
    else:
        card = protocol.card(Path(cell.model["path"])) or _train_in_child(cell, title)
    print(cell.model["path"])
    minutes = card["wall_ns"] / 60e9
    print(
        f"dev score {card['dev_score']:.4f} at step {card['best_step']:,} of "
        f"{card['steps']:,}; {minutes:.1f} minutes on {card['device']}",
        file=sys.stderr,
    )
    return 0


def _train_in_child(cell: Cell, title: str) -> dict[str, Any]:
    """The card of the cell's checkpoint. Raises RequestError, RunError."""
    from bench.execution import stages
    from bench.terminal import run_progress

    with run_progress.progress(title) as progress:
        outcome = stages.train(cell, progress)
    if outcome.status == Status.UNSUPPORTED:
        raise RequestError((outcome.detail or "no reason given").partition("\n")[0])
    if outcome.status != Status.OK:
        raise RunError(f"{outcome.status} in training: {outcome.detail}")
    return outcome.result


def _train_in_this_process(cell: Cell, title: str) -> dict[str, Any]:
    """The card of the cell's checkpoint, trained together with the launcher's other processes.
    Raises RequestError, RunError."""
    from bench.execution import arms
    from bench.terminal import run_progress
    from bench.train.train import train
    from methods.parts.errors import Unsupported

    arms.prepare(cell)
    try:
        if os.environ["RANK"] != "0":
            return train(cell, lambda *_: None)
        with run_progress.progress(title) as progress:
            return train(cell, progress)
    except Unsupported as error:
        raise RequestError(str(error)) from error
