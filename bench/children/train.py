"""Train the weights that a cell asks for. Runs in a child of `bench train` and `bench run`; several
processes (GPUs, machines) through accelerate's launcher, in the words of `bench train`:

    accelerate launch --num_processes 2 -m bench.children.train method=vanilla recipe=NAME
    torchrun --nproc_per_node 2 -m bench.children.train method=vanilla recipe=NAME      # on CPUs

Everything a step does is a function of its number: its rows and its random numbers are drawn from
the seed and the step. So a run that was killed goes on along the same curve.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from torch import Tensor, nn

from bench import training
from bench.cell import Cell
from bench.children import arms
from bench.children.feed import Batch, Feed, figures
from bench.children.optim import load, optimizer, rate
from bench.children.resume import STATE, DiskFull, restore, save, save_weights
from bench.errors import RequestError
from bench.models.base import Family
from bench.weights import checkpoint_sha256
from methods.base import Unsupported
from tasks.base import Data

LOG = "log.jsonl"
LOCK = ".lock"
SMOOTHED = 0.05
"""Weight of a new loss in the one that is shown."""


class Diverged(RuntimeError):
    """The loss is no number any more."""


Tell = Callable[..., None]
"""Told the stage, how much of it is done, of how much, and in training a line beside it."""


def measure(request: dict[str, Any], report: Tell) -> dict[str, Any]:
    """Train what isn't trained yet; returns the checkpoint's card. Raises Unsupported with the
    method's reason, RequestError, Diverged, DiskFull."""
    cell = Cell.from_json(request["cell"])
    arms.prepare(cell)
    return trained(cell, report)


def trained(cell: Cell, report: Tell) -> dict[str, Any]:
    """The card of the cell's checkpoint, which is trained if need be."""
    assert cell.recipe is not None
    place = Path(cell.model["path"])
    place.mkdir(parents=True, exist_ok=True)
    accelerator = _accelerator(cell)
    with _alone(place, report) if accelerator.is_main_process else contextlib.nullcontext():
        accelerator.wait_for_everyone()
        found = training.card(place)
        if found is None:
            found = Training(cell, place, accelerator, report).run()
        accelerator.wait_for_everyone()
    return found


def _accelerator(cell: Cell) -> Accelerator:
    assert cell.recipe is not None
    precision = {"float32": "no", "bfloat16": "bf16", "float16": "fp16"}[cell.recipe["dtype"]]
    cpu = cell.device["kind"] == "cpu"
    if cpu and precision == "fp16":
        raise RequestError("recipe.dtype=float16 needs a GPU; on the CPU: float32, bfloat16")
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    return Accelerator(mixed_precision=precision, cpu=cpu, kwargs_handlers=[unused])


