"""Trains the weights of a cell, in a child of `bench train` or `bench run`, or in one of the
processes that accelerate's launcher or torchrun starts.

Everything in a step is a function of its number: its rows and its random numbers are drawn from
the seed and the step, so a training that was stopped continues along the same loss curve.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from bench.errors import RequestError, RunError
from bench.execution import arms, cell_run, worker
from bench.execution.supervisor import Progress
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from bench.request import plugins, weights
from bench.request.cell import Cell, data_of
from bench.request.weights import find_checkpoint
from bench.train import checkpoint
from bench.train.batches import Batch, BatchLoader, characters
from bench.units import span
from methods.base import Layer, SequenceInfo

LOG = "log.jsonl"
LOSS_SMOOTHING = 0.05
"""Weight of the latest loss in the displayed average."""


class Diverged(RunError):
    """The loss is NaN or infinite."""


def measure(request: dict[str, Any], report: Progress) -> dict[str, Any]:
    cell = Cell.from_json(request["cell"])
    worker.keep_freed_memory()
    arms.prepare(cell)
    return train(cell, report)


def train(cell: Cell, report: Progress) -> dict[str, Any]:
    """The card of the cell's checkpoint, which is trained unless it exists. Raises Unsupported with
    the method's reason, RequestError, Diverged or DiskFull."""
    assert cell.recipe is not None
    folder = Path(cell.model["path"])
    folder.mkdir(parents=True, exist_ok=True)
    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[cell.recipe["dtype"]]
    cpu = cell.device["kind"] == "cpu"
    if cpu and precision == "fp16":
        raise RequestError("recipe.dtype=float16 needs a GPU; on the CPU: float32, bfloat16")
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(mixed_precision=precision, cpu=cpu, kwargs_handlers=[unused])
    lock = cell_run.lock_held(folder / ".lock", report)
    with lock if accelerator.is_main_process else contextlib.nullcontext():
        accelerator.wait_for_everyone()
        card = weights.card(folder)
        if card is None:
            card = Trainer(cell, folder, accelerator, report).run()
        accelerator.wait_for_everyone()
    accelerator.end_training()  # a running gloo thread would abort the interpreter at its end
    return card


class FamilyModule(nn.Module):
    """A family as a module, for torch's data parallelism."""

    def __init__(self, family: Family, smoothing: float) -> None:
        super().__init__()
        self.model = family.model
        self.family = family
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.family.learned(*batch, self.smoothing if self.training else 0.0)


