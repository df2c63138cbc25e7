"""Train an embedded model on generated rows: `python -m tools.embedded.train RECIPE [NAME=VALUE]`.

A recipe (tools/embedded/recipes/*.yaml) gives the rows, the first weights, the method, the
objective (tools.embedded.objectives) and the stages of a curriculum; tools.embedded.recipe lists
the values that may be changed. Progress is saved once a minute, and the same command resumes from
there. `python -m tools.embedded.score RECIPE` adds scores to the model's card.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, distributed
from torch.multiprocessing.spawn import start_processes

from bench.request import plugins
from bench.train import checkpoint
from tools.embedded import recipe as recipes
from tools.embedded.objectives.base import Objective

SAVE_SECONDS, LOG_SECONDS = 60, 10
CHECKPOINT = "training.pt"

State = dict[str, Any]
"""The next `stage` and `step`, seconds `in_stage` and in total, and by kind of rows the running
share of `right` answers."""


def main(path: str, *overrides: str) -> None:
    recipe = recipes.read(path, overrides)
    out = Path(recipe.out)
    out.mkdir(parents=True, exist_ok=True)
    if "new" in recipe and not (out / CHECKPOINT).exists():
        torch.manual_seed(recipe.seed)
        for part in plugins.load(recipe.new.target)(recipe.new):
            part.save_pretrained(out)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (path, overrides, f"{folder}/rendezvous")
        if recipe.get("processes", 1) == 1:
            work(0, *arguments)
        else:
            start_processes(work, arguments, nprocs=recipe.processes, daemon=True)


def work(rank: int, path: str, overrides: Sequence[str], rendezvous: str) -> None:
    """One of the recipe's processes, on one thread: on a busy machine processes wait for each
    other once a step, but threads would wait at every operation."""
    recipe = recipes.read(path, overrides)
    processes = recipe.get("processes", 1)
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    if processes > 1:
        distributed.init_process_group(
            "gloo", f"file://{rendezvous}", rank=rank, world_size=processes
        )
    out = Path(recipe.out)
    start = Path(recipe.get("start", out))
    objective: Objective = plugins.load(recipe.objective)(recipe, start, rank)
    state = run_stages(recipe, objective, out / CHECKPOINT, rank == 0)
    if rank == 0:
        objective.model.save_pretrained(out)
        objective.tokenizer.save_pretrained(out)
        card = recipes.card(recipe, path, start, state["seconds"])
        OmegaConf.save({**card, "data_sha256": data_sha256(recipe, objective)}, out / "card.yaml")
        (out / CHECKPOINT).unlink()
    if processes > 1:
        distributed.destroy_process_group()


def run_stages(recipe: Any, objective: Objective, path: Path, leads: bool = True) -> State:
    """Run the remaining stages. A stage ends when the running share of right answers, for the kind
    of rows with the smallest one, reaches `until`, or after `minutes` of processor time, which is
    independent of other work on the machine. The process that `leads` prints and saves."""
    model = objective.model.train()
    for name, weight in model.named_parameters():
        weight.requires_grad_(not re.search(recipe.frozen, name))
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    state: State = {"stage": 0, "step": 0, "in_stage": 0.0, "seconds": 0.0, "right": {}}
    if path.exists():
        state, _ = checkpoint.restore_state(path, model, optimizer, None)
    logged = saved = state["seconds"]
    while state["stage"] < len(recipe.stages):
        stage = recipe.stages[state["stage"]]
        objective.begin_stage(stage, resumed=state["in_stage"] > 0)
        began = time.process_time()
        for kind, batch in objective.batches(stage, int(state["step"])):
            loss, right = objective.loss(batch, stage.guidance)
            optimizer.param_groups[0]["lr"] = _rate(recipe, stage, state)
            loss.backward()
            now = time.process_time()
            right, mean, seconds = _averaged(weights, (right, loss.item(), now - began))
            began = now
            if not math.isfinite(mean):
                raise SystemExit(f"loss is {mean} at step {state['step']}")
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            optimizer.zero_grad()
            shares = state["right"]
            shares[kind] = shares.get(kind, 0.0)
            shares[kind] += objective.right_weight * (right - shares[kind])
            state["step"] += 1
            state["seconds"] += seconds
            state["in_stage"] += seconds
            over = min(shares.values()) >= stage.until or state["in_stage"] >= 60 * stage.minutes
            if leads and (over or state["seconds"] - logged > LOG_SECONDS):
                logged = state["seconds"]
                figures = "  ".join(f"{name} {shares[name]:.4f}" for name in sorted(shares))
                print(
                    f"{logged:6.0f} s  stage {state['stage']}  step {state['step']}  "
                    f"{list(batch.ids.shape)}  loss {mean:.3f}  {figures}",
                    flush=True,
                )
            if over:
                state.update(stage=state["stage"] + 1, in_stage=0.0, right={})
            if leads and (over or state["seconds"] - saved > SAVE_SECONDS):
                saved = state["seconds"]
                checkpoint.save_state(path, model, optimizer, None, state, {})
            if over:
                break
    return state


def _rate(recipe: Any, stage: Any, state: State) -> float:
    """The learning rate of the next step: warmed up once, then linear within a stage."""
    done = min(1.0, state["in_stage"] / (60 * stage.minutes))
    rate = stage.lr + (stage.get("lr_end", stage.lr) - stage.lr) * done
    return float(rate * min(1.0, (state["step"] + 1) / recipe.warmup))


def _averaged(weights: Sequence[Tensor], figures: Sequence[float]) -> Sequence[float]:
    """Gradients and figures become their means over all processes."""
    if not distributed.is_initialized():
        return figures
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor(figures)])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    parts = flat[: -len(figures)].split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    means: list[float] = flat[-len(figures) :].tolist()
    return means


def data_sha256(recipe: Any, objective: Objective) -> str:
    """sha256 of the first batch of each stage."""
    digest = hashlib.sha256()
    for stage in recipe.stages:
        _, batch = next(objective.batches(stage, 0))
        for tensor in batch:
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
