"""The loop that trains embedded models: the stages of a recipe, by clock minutes or until enough
answers are right; saved once a minute, so that it goes on from there after a kill."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

SAVE_SECONDS, LOG_SECONDS = 60, 10

State = dict[str, Any]
"""`stage` and `step` that come next, seconds `in_stage` and in all, and by kind of rows the running
share that is `right`."""


class Lesson(NamedTuple):
    """What a batch gave: the kind of its rows, its shape, the loss, the share that was right."""

    kind: str
    shape: Items[int]
    loss: Tensor
    right: float


Lessons = Callable[[Any, State], Iterator[Lesson]]
"""Of a stage, from the state's step on."""
Agree = Callable[[Items[Tensor], Items[float]], Items[float]]
"""Makes gradients and figures the same in all processes."""


def train(
    recipe: Any,
    model: Any,
    checkpoint: Path,
    lessons: Lessons,
    agree: Agree = lambda weights, figures: figures,
    memory: float = 0.05,
    leads: bool = True,
) -> State:
    """Run the stages that are left: a stage ends when the running share of right answers, of the
    kind of rows that has the least, reaches `until`, or after `minutes`.

    memory  the weight of a new batch in that share
    leads   whether this process prints and saves
    """
    model.train()
    for name, weight in model.named_parameters():
        weight.requires_grad_(not re.search(recipe.frozen, name))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    state: State = {"stage": 0, "step": 0, "in_stage": 0.0, "seconds": 0.0, "right": {}}
    if checkpoint.exists():
        state = restore(checkpoint, model, optimizer)
    logged = saved = state["seconds"]
    while state["stage"] < len(recipe.stages):
        stage = recipe.stages[state["stage"]]
        given, begun = lessons(stage, state), time.monotonic()
        for kind, shape, loss, right in given:
            done = min(1.0, state["in_stage"] / (60 * stage.minutes))
            rate = stage.lr + (stage.get("lr_end", stage.lr) - stage.lr) * done
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (state["step"] + 1) / recipe.warmup)
            loss.backward()
            now = time.monotonic()
            right, mean, seconds = agree(weights, (right, loss.item(), now - begun))
            begun = now
            if not math.isfinite(mean):
                raise SystemExit(f"loss is {mean} at step {state['step']}")
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            shares = state["right"]
            shares[kind] = shares.get(kind, 0.0) + memory * (right - shares.get(kind, 0.0))
            state["step"] += 1
            state["seconds"] += seconds
            state["in_stage"] += seconds
            over = min(shares.values()) >= stage.until or state["in_stage"] >= 60 * stage.minutes
            if leads and (over or state["seconds"] - logged > LOG_SECONDS):
                logged = state["seconds"]
                told = "  ".join(f"{name} {share:.4f}" for name, share in sorted(shares.items()))
                print(
                    f"{logged:6.0f} s  stage {state['stage']}  step {state['step']}  "
                    f"{list(shape)}  loss {mean:.3f}  {told}",
                    flush=True,
                )
            if over:
                state.update(stage=state["stage"] + 1, in_stage=0.0, right={})
            if leads and (over or state["seconds"] - saved > SAVE_SECONDS):
                saved = state["seconds"]
                save(checkpoint, model, optimizer, state)
            if over:
                break
    return state


def save(path: Path, model: Any, optimizer: Any, state: State) -> None:
    """All that a run goes on from, in one file that is either the old or the new one."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    part = path.with_suffix(".part")
    tensors = {name: value.detach().clone() for name, value in tensors.items()}
    save_file(tensors, part, metadata={"state": json.dumps(state)})
    os.replace(part, path)


def restore(path: Path, model: Any, optimizer: Any) -> State:
    """Take up what `save` wrote."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state: State = json.loads(file.metadata()["state"])
    for name, value in model.state_dict().items():
        value.copy_(tensors[f"model.{name}"])
    for name, parameter in model.named_parameters():
        moments = {m: tensors.get(f"{m}.{name}") for m in ("step", "exp_avg", "exp_avg_sq")}
        if moments["step"] is not None:
            optimizer.state[parameter] = moments
    return state
