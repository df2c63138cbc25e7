"""Train a small model on text pairs of a generator: `python -m bench.children.train_pairs RECIPE`.

A recipe (YAML) says where pairs come from, what the model starts as, the method in it, the stages
of the curriculum; words behind it change it (bench.children.recipes). Work is saved once a minute,
and the same command goes on from there after a kill. `python -m bench.children.check_pairs RECIPE`
adds scores to the card.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, distributed, multiprocessing
from transformers.modeling_outputs import BaseModelOutput

from bench import plugins
from bench.children import curriculum, recipes
from bench.children.curriculum import Lesson
from bench.children.pairs import Batch
from bench.models.base import Family, Spec
from methods.base import Sequence

WAYS = {
    "batches": "bench.children.pairs:batches",
    "measure": "bench.children.train_pairs:measure",
}
"""How rows become batches and a loss where a recipe doesn't say: as an encoder-decoder's do."""


def measure(family: Family, batch: Batch, guidance: float) -> tuple[Tensor, float]:
    """The loss, and the share of copied tokens that were right.

    Guidance adds what keeps a model off the long plateau before retrieval by content: how little
    the decoder's first layer attends to the question asked, and its last to the words to copy.
    """
    model: Any = family.model
    model.get_decoder().set_attn_implementation("eager")  # the one that gives attention weights
    output = model(
        encoder_outputs=BaseModelOutput(family.encode(batch.ids, Sequence(vip=batch.vip))),
        labels=batch.target,
        use_cache=False,
        output_attentions=guidance > 0,
    )
    row, token, asked, source = batch.copies.unbind(1)
    loss = output.loss
    if guidance:
        first, last = (output.cross_attentions[layer].mean(1) for layer in (0, -1))
        looked = torch.stack([first[row, token, asked], last[row, token, source]])
        loss = loss - 2 * guidance * (looked + 1e-6).log().mean()
    right = output.logits.argmax(-1)[row, token] == batch.target[row, token]
    return loss, right.float().mean().item()


def average(weights: Items[Tensor], figures: Items[float]) -> list[float]:
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


def train(recipe: Any, family: Family, checkpoint: Path, rank: int) -> curriculum.State:
    """Run the stages that are left. Processes differ in their rows only."""
    batches, measure = (plugins.load(recipe.get(name, WAYS[name])) for name in WAYS)
    pair, seed = plugins.load(recipe.pairs), 1000 * recipe.seed + rank

    def lessons(stage: Any, state: curriculum.State) -> Iterator[Lesson]:
        family.method = plugins.build({**recipe.method, **stage.get("method", {})})
        return (
            Lesson("right", batch.ids.shape, *measure(family, batch, stage.guidance))
            for batch in batches(stage, family.tokenizer, pair, seed, int(state["step"]))
        )

    return curriculum.train(
        recipe, family.model, checkpoint, lessons, average, memory=0.03, leads=rank == 0
    )


def work(rank: int, path: str, words: Items[str], meeting: str) -> None:
    """One of the recipe's processes, on one thread: on a busy machine processes wait for each
    other once a step, threads would at every operation. One's end is the end of all."""
    recipe = recipes.read(path, words)
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    distributed.init_process_group(
        "gloo", f"file://{meeting}", rank=rank, world_size=recipe.processes
    )
    out = Path(recipe.out)
    spec = Spec(out.name, Path(recipe.get("start", out)))
    method = plugins.build({**recipe.method})
    family = plugins.load(recipe.family).load(spec, method, "float32", "cpu")
    state = train(recipe, family, out / "checkpoint.safetensors", rank)
    if rank == 0:
        family.model.save_pretrained(out)
        family.tokenizer.save_pretrained(out)
        OmegaConf.save(recipes.card(recipe, path, spec.path, state["seconds"]), out / "card.yaml")
        (out / "checkpoint.safetensors").unlink()
    distributed.destroy_process_group()


def main(path: str, *words: str) -> None:
    recipe = recipes.read(path, words)
    out = Path(recipe.out)
    out.mkdir(parents=True, exist_ok=True)
    if "new" in recipe and not (out / "checkpoint.safetensors").exists():
        plugins.load(recipe.new.target)(recipe.new, recipe.seed, out)
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        # The keyboard's stop reaches all of them; the others end with the first.
        stop = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for rank in range(1, recipe.processes):
            given = (rank, path, words, f"{folder}/m")
            context.Process(target=work, args=given, daemon=True).start()
        signal.signal(signal.SIGINT, stop)
        work(0, path, words, f"{folder}/m")


if __name__ == "__main__":
    recipes.run(main, sys.argv[1:])
