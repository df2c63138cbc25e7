"""What a training step costs: rows read, gradients, AdamW. Against vanilla in one process, in pairs
whose order is a coin flip, on the same weights and rows; or the peak memory of one cold step."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from bench.cell import BASELINE, Cell
from bench.children import arms, child, gate, malloc, memory
from bench.children.feed import IGNORED, Batch, Feed, figures
from bench.children.latency import INPUTS, Arm, compare, page_faults, planned, solo, warm
from bench.children.optim import load, optimizer
from bench.models.base import Family
from methods.base import Unsupported

PLAIN = {"lr": 0.0, "weight_decay": 0.01, "beta2": 0.999, "eps": 1e-8}
"""A learning rate of 0 does all the work and leaves the weights as they are, for the next pair."""


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """Raw samples of both arms; or, with an `arm` in the request, its peak bytes."""
    cell = Cell.from_json(request["cell"])
    if "arm" in request:
        malloc.give_back_at_once()
    else:
        malloc.keep()
    arms.prepare(cell, timed="arm" not in request)
    family = start(cell)
    if request.get("arm") == BASELINE:
        family.method = arms.vanilla()
    batches = rows(cell, family)
    if "arm" in request:
        report("memory of training")
        return {"train_peak_bytes": peak(family, batches[0], cell.device["kind"])}
    report("warmup")
    inputs = gate.Fresh([(batch.ids, batch.sequence) for batch in batches], cell.seed)
    targets = [batch.target for batch in batches]
    device = cell.device["kind"]
    method = StepArm(family, family.method, inputs, device, targets=targets)
    told = warm(method)
    if cell.method["name"] == BASELINE:
        return told | solo(method, cell, report)
    base = StepArm(family, arms.vanilla(), inputs, device, targets=targets)
    try:
        warm(base)
    except (RuntimeError, MemoryError) as error:
        if child.memory_status(error) is None:
            raise
        reason = f"vanilla: {str(error).splitlines()[0]}"
        return told | solo(method, cell, report) | {"ratio_reason": reason}
    return told | compare(method, base, cell, report, planned(method, base, cell)[0])


def start(cell: Cell) -> Family:
    """The model in training mode, with the cell's method in it: at its recipe's start, or as it is
    where there is none. Raises Unsupported."""
    if cell.recipe is not None:
        return load(cell, cell.method)
    family = arms.load(cell, arms.method_of(cell))
    family.model.train()
    if reason := family.method.unsupported(family.shape(cell.length, cell.batch)):
        raise Unsupported(reason)
    return family


def rows(cell: Cell, family: Family) -> list[Batch]:
    """Batches of the cell's longest rows, with their answers."""
    task = cell.build_task()
    arms.check_fit(cell, task, family)
    some = list(cell.rows().rows[: max(64, INPUTS * cell.batch)])
    some.sort(key=lambda row: -len(row.document))
    needed = INPUTS * cell.batch
    some = (some * -(-needed // len(some)))[:needed]
    feed = Feed(
        task, family.tokenizer, some, cell.length, task.max_new_tokens, cell.batch, cell.seed,
        cell.device["kind"],
    )  # fmt: skip
    return [feed.of(group) for group in arms.batches(some, cell.batch)]


@dataclass
class Step:
    """Forward, backward and the optimizer, once."""

    family: Family
    optimizer: torch.optim.Optimizer

    def __call__(self, batch: Batch) -> None:
        self.optimizer.zero_grad()
        loss, _ = figures(self.family, batch)
        loss.backward()
        self.optimizer.step()


@dataclass
class StepArm(Arm):
    """One training step with `method` in the model, timed. No call sees rows that an earlier one
    saw: their documents begin at another word."""

    targets: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = Step(self.family, optimizer(self.family.model, PLAIN))

    def __call__(self, i: int) -> int:
        entered = perf_counter_ns()
        self.family.method = self.method
        batch = Batch(*self.inputs.at(i), self.targets[i % len(self.targets)])
        self._wait()
        before, began = page_faults(), perf_counter_ns()
        self.step(batch)
        self._wait()
        took = perf_counter_ns() - began
        self.faults.append(page_faults() - before)
        self.unseen.append(perf_counter_ns() - entered - took)
        return took

    def _wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def peak(family: Family, batch: Batch, device: str) -> int | None:
    """Bytes beyond the loaded model that one cold step needs: gradients, Adam's moments and what
    the layers keep for the way back. None where the kernel offers no high-water mark."""
    step = Step(family, optimizer(family.model, PLAIN))
    for weight in family.model.parameters():
        weight.sum()  # touches every mapped page, so that reading weights is no peak
    small = _beginning(family, batch)
    loss, _ = figures(family, small)
    loss.backward()
    step.optimizer.zero_grad()
    if device == "cuda":
        return memory.allocated(lambda: step(batch))
    return memory.peak(lambda: step(batch))[1] if memory.can_reset() else None


def _beginning(family: Family, batch: Batch) -> Batch:
    """The first tokens of each row, with targets that they can have: of a span and of choices the
    right one may stand further on."""
    ids, sequence = memory.beginning(batch.ids, batch.sequence)
    target = batch.target[:, :8]
    if family.answers == "choice":
        target = torch.zeros_like(target)
    if family.answers == "span":
        target = torch.full_like(batch.target[:, : 3 + ids.shape[1]], IGNORED)
        target[:, 0] = batch.target[:, 0]
    return Batch(ids, sequence, target)
