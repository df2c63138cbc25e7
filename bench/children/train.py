"""Train a small model on text pairs: `python -m bench.children.train RECIPE`.

A recipe (YAML) says where pairs come from, the model or the folder it goes on from, the method in
it, and the stages of the curriculum. Work is saved once a minute, and the same command goes on
from there after a kill.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, distributed, multiprocessing
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from bench.models.base import Family, Spec
from methods.base import Call, Method, PositionBias, Sequence
from methods.vanilla import exact_attention

SAVE_SECONDS, LOG_SECONDS = 60, 10
PIECES = [
    "th",
    "he",
    "in",
    "er",
    "an",
    "re",
    "on",
    "at",
    "en",
    "nd",
    "ti",
    "es",
    "or",
    "te",
    "ed",
    "is",
    "it",
    "al",
    "ar",
    "st",
    "nt",
    "ng",
    "ing",
    "ion",
    "ly",
    "'s",
]


@dataclass(frozen=True)
class HeadBias:
    """The bias of some heads of a layer, as a `methods.base.PositionBias`."""

    bias: PositionBias
    heads: slice

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        return self.bias(query_positions, key_positions)[:, self.heads]

    def diagonals(self, n: int) -> Tensor:
        return self.bias.diagonals(n)[self.heads]


@dataclass(frozen=True)
class Shifted(Method):
    """Vanilla for a model whose first heads look `back` tokens back and nowhere else: a shift of
    the values, to within n·exp(-sharpness), at a fraction of the cost. For training only."""

    back: int = 5

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        assert call.bias is not None
        back, n = self.back, query.shape[2]
        free = dataclasses.replace(call, bias=HeadBias(call.bias, slice(back, None)))
        outputs = [value[:, head].roll(head + 1, 1)[:, None] for head in range(back)]
        shifted = torch.cat(outputs, 1)
        rows, keys = torch.arange(back)[None], torch.arange(n)[None]
        scores = query[:, :back, :back] @ key[:, :back].transpose(-1, -2) * call.scale
        first = (scores + call.bias(rows, keys)[:, :back]).softmax(-1) @ value[:, :back]
        shifted = torch.cat([first, shifted[:, :, back:]], 2)
        rest = exact_attention(query[:, back:], key[:, back:], value[:, back:], free)
        return torch.cat([shifted, rest], 1)


def load_object(target: str) -> Any:
    """The object that "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def build_tokenizer(words: list[str], first: list[str], second: list[str]) -> Any:
    """Whole words as one token, names as two, any other text as pieces, letters and bytes.

    A segmentation's score is the sum of its pieces', so fewer and longer pieces win.
    """
    pieces: dict[str, float] = {"<pad>": 0.0, "</s>": 0.0, "<unk>": -100.0}
    marks = [word for word in words if not word[0].isalnum()]
    for score, group in (
        (-8.0, [*(f"▁{word}" for word in words), *marks]),
        (-8.0, [*(f"▁{syllable}" for syllable in first), *second]),
        (-14.0, [*PIECES, *(f"▁{piece}" for piece in PIECES)]),
        (-16.0, ["▁", "\n", *map(chr, range(33, 127))]),
        (-30.0, [f"<0x{byte:02X}>" for byte in range(256)]),
    ):
        for piece in group:
            pieces.setdefault(piece, score)
    core = Tokenizer(models.Unigram(list(pieces.items()), unk_id=2, byte_fallback=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(), decoders.Fuse()]
    )
    core.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=131072,
        clean_up_tokenization_spaces=False,
    )


