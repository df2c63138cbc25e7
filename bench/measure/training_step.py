"""Cost of a training step: forward, gradients, AdamW. Times pairs with vanilla on the same weights
and batches, or measures the peak memory of one cold step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch._dynamo  # an optimizer's first step imports it, which replaces functions of torch
from torch import Tensor

from bench.execution import arms, worker
from bench.host import torch_host
from bench.measure import integrity, memory
from bench.measure.paired_timing import PairShare
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, Forward, Process
from bench.measure.two_arms import TwoArms, plan_pairs, vanilla_failure
from bench.models.base import Family
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.train.batches import IGNORED, Batch, BatchLoader
from bench.train.trainer import adamw, load_for_training
from methods.base import Method, SequenceInfo

ADAMW_OPTIONS = {"lr": 0.0, "weight_decay": 0.01, "beta2": 0.999, "eps": 1e-8}
"""With a learning rate of 0, a step does all the work and leaves the weights unchanged."""


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Raw samples of both arms, in a further process only for its `share` of the pairs; with an
    `arm` in the request, that arm's peak bytes; with a `length`, whether a step fits in memory at
    this length."""
    cell = Cell.from_json(request["cell"])
    if "length" in request:
        check_fits(cell, request["length"], report)
        return {}
    arm, device = request.get("arm"), cell.device["kind"]
    if arm:
        worker.return_freed_memory()
    else:
        worker.keep_freed_memory(request["by_size"])
    arms.prepare(cell, timed=arm is None, costs=True)
    process = Process(device)
    vanilla = arm == BASELINE or "outside" in request
    family = start(cell, vanilla)
    batches = rows(cell, family)
    if arm:
        report("memory of training")
        return {"train_peak_bytes": peak(family, batches[0], device)}
    report("warmup")
    inputs = PerturbedInputs([(b.ids, b.sequence) for b in batches])
    targets = [batch.target for batch in batches]
    method = StepArm(family, family.method, inputs, device, process, targets=targets)
    both = TwoArms(method, method.of(arms.vanilla()), cell, report, "training_step")
    if "outside" in request:
        return both.outside()
    if "share" in request:
        return both.further(PairShare(**request["share"]))
    failure = {} if both.cell.is_baseline else vanilla_failure(both.base)
    return {"timed_tokens": inputs.tokens, **both.first(plan_pairs, failure)}


def start(cell: Cell, vanilla: bool = False) -> Family:
    """The model in training mode with the cell's method, or with vanilla: with the initial weights
    of the cell's recipe, or those of the cell if it has no recipe. Raises Unsupported."""
    if cell.recipe is not None:
        return load_for_training(cell, cell.baseline().method if vanilla else cell.method)
    method = arms.vanilla() if vanilla else arms.method_of(cell)
    return arms.load(cell, method, training=True)


def rows(cell: Cell, family: Family) -> list[Batch]:
    task = cell.build_task()
    arms.check_fit(cell, task, family)
    needed = arms.INPUTS * cell.batch
    longest = sorted(cell.rows().rows[: max(64, needed)], key=lambda row: -len(row.document))
    longest = (longest * -(-needed // len(longest)))[:needed]
    loader = BatchLoader(
        task, family.tokenizer, longest, cell.length, task.max_new_tokens, cell.batch, cell.seed,
        cell.device["kind"], cell.fill,
    )  # fmt: skip
    return [loader.collate(group) for group in arms.batches(longest, cell.batch)]


def step(family: Family, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
    """Returns the loss, []."""
    optimizer.zero_grad()
    loss, _ = family.learned(*batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


@dataclass(eq=False)
class StepArm(Arm):
    """One timed training step with `method` in the model, on perturbed inputs."""

    targets: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = torch_host.clock(self.device)
        self.optimizer = adamw(self.family.model, ADAMW_OPTIONS)

    def twin(self) -> Method | None:
        return None

    def prepared(self, i: int, drawn: Tensor | None = None) -> Forward:
        batch = Batch(*self.inputs.perturbed(i, drawn), self.targets[i % len(self.targets)])
        return partial(step, self.family, self.optimizer, batch)

    def timed(self, forward: Forward) -> tuple[int, Tensor]:
        started = self.now()
        loss = forward()
        return self.now() - started, loss

    def check(self, i: int, logits: Tensor, attended: int) -> None:
        integrity.check_attention_ran(self.family, attended)


def peak(family: Family, batch: Batch, device: str) -> int | None:
    """Bytes beyond the loaded model that one cold step needs. None where the kernel's high-water
    mark can't be reset."""
    optimizer = adamw(family.model, ADAMW_OPTIONS)
    cold_step = partial(step, family, optimizer, batch)
    memory.touch_weights(family)
    loss, _ = family.learned(*_first_tokens(family, batch))
    loss.backward()
    optimizer.zero_grad()
    if device == "cuda":
        return memory.cuda_allocated(cold_step)
    return memory.peak(cold_step)[1] if memory.can_reset() else None


def check_fits(cell: Cell, length: int, report: worker.Report) -> None:
    """Run a step on random tokens with the gradients and optimizer state of an earlier one, which
    is run on the first tokens only: an error if memory runs out."""
    arms.prepare(cell, costs=True)
    family = start(cell)
    batch = rows(cell, family)[0]
    report("probe")
    inputs = memory.random_inputs(cell, family, len(batch.ids), length)
    batch = _with_inputs(family, batch, *inputs)
    optimizer = adamw(family.model, ADAMW_OPTIONS)
    step(family, optimizer, _first_tokens(family, batch))
    step(family, optimizer, batch)


def _first_tokens(family: Family, batch: Batch) -> Batch:
    return _with_inputs(family, batch, *memory.first_tokens(batch.ids, batch.sequence))


def _with_inputs(family: Family, batch: Batch, ids: Tensor, sequence: SequenceInfo) -> Batch:
    """Other inputs, with targets that are valid for them: the true span or choice may lie
    elsewhere."""
    target = batch.target[:, :8]
    if family.answers == "choice":
        target = torch.zeros_like(target)
    if family.answers == "span":
        target = torch.full((len(target), 3 + ids.shape[1]), IGNORED, device=target.device)
        target[:, 0] = batch.target[:, 0]
    return Batch(ids, sequence, target)
