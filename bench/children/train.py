"""Train a small model on text pairs: `python -m bench.children.train RECIPE`.

A recipe (YAML) says where pairs come from, what the model starts as, the method in it, the stages
of the curriculum, and the rows that its card reports on. Work is saved once a minute; the same
command goes on from there after a kill.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, distributed, multiprocessing
from torch.nn.functional import cross_entropy

from bench.models.base import Family, Spec
from methods.base import Sequence

SAVE_SECONDS, LOG_SECONDS = 60, 10
EOS = 1
Batch = tuple[Tensor, Tensor, Tensor]


def load_object(target: str) -> Any:
    """What "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def batches(stage: Any, tokenizer: Any, pair: Any, seed: int, step: int) -> Iterator[Batch]:
    """Ids [B, n], VIP mask [B, n] and target [B, t] of a stage, from this step on.

    There is no padding: rows are cropped to the shortest, as nothing that matters stands at their
    ends, or go on with end-of-sequence tokens where the stage says `crop: false`. In `single` of
    the batches a row asks one question.
    """
    count = max(1, stage.batch_tokens // stage.pair.tokens)
    while True:
        options = dict(stage.pair)
        if step * stage.single % 1 + stage.single >= 1:
            options["questions"] = 1
        texts = [pair(step * count + row, seed, **options) for row in range(count)]
        query, document, answer = (
            tokenizer(list(part), add_special_tokens=False).input_ids
            for part in zip(*texts, strict=True)
        )
        inputs = [q + d for q, d in zip(query, document, strict=True)]
        n = (min if stage.get("crop", True) else max)(map(len, inputs))
        ids = torch.tensor([row[:n] + [EOS] * (n + 1 - len(row[:n])) for row in inputs])
        vip = torch.arange(n + 1) < torch.tensor([[len(row)] for row in query])
        t = max(map(len, answer))
        target = torch.tensor([row + [EOS] + [-100] * (t - len(row)) for row in answer])
        yield ids, vip, target
        step += 1


def save(path: Path, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """All that a run goes on from, in one file that is either the old or the new one."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    part = path.with_suffix(".part")
    tensors = {name: value.detach().clone() for name, value in tensors.items()}
    save_file(tensors, part, metadata={"state": json.dumps(state)})
    os.replace(part, path)


def restore(path: Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """Take up what `save` wrote."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state: dict[str, Any] = json.loads(file.metadata()["state"])
    for name, value in model.state_dict().items():
        value.copy_(tensors[f"model.{name}"])
    for name, parameter in model.named_parameters():
        moments = {m: tensors.get(f"{m}.{name}") for m in ("step", "exp_avg", "exp_avg_sq")}
        if moments["step"] is not None:
            optimizer.state[parameter] = moments
    return state


def average(weights: list[Tensor], *figures: float) -> list[float]:
    """Gradients and figures become their means over all processes."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor(figures)])
    distributed.all_reduce(flat)
    flat /= distributed.get_world_size()
    parts = flat[: -len(figures)].split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    means: list[float] = flat[-len(figures) :].tolist()
    return means


def train(recipe: Any, family: Family, checkpoint: Path, rank: int) -> dict[str, Any]:
    """Run the stages that are left: a stage ends when the running share of right tokens reaches
    `until`, or after `minutes`. Processes differ in their rows only."""
    model = family.model.train()
    for name, weight in model.named_parameters():
        weight.requires_grad_(recipe.frozen not in name)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    state = {"stage": 0, "step": 0, "in_stage": 0.0, "seconds": 0.0, "right": 0.0}
    if checkpoint.exists():
        state = restore(checkpoint, model, optimizer)
    pair, seed = load_object(recipe.pairs), 1000 * recipe.seed + rank
    logged = saved = state["seconds"]
    while state["stage"] < len(recipe.stages):
        stage = recipe.stages[state["stage"]]
        family.method = make_method({**recipe.method, **stage.get("method", {})})
        begun, over = time.monotonic(), False
        for ids, vip, target in batches(stage, family.tokenizer, pair, seed, state["step"]):
            done = min(1.0, state["in_stage"] / (60 * stage.minutes))
            rate = stage.lr + (stage.get("lr_end", stage.lr) - stage.lr) * done
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (state["step"] + 1) / recipe.warmup)
            logits = family.logits(ids, Sequence(vip=vip), target)
            loss = cross_entropy(logits.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            right = (logits.argmax(-1) == target)[target != -100].float().mean().item()
            now = time.monotonic()
            right, mean, seconds = average(weights, right, loss.item(), now - begun)
            begun = now
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            state["right"] += 0.03 * (right - state["right"])
            state["step"] += 1
            state["seconds"] += seconds
            state["in_stage"] += seconds
            over = state["right"] >= stage.until or state["in_stage"] >= 60 * stage.minutes
            if rank == 0 and (over or state["seconds"] - logged > LOG_SECONDS):
                logged = state["seconds"]
                print(
                    f"{logged:6.0f} s  stage {state['stage']}  step {state['step']}  "
                    f"{list(ids.shape)}  loss {mean:.3f}  right {state['right']:.4f}",
                    flush=True,
                )
            if over:
                state.update(stage=state["stage"] + 1, in_stage=0.0, right=0.0)
            if rank == 0 and (over or state["seconds"] - saved > SAVE_SECONDS):
                saved = state["seconds"]
                save(checkpoint, model, optimizer, state)
            if over:
                break
    return state


def make_method(options: dict[str, Any]) -> Any:
    return load_object(options.pop("target"))(**options)


def work(rank: int, path: str, meeting: str) -> None:
    """One of the recipe's processes, on one thread: on a busy machine processes wait for each
    other once a step, threads would at every operation. One's end is the end of all."""
    recipe: Any = OmegaConf.load(path)
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    distributed.init_process_group(
        "gloo", f"file://{meeting}", rank=rank, world_size=recipe.processes
    )
    out = Path(recipe.out)
    spec = Spec(out.name, Path(recipe.get("start", out)))
    family = load_object(recipe.family).load(spec, make_method({**recipe.method}), "float32", "cpu")
    state = train(recipe, family, out / "checkpoint.safetensors", rank)
    if rank == 0:
        family.model.save_pretrained(out)
        family.tokenizer.save_pretrained(out)
        card = {"seed": recipe.seed, "minutes": round(state["seconds"] / 60)}
        OmegaConf.save({"recipe": path, **recipe.card, **card}, out / "card.yaml")
    distributed.destroy_process_group()


def main(path: str) -> None:
    recipe: Any = OmegaConf.load(path)
    out = Path(recipe.out)
    out.mkdir(parents=True, exist_ok=True)
    if "new" in recipe and not (out / "checkpoint.safetensors").exists():
        load_object(recipe.new.target)(recipe.new, recipe.seed, out)
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        for rank in range(1, recipe.processes):
            context.Process(target=work, args=(rank, path, f"{folder}/m"), daemon=True).start()
        work(0, path, f"{folder}/m")


if __name__ == "__main__":
    main(sys.argv[1])