@contextlib.contextmanager
def _alone(place: Path, report: Tell) -> Iterator[None]:
    """Of several that want this checkpoint one trains and the others wait."""
    with (place / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report("waits for another training")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Whole(nn.Module):
    """A family as one module, which is what torch's data parallelism wraps."""

    def __init__(self, family: Family, smoothing: float) -> None:
        super().__init__()
        self.model = family.model
        self.family = [family]
        self.smoothing = smoothing

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return figures(self.family[0], batch, self.smoothing if self.training else 0.0)


class Training:
    """One training: what it reads, what it changes, and how far it is."""

    def __init__(self, cell: Cell, place: Path, accelerator: Accelerator, report: Tell):
        assert cell.recipe is not None
        self.cell, self.place, self.accelerator, self.report = cell, place, accelerator, report
        self.recipe = cell.recipe
        self.task = cell.build_task()
        self.family = load(cell, cell.training_method)
        arms.check_fit(cell, self.task, self.family)
        self.parts = accelerator.num_processes * self.recipe["accumulate"]
        if self.recipe["batch"] % self.parts:
            raise RequestError(
                f"recipe.batch={self.recipe['batch']} can't be divided among "
                f"{accelerator.num_processes} processes × {self.recipe['accumulate']} parts"
            )
        report("rows")
        self.feed = self._feed("train", self.recipe["rows"], self.recipe["batch"])
        passes = len(self.feed.rows) // self.recipe["batch"]
        self.total = self.recipe["steps"] or max(1, round(self.recipe["epochs"] * passes))
        self.dev = self._feed("validation", self.recipe["dev_rows"], 1)
        self.optimizer = optimizer(self.family.model, self.recipe)
        whole = Whole(self.family, self.recipe["label_smoothing"])
        self.model, self.prepared = accelerator.prepare(whole, self.optimizer)
        # What differs from run to run stays out: the same curve, resumed or not.
        self.state: dict[str, Any] = {"step": 0, "best": None, "best_step": 0, "worse": 0}
        self.spent = {"wall_ns": 0, "tokens": 0}
        self.due = False

    def _feed(self, split: str, n: int | None, batch: int) -> Feed:
        data = self.cell.data
        where = Data(data["source"], Path(data["dir"]) if data["dir"] else None, split)
        n = training.rows_of(self.task, where, n)
        loaded = self.task.load(where, n, self.cell.length, self.cell.seed)
        target = self.recipe["target_length"] or self.task.max_new_tokens
        return Feed(
            self.task, self.family.tokenizer, loaded.rows, self.cell.length, target, batch,
            self.cell.seed, str(self.accelerator.device),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        """All steps that are left, and the card."""
        resumed = self.place / STATE
        if resumed.exists():
            self.state, self.spent = restore(
                resumed, self.family.model, self.optimizer, self.accelerator.scaler
            )
        self._forget_after(self.state["step"])
        total, every = self.total, self.recipe["eval_every"]
        shown: float | None = None
        began, reached = time.monotonic(), self.state["step"]
        while self.state["step"] < total and not self._enough():
            started = time.monotonic_ns()
            loss, right, tokens = self._step(self.state["step"])
            self.state["step"] += 1
            step = self.state["step"]
            shown = loss if shown is None else shown + SMOOTHED * (loss - shown)
            self.spent["tokens"] += tokens
            self._log({"step": step, "loss": loss, "right": right})
            looked = step % every == 0 or step == total
            if looked:
                self._look()
            self.spent["wall_ns"] += time.monotonic_ns() - started
            self.due = self.due or looked or step % self.recipe["save_every"] == 0
            passed = time.monotonic() - began
            left = passed / (step - reached) * (total - step)
            rate = self.spent["tokens"] / max(self.spent["wall_ns"], 1) * 1e9
            self.report(
                "training", step, total,
                f"loss {shown:.3f} · {rate:,.0f} tokens/s · {_duration(left)} left",
            )  # fmt: skip
        return self._finish()

    def _enough(self) -> bool:
        patience = self.recipe["patience"]
        return patience is not None and self.state["worse"] >= patience

    def _step(self, step: int) -> tuple[float, float, int]:
        """One change of the weights; returns the loss, the share of right answers, the tokens."""
        accelerator, accumulate = self.accelerator, self.recipe["accumulate"]
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.recipe, step, self.total)
        self.prepared.zero_grad()
        told = torch.zeros(3, device=accelerator.device, dtype=torch.float64)
        for part in range(accumulate):
            number = accelerator.process_index * accumulate + part
            torch.manual_seed((self.cell.seed << 40) + (step << 12) + number)
            batch = self.feed.at(step, number, self.parts)
            last = part == accumulate - 1
            with contextlib.nullcontext() if last else accelerator.no_sync(self.model):
                loss, right = self.model(batch)
                accelerator.backward(loss / accumulate)
            read = loss.new_tensor(batch.ids.numel())
            told += torch.stack([loss.detach().float(), right, read]).to(told)
        told = accelerator.reduce(told, "sum")
        loss, right, tokens = told.tolist()
        loss, right = loss / self.parts, right / self.parts
        if not math.isfinite(loss):
            kept = self._kept()
            raise Diverged(f"the loss is {loss} at step {step + 1}; {kept}")
        if self.due:  # only now are the weights known to be good
            self._save()
        if self.recipe["clip"]:
            accelerator.clip_grad_norm_(self.model.parameters(), self.recipe["clip"])
        self.prepared.step()
        return loss, right, int(tokens)

    def _kept(self) -> str:
        path = self.place / STATE
        kept = f"the last good checkpoint is kept: {path}" if path.exists() else "none was saved"
        return f"{kept}; a smaller recipe.lr or recipe.clip may help"

    @torch.no_grad()
    def _look(self) -> None:
        """The score on the dev rows: minus the loss where answers are texts, else accuracy. The
        best weights are kept."""
        self.model.eval()
        rows, size = self.dev.rows, self.recipe["batch"] // self.parts
        mine = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        told = torch.zeros(3, device=self.accelerator.device, dtype=torch.float64)
        for group in arms.batches(mine, size):
            with self.accelerator.autocast():
                loss, right = figures(self.family, self.dev.of(group))
            told += torch.tensor([float(loss), float(right), 1.0]).to(told) * len(group)
        loss, right, count = self.accelerator.reduce(told, "sum").tolist()
        score = (-loss if self.task.answers == "text" else right) / count
        step = self.state["step"]
        self._log({"step": step, "dev_loss": loss / count, "dev_right": right / count})
        best = self.state["best"]
        if math.isfinite(score) and (best is None or score > best):
            self.state.update(best=score, best_step=step, worse=0)
            if self.accelerator.is_main_process:
                save_weights(self.place, self.family.model, step)
        else:
            self.state["worse"] += 1

    def _save(self) -> None:
        self.due = False
        if self.accelerator.is_main_process:
            save(
                self.place / STATE, self.family.model, self.optimizer,
                self.accelerator.scaler, self.state, self.spent,
            )  # fmt: skip
        self.accelerator.wait_for_everyone()

    def _log(self, line: dict[str, Any]) -> None:
        if self.accelerator.is_main_process:
            with (self.place / LOG).open("a") as file:
                file.write(json.dumps(line) + "\n")

    def _forget_after(self, step: int) -> None:
        """Steps that were taken after the last save are taken again, and logged again."""
        log = self.place / LOG
        if self.accelerator.is_main_process and log.exists():
            lines = log.read_text().splitlines(keepends=True)
            log.write_text("".join(x for x in lines if _number(x) <= step))
        self.accelerator.wait_for_everyone()

    def _finish(self) -> dict[str, Any]:
        """A checkpoint as any other, of the best weights, and its card, which comes last."""
        cell, place = self.cell, self.place
        if self.state["best"] is None:
            raise Diverged("the loss on the dev rows was never a number: nothing is worth keeping")
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
            model: Any = self.family.model
            model.config.architectures = [type(model).__name__]
            model.config.save_pretrained(place)
            if model.can_generate():
                model.generation_config.save_pretrained(place)
            if self.task.vocabulary is None:
                self.family.tokenizer.save_pretrained(place)
            card["weights_sha256"] = checkpoint_sha256(place)
            part = place / f"{training.CARD}.part"
            part.write_text(json.dumps(card, indent=1))
            os.replace(part, place / training.CARD)
            (place / STATE).unlink(missing_ok=True)
        return card


def _number(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except ValueError:  # a line that the kill tore
        return sys.maxsize


def _duration(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{second:02}"


def main(words: list[str]) -> None:
    """One of the processes that accelerate's launcher starts."""
    from bench import show
    from bench.config import compose

    cell = Cell.of(compose(words))
    if cell.recipe is None:
        raise RequestError("nothing to train: give recipe=NAME")
    torch.set_num_threads(cell.threads)
    torch.use_deterministic_algorithms(cell.device["kind"] == "cpu")
    if int(os.environ.get("RANK", 0)):
        trained(cell, lambda *_: None)
        return
    with show.progress(cell.title) as progress:
        card = trained(cell, progress)
    print(f"{cell.model['path']}  dev score {card['dev_score']:.4f}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (RequestError, Unsupported, Diverged, DiskFull) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, (RequestError, Unsupported)) else 1)