def start(recipe: Any, folder: Path) -> None:
    """Write a new model with its tokenizer, its attention laid out for retrieval.

    Retrieval by content stays on a plateau for long until tokens know their neighbours and look
    for their like. So each encoder head begins in a window of distances, and queries begin equal
    to keys, values to outputs (mimetic initialisation, Trockman & Kolter, arXiv 2305.09828).
    """
    tokenizer = build_tokenizer(*load_object(recipe.vocabulary)())
    torch.manual_seed(recipe.seed)
    config = T5Config(
        vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
        **recipe.model,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    attention = model.encoder.block[0].layer[0].SelfAttention
    with torch.no_grad():
        table = attention.relative_attention_bias.weight.zero_()
        distance = torch.arange(-config.relative_attention_max_distance, 129)
        bucket = attention._relative_position_bucket(distance, True, table.shape[0], 128)
        for head, (low, high) in enumerate(recipe.heads):
            table[bucket[(distance < low) | (distance > high)], head] = -recipe.sharpness
            table[bucket[(distance >= low) & (distance <= high)], head] = 0.0
        readers = [block.layer[0].SelfAttention for block in model.encoder.block]
        copiers = [block.layer[1].EncDecAttention for block in model.decoder.block]
        for layer in readers + copiers:
            torch.nn.init.orthogonal_(layer.q.weight).mul_(recipe.likeness)
            layer.k.weight.copy_(layer.q.weight)
        for layer in copiers:
            torch.nn.init.orthogonal_(layer.v.weight)
            layer.o.weight.copy_(layer.v.weight.t())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def batches(stage: Any, tokenizer: Any, pair: Callable, seed: int, step: int) -> Iterator[tuple]:
    """Batches (ids [B, n], VIP mask [B, n], target [B, t]) of a stage from its step on.

    No padding: rows are cropped to the shortest, as nothing that matters stands at their ends, or
    go on with end-of-sequence tokens where the stage says so (`crop: false`).
    """
    rows = max(1, stage.batch_tokens // stage.pair.tokens)
    while True:
        options = dict(stage.pair)
        if (step * stage.get("single", 0.3)) % 1 + stage.get("single", 0.3) > 1 - 1e-9:
            options["questions"] = 1
        texts = [pair(step * rows + row, seed, **options) for row in range(rows)]
        plain = [
            tokenizer(list(part), add_special_tokens=False).input_ids
            for part in zip(*texts, strict=False)
        ]
        inputs = [query + document for query, document in zip(plain[0], plain[1], strict=False)]
        n = min(map(len, inputs))
        ids = torch.tensor([[*row[:n], 1] for row in inputs])
        vip = torch.arange(n + 1) < torch.tensor([[len(query)] for query in plain[0]])
        t = max(map(len, plain[2]))
        target = torch.tensor([row + [1] + [-100] * (t - len(row)) for row in plain[2]])
        yield ids, vip, target
        step += 1


def save(path: Path, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
    """Everything that a run goes on from, in one file that is either old or new."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    for name, parameter in named:
        for moment, value in optimizer.state[parameter].items():
            tensors[f"{moment}.{name}"] = value
    part = path.with_suffix(".part")
    tensors = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    save_file(tensors, part, metadata={"state": json.dumps(state)})
    os.replace(part, path)


def restore(path: Path, model: Any, optimizer: Any) -> dict[str, Any]:
    """Take up what `save` wrote."""
    with safe_open(path, "pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state: dict[str, Any] = json.loads(file.metadata()["state"])
    prefix = "model."
    model.load_state_dict(
        {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}
    )
    for name, parameter in model.named_parameters():
        for moment in ("step", "exp_avg", "exp_avg_sq"):
            if f"{moment}.{name}" in tensors:
                optimizer.state[parameter][moment] = tensors[f"{moment}.{name}"]
    return state


def average(weights: list[Tensor], *figures: float) -> list[float]:
    """Gradients and figures become their means over all processes."""
    flat = torch.cat([*(w.grad.flatten() for w in weights), torch.tensor(figures)])
    if distributed.is_initialized():
        distributed.all_reduce(flat)
        flat /= distributed.get_world_size()
    parts = flat[: -len(figures)].split([weight.numel() for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.grad.copy_(part.view_as(weight))
    return flat[-len(figures) :].tolist()


def train(recipe: Any, family: Family, checkpoint: Path, rank: int) -> None:
    """Run the stages that are left; processes differ in their rows only."""
    model = family.model
    model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.requires_grad_(False)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    state = {"stage": 0, "step": 0, "in_stage": 0.0, "seconds": 0.0, "accuracy": 0.0}
    if checkpoint.exists():
        state = restore(checkpoint, model, optimizer)
    pair = load_object(recipe.pairs)
    model.train()
    while state["stage"] < len(recipe.stages):
        stage = recipe.stages[state["stage"]]
        saved = logged = state["seconds"]
        begun = time.monotonic()
        for ids, vip, target in batches(
            stage, family.tokenizer, pair, 1000 * recipe.seed + rank, state["step"]
        ):
            done = min(1.0, state["in_stage"] / (60 * stage.minutes))
            rate = stage.lr + (stage.get("lr_end", stage.lr) - stage.lr) * done
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (state["step"] + 1) / recipe.warmup)
            logits = family.logits(ids, Sequence(vip=vip), target)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            right = (logits.argmax(-1) == target)[target != -100].float().mean().item()
            now = time.monotonic()
            right, mean, seconds = average(weights, right, loss.item(), now - begun)
            begun = now
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            state["accuracy"] += 0.03 * (right - state["accuracy"])
            state["step"] += 1
            state["seconds"] += seconds
            state["in_stage"] += seconds
            over = state["accuracy"] >= stage.until or state["in_stage"] >= 60 * stage.minutes
            if rank == 0 and (over or state["seconds"] - logged > LOG_SECONDS):
                print(f"{state['seconds']:6.0f} s  stage {state['stage']}  step {state['step']:6d}"
                      f"  {list(ids.shape)}  loss {mean:.3f}"
                      f"  accuracy {state['accuracy']:.4f}", flush=True)  # fmt: skip
                logged = state["seconds"]
            if over:
                state.update(stage=state["stage"] + 1, in_stage=0.0, accuracy=0.0)
            if rank == 0 and (over or state["seconds"] - saved > SAVE_SECONDS):
                save(checkpoint, model, optimizer, state)
                saved = state["seconds"]
            if over:
                break


def work(rank: int, path: str, meeting: str) -> None:
    """One of the recipe's processes, each on one thread: on a busy machine they wait for each
    other once a step, threads would at every operation. Any one's end is the end of all."""
    recipe: Any = OmegaConf.load(path)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{meeting}", rank=rank, world_size=recipe.processes
    )
    torch.manual_seed(recipe.seed)
    out = Path(recipe.out)
    options = dict(recipe.method)
    method = load_object(options.pop("target"))(**options)
    spec = Spec(out.name, Path(recipe.get("start", out)))
    family = load_object(recipe.family).load(spec, method, "float32", "cpu")
    train(recipe, family, out / "checkpoint.safetensors", rank)
    if rank == 0:
        family.model.save_pretrained(out)
        family.tokenizer.save_pretrained(out)
    distributed.destroy_process_group()


def main(path: str) -> None:
    recipe: Any = OmegaConf.load(path)
    out = Path(recipe.out)
    out.mkdir(parents=True, exist_ok=True)
    if "start" not in recipe and not (out / "config.json").exists():
        start(recipe, out)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"{folder}/meeting"
        context = multiprocessing.get_context("spawn")
        for rank in range(1, recipe.processes):
            context.Process(target=work, args=(rank, path, meeting), daemon=True).start()
        work(0, path, meeting)


if __name__ == "__main__":
    main(sys.argv[1])