class Trainer:
    def __init__(self, cell: Cell, folder: Path, accelerator: Accelerator, report: Progress):
        assert cell.recipe is not None
        self.cell, self.folder, self.accelerator, self.report = cell, folder, accelerator, report
        self.recipe = cell.recipe
        self.task = cell.build_task()
        self.family = load_for_training(cell, cell.training_method)
        arms.check_fit(cell, self.task, self.family)
        self.parts = accelerator.num_processes * self.recipe["accumulate"]
        if self.recipe["batch"] % self.parts:
            raise RequestError(
                f"recipe.batch={self.recipe['batch']} can't be divided among "
                f"{accelerator.num_processes} processes × {self.recipe['accumulate']} parts"
            )
        report("rows")
        self.train_rows = self._loader("train", self.recipe["rows"], self.recipe["batch"])
        self.dev_rows = self._loader("validation", self.recipe["dev_rows"], 1)
        steps_per_epoch = len(self.train_rows.rows) // self.recipe["batch"]
        self.total = self.recipe["steps"] or max(1, round(self.recipe["epochs"] * steps_per_epoch))
        self.optimizer = adamw(self.family.model, self.recipe)
        module = FamilyModule(self.family, self.recipe["label_smoothing"])
        self.model, self.prepared_optimizer = accelerator.prepare(module, self.optimizer)
        # Equal for equal runs, resumed or not; values that differ between runs are in `spent`.
        self.state: dict[str, Any] = {"step": 0, "best": None, "best_step": 0, "worse": 0}
        self.spent = {"wall_ns": 0, "tokens": 0, "log_bytes": 0}
        self.save_due = False

    def _loader(self, split: str, n: int | None, batch: int) -> BatchLoader:
        source = replace(data_of(vars(self.cell)), split=split)
        n = weights.rows_of(self.task, source, n)
        rows = self.task.load(source, n, self.cell.length, self.cell.seed).rows
        target_length = self.recipe["target_length"] or self.task.max_new_tokens
        return BatchLoader(
            self.task, self.family.tokenizer, rows, self.cell.length, target_length, batch,
            self.cell.seed, str(self.accelerator.device),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        state_file = self.folder / checkpoint.STATE
        if state_file.exists():
            self.state, self.spent = checkpoint.restore_state(
                state_file, self.family.model, self.optimizer, self.accelerator.scaler
            )
        if self.accelerator.is_main_process and (self.folder / LOG).exists():
            # Steps after the restored one are run and logged again.
            os.truncate(self.folder / LOG, self.spent["log_bytes"])
        self.accelerator.wait_for_everyone()
        total, patience = self.total, self.recipe["patience"]
        patience = math.inf if patience is None else patience
        shown: float | None = None
        began, first = time.monotonic(), self.state["step"]
        while self.state["step"] < total and self.state["worse"] < patience:
            step_began = time.monotonic_ns()
            loss, accuracy, tokens = self._step(self.state["step"])
            self.state["step"] += 1
            step = self.state["step"]
            shown = loss if shown is None else shown + LOSS_SMOOTHING * (loss - shown)
            self.spent["tokens"] += tokens
            self._log({"step": step, "loss": loss, "right": accuracy})
            evaluate = step % self.recipe["eval_every"] == 0 or step == total
            if evaluate:
                self._evaluate()
            self.spent["wall_ns"] += time.monotonic_ns() - step_began
            self.save_due |= evaluate or step % self.recipe["save_every"] == 0
            left = span((time.monotonic() - began) / (step - first) * (total - step))
            tokens_per_s = self.spent["tokens"] / max(self.spent["wall_ns"], 1) * 1e9
            self.report(
                "training", step, total,
                f"loss {shown:.3f} · {tokens_per_s:,.0f} tokens/s · {left} left",
            )  # fmt: skip
        return self._finish()

    def _step(self, step: int) -> tuple[float, float, int]:
        """One update of the weights; returns the loss, the accuracy and the number of tokens."""
        accelerator, accumulate = self.accelerator, self.recipe["accumulate"]
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, step, self.total)
        self.prepared_optimizer.zero_grad()
        sums = torch.zeros(3, device=accelerator.device, dtype=torch.float64)
        for i in range(accumulate):
            part = accelerator.process_index * accumulate + i
            torch.manual_seed((self.cell.seed << 40) + (step << 12) + part)
            batch = self.train_rows.at_step(step, part, self.parts)
            last = i == accumulate - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.model):
                part_loss, part_accuracy = self.model(batch)
                accelerator.backward(part_loss / accumulate)
            part_tokens = part_loss.new_tensor(batch.ids.numel())
            part_sums = torch.stack([part_loss.detach().float(), part_accuracy, part_tokens])
            sums += part_sums.to(sums)
        loss, accuracy, tokens = accelerator.reduce(sums, "sum").tolist()
        loss, accuracy = loss / self.parts, accuracy / self.parts
        if not math.isfinite(loss):
            path = self.folder / checkpoint.STATE
            kept = (
                f"the last good checkpoint is kept: {path}" if path.exists() else "none was saved"
            )
            advice = "a smaller recipe.lr or recipe.clip may help"
            raise Diverged(f"the loss is {loss} at step {step + 1}; {kept}; {advice}")
        if self.save_due:  # only a finite loss shows that the weights are valid
            self._save()
        if self.recipe["clip"]:
            accelerator.clip_grad_norm_(self.model.parameters(), self.recipe["clip"])
        self.prepared_optimizer.step()
        return loss, accuracy, int(tokens)

    @torch.no_grad()
    def _evaluate(self) -> None:
        """Score the dev rows: minus the loss if answers are texts, else accuracy. Weights with the
        best score so far are saved."""
        self.model.eval()
        rows, size = sorted(self.dev_rows.rows, key=characters), self.recipe["batch"] // self.parts
        own = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        sums = torch.zeros(3, device=self.accelerator.device, dtype=torch.float64)
        for group in arms.batches(own, size):
            with self.accelerator.autocast():
                figures = self.family.learned(*self.dev_rows.collate(group))
            sums += torch.tensor([*map(float, figures), 1.0]).to(sums) * len(group)
        loss, accuracy, count = self.accelerator.reduce(sums, "sum").tolist()
        score = (-loss if self.task.answers == "text" else accuracy) / count
        step, best = self.state["step"], self.state["best"]
        self._log({"step": step, "dev_loss": loss / count, "dev_right": accuracy / count})
        if math.isfinite(score) and (best is None or score > best):
            self.state.update(best=score, best_step=step, worse=0)
            if self.accelerator.is_main_process:
                checkpoint.save_weights(self.folder, self.family.model, step)
        else:
            self.state["worse"] += 1

    def _save(self) -> None:
        self.save_due = False
        if self.accelerator.is_main_process:
            self.spent["log_bytes"] = (self.folder / LOG).stat().st_size
            checkpoint.save_state(
                self.folder / checkpoint.STATE, self.family.model, self.optimizer,
                self.accelerator.scaler, self.state, self.spent,
            )  # fmt: skip
        self.accelerator.wait_for_everyone()

    def _log(self, line: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with (self.folder / LOG).open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _finish(self) -> dict[str, Any]:
        """Write the checkpoint of the best weights and return its card."""
        cell = self.cell
        if self.state["best"] is None:
            raise Diverged("the loss on the dev rows was never finite: there is nothing to keep")
        card = {
            "key": cell.model["training"],
            "protocol": cell.protocol,
            "task": cell.task["name"],
            "method": dict(cell.training_method),
            "model": cell.model["name"],
            "recipe": dict(self.recipe),
            "length": cell.length,
            "seed": cell.seed,
            "data": {name: cell.data[name] for name in ("source", "train_sha256")},
            "steps": self.state["step"],
            "best_step": self.state["best_step"],
            "dev_score": self.state["best"],
            "wall_ns": self.spent["wall_ns"],
            "tokens": self.spent["tokens"],
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "processes": self.accelerator.num_processes,
        }
        if self.accelerator.is_main_process:
            tokenizer = self.family.tokenizer if self.task.vocabulary is None else None
            card = checkpoint.publish(self.folder, self.family.model, tokenizer, card)
        return card


# The start of a training: the model, the optimizer, and the learning rate of each step.


def load_for_training(cell: Cell, method: Mapping[str, Any]) -> Family:
    """The cell's untrained model with this method in it, in training mode and in float32. Raises
    RequestError, or Unsupported with the method's reason."""
    model = cell.model
    start = find_checkpoint(model["original_path"], model.get("revision"))
    family = arms.load(cell, plugins.build(dict(method)), training=True, start=start)
    if cell.recipe and cell.recipe["recompute"]:
        family.method = CheckpointedMethod(family.method)
    return family


def adamw(model: Any, recipe: Mapping[str, Any]) -> torch.optim.AdamW:
    """AdamW without weight decay for biases, norms and other vectors."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": recipe["weight_decay"]},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups, lr=recipe["lr"], betas=(0.9, recipe["beta2"]), eps=recipe["eps"]
    )


def learning_rate(recipe: Mapping[str, Any], step: int, total: int) -> float:
    top, warmup = recipe["lr"], recipe["warmup"]
    if step < warmup:
        return float(top * (step + 1) / warmup)
    done = (step - warmup) / max(1, total - warmup)
    factor = {
        "constant": 1.0,
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "rsqrt": math.sqrt(max(1, warmup) / max(1, step)),
    }[recipe["schedule"]]
    return float(top * factor)


# Gradient checkpointing in any family (Chen et al., arXiv 1604.06174): each layer that a method
# walks keeps only its input, and is computed again in the backward pass.


@dataclass(frozen=True)
class CheckpointedMethod(Wrapped):
    """A method whose layers keep no activations; the layers of an encoder-decoder's decoder keep
    them."""

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return super().encode([*map(CheckpointedLayer, layers)], hidden, sequence)

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return super().encode_shorter([*map(CheckpointedLayer, layers)], hidden, sequence)


PARTS = ("from_normed", "before_norm")
"""Parts of a layer that a method may run instead of the whole layer."""


class CheckpointedLayer:
    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        output: Tensor = recomputed(self.layer, hidden, sequence, use_reentrant=False)
        return output

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.layer, name)
        return partial(recomputed, attribute, use_reentrant=False) if name in PARTS else attribute
