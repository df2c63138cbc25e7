"""Latency of a method against vanilla: raw samples, in the first process and in further ones that
time their share of the pairs; and figures that explain it and the quality: the error against exact
attention, the time of each stage, and the time of a call when vanilla doesn't run between its
calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.execution import arms, worker
from bench.host import torch_host
from bench.measure import integrity
from bench.measure.paired_timing import PairShare, garbage_collection_off
from bench.measure.perturbed_inputs import Input, PerturbedInputs
from bench.measure.timed_call import Arm, Process
from bench.measure.two_arms import (
    LONG_NS,
    WARM_CALLS_AGAIN,
    TwoArms,
    kernel_of,
    plan_pairs,
    vanilla_failure,
)
from bench.models.base import Family
from bench.models.wrappers import Wrapped
from bench.request.cell import Cell
from bench.rows.columns import Row
from methods.base import AttentionCall, Layer, Method, SequenceInfo, Sublayer


def measure(request: dict[str, Any], report: worker.Report) -> Mapping[str, Any]:
    """Samples of both arms in nanoseconds, and details of the sampling. In a further process the
    request has its `share` of the pairs. With `outside`, vanilla answers the supervisor."""
    cell, family, process, load_ns = loaded(request)
    inputs = PerturbedInputs(arms.longest_inputs(cell, family, arms.INPUTS))
    device, scored = cell.device["kind"], None
    if request.get("scored"):
        encoded = arms.inputs(cell, cell.build_task(), family.tokenizer).encoded
        scored = arms.collate([encoded[i] for i in request["scored"]["texts"]], device)
    with torch.inference_mode():
        method = Arm(family, family.method, inputs, device, process)
        both = TwoArms(method, method.of(arms.vanilla()), cell, report, scored=scored)
        if "outside" in request:
            return both.outside()
        if "share" in request:
            with integrity.rechecked(family):
                calls = 1
                if method(0) < LONG_NS:  # for longer calls, only the first process counts
                    integrity.check_method(family, inputs)
                    calls = WARM_CALLS_AGAIN
                result = both.further(PairShare(**request["share"]), calls)
        else:
            result = {"load_ns": load_ns, **torch_host.facts(cell.dtype, device)}
            result |= time_method(both)
        return result | process.gpu_columns()


def loaded(request: Mapping[str, Any]) -> tuple[Cell, Family, Process, int]:
    """The request's cell and its model, this process prepared for timing, and the nanoseconds of
    loading. With `outside`, vanilla is in the model, and no method is imported."""
    cell = Cell.from_json(request["cell"])
    worker.keep_freed_memory(request["by_size"])
    arms.prepare(cell, timed=True)
    integrity.adopt_orphans()
    process = Process(cell.device["kind"])
    started = perf_counter_ns()
    family = arms.load(cell, arms.vanilla() if "outside" in request else arms.method_of(cell))
    return cell, family, process, perf_counter_ns() - started


def time_method(both: TwoArms[Arm]) -> dict[str, Any]:
    """The family's method `timed` against vanilla and against exact attention by its `engine`, and
    columns of the row, with checks before and after. `shares` are for further processes to time.
    Raises IntegrityError."""
    method, cell, family = both.method, both.cell, both.method.family
    inputs, own = method.inputs, family.method
    both.report("warmup")
    with integrity.rechecked(family):
        result: dict[str, Any] = {"first_call_ns": method(0), "timed_tokens": inputs.tokens}
        integrity.check_method(family, inputs)
        failure = {} if both.cell.is_baseline else vanilla_failure(both.base, cell.plan.budget_s)
        family.method = own
        if not both.cell.is_baseline and not failure:
            result |= fidelity(family, arms.vanilla(), inputs.restored(0))
            result |= estimate(family, inputs.restored(0), cell.dtype)
        result |= both.first(plan_pairs, failure)
        family.method = own
        solo_ns, energy = solo_time(method, method.device)
        result["timed"]["solo_median_ns"] = result["prefill_ns"] = solo_ns
        result |= energy
        result |= stage_times(family, inputs.current(0), cell.plan.budget_s)
        if not cell.new_tokens:
            result |= decode_times(family, inputs.current(0), solo_ns)
    return result | {
        "kernel": kernel_of(own),
        "window_layers_exact": len(family.exact_layers) or None,
    }


# The figures that explain a latency.

DECODED_TOKENS = 16
REPEATS = 3
WALKS = 8
"""Number of walks through the layers. Each gives a share of the attention; a few show the
variation of this share."""
SOLO_CALLS = 10
ENOUGH_NS = 3_000_000_000
ENOUGH_WALKS_NS = 8_000_000_000
WALKS_FRAC = 0.04
"""Share of a cell's budget that the walks may take if it is longer: with 20 s a walk, one walk
gave no interval for a cell that was timed for 45 minutes."""


def fidelity(family: Family, exact: Method, batch: Input) -> dict[str, Any]:
    """Errors against exact attention at the same weights and input, over the valid tokens of the
    last hidden states and over the first logits; means over layers of `Method.diagnose`.
    The family's method is unchanged afterwards."""
    ids, sequence = batch
    method, diagnosed = family.method, Diagnosed(family.method)
    outputs = []
    for one, encoding in ((exact, exact), (method, diagnosed)):
        family.method = encoding
        hidden = family.encode(ids, sequence).float()
        family.method = one
        if sequence.valid is not None and hidden.shape[:2] == sequence.valid.shape:
            hidden = hidden[sequence.valid]
        logits = arms.first_token(family, ids, sequence).float()
        outputs.append((hidden.flatten(0, -2), logits.flatten(0, -2)))
    (exact_hidden, exact_logits), (hidden, logits) = outputs
    if hidden.shape != exact_hidden.shape:
        return {"fid_reason": "the method's output has another length than its input"}
    error = hidden - exact_hidden
    log_exact, log_p = exact_logits.log_softmax(-1), logits.log_softmax(-1)
    cosine = functional.cosine_similarity(hidden, exact_hidden, dim=-1)
    divergence = (log_exact.exp() * (log_exact - log_p)).sum(-1).mean().clamp_min(0)
    agree = (exact_logits.argmax(-1) == logits.argmax(-1)).float().mean()
    of_logits = {"fid_kl_mean": float(divergence), "fid_top1_agree": float(agree)}
    return {
        "fid_rel_l2": float(error.norm() / exact_hidden.norm()),
        "fid_max_abs": float(error.abs().max()),
        "fid_cos_min": float(cosine.min()),
        # The choice of an untrained head does not measure the method.
        **({} if getattr(family, "lacks", ()) else of_logits),
        **{f"fid_{name}": statistics.mean(values) for name, values in diagnosed.figures.items()},
    }


@dataclass(frozen=True)
class Diagnosed(Wrapped):
    figures: dict[str, list[float]] = field(default_factory=dict)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        for name, figure in self.method.diagnose(query, key, call).items():
            self.figures.setdefault(name, []).append(figure)
        return super().attend(query, key, value, call)


def stage_times(family: Family, batch: Input, budget_s: float) -> Row:
    """Nanoseconds inside the method's attention, and in its walk over the layers; and the share of
    the scores that a sparse prefill leaves out. `budget_s` is the budget of the cell."""
    ids, sequence = batch
    now = torch_host.clock(ids.device.type)
    attend: list[int] = []
    method = family.method

    def encode() -> None:
        family.method = timed = AttentionTimer(method, now)
        family.encode(ids, sequence)
        attend.append(sum(timed.attend_ns))
        family.method = method

    enough_ns = max(ENOUGH_WALKS_NS, int(WALKS_FRAC * budget_s * 1e9))
    with garbage_collection_off():
        walks = times_ns(encode, now, WALKS, enough_ns)[0]
    reader = getattr(method, "prefill", None) or method
    return {
        "prefill_skipped_frac": getattr(reader, "skipped", None),
        "attend_ns": int(statistics.median(attend)),
        "encode_ns": int(statistics.median(walks)),
        "attend_samples_ns": attend,
        "encode_samples_ns": walks,
    }


def decode_times(family: Family, batch: Input, prefill_ns: int) -> Row:
    """Nanoseconds of each decoded token after the first, which takes `prefill_ns`; None if noise
    exceeds the time. The median of three answers, fewer when they are long."""
    ids, sequence = batch
    now = torch_host.clock(ids.device.type)
    generate = partial(family.generate_ids, ids, sequence, DECODED_TOKENS)
    with garbage_collection_off():
        times, output = times_ns(generate, now, REPEATS, ENOUGH_NS)
    tokens = output.shape[1] - 1
    decode_ns = int(statistics.median(times)) - prefill_ns
    decodes = decode_ns > 0 and tokens > 1
    return {
        "decode_ns_per_token": decode_ns // (tokens - 1) if decodes else None,
        "tokens_out": tokens,
    }


def times_ns(
    call: Callable[[], Any], now: Callable[[], int], most: int, enough_ns: int
) -> tuple[list[int], Any]:
    """Nanoseconds of each of `most` calls, fewer if they take `enough_ns`; and the last result."""
    times: list[int] = []
    while len(times) < most and sum(times) < enough_ns:
        started = now()
        result = call()
        times.append(now() - started)
    return times, result


@dataclass(frozen=True)
class AttentionTimer(Wrapped):
    now: Callable[[], int] = perf_counter_ns
    attend_ns: list[int] = field(default_factory=list)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        started = self.now()
        out = super().attend(query, key, value, call)
        self.attend_ns.append(self.now() - started)
        return out

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        """The part of a sub-layer that the method computes without the layer's own attention."""
        started = self.now()
        out = super().mix(hidden, sublayer, call)
        if not sublayer.attended:
            self.attend_ns.append(self.now() - started)
        return out


def solo_time(arm: Callable[[int], int], device: str, most: int = SOLO_CALLS) -> tuple[int, Row]:
    """The median of up to `most` consecutive calls of one arm, whose caches no other arm evicts,
    and columns of the joules of one call where the machine has a meter."""
    meter, reason = torch_host.energy_meter(device)
    calls: list[int] = []
    with garbage_collection_off() as elapsed_ns:
        before = meter() if meter else 0.0
        while len(calls) < 2 or (len(calls) < most and elapsed_ns() < ENOUGH_NS):
            calls.append(arm(len(calls)))
        joules = meter() - before if meter else 0.0
    return int(statistics.median(calls)), {
        "energy_j": joules / len(calls) if meter else None,
        "energy_source": ("nvml" if device == "cuda" else "rapl") if meter else None,
        "energy_reason": reason,
    }


# Estimates how precisely a method computes inside, which its error against exact attention
# doesn't show: an approximation's error is far larger than that of its arithmetic.
#
# The hidden states are changed by a few units in the last place, up and down. In f(x + d) − 2 f(x)
# + f(x − d) the changes of a smooth function cancel, and rounding remains. The median over tokens
# leaves out those for which the method reads other keys than before.

CHANGE = 2.0**-18
LOWER = {2.0**-11: "bfloat16 or less", 2.0**-15: "float16 or tf32"}
"""Rounding error → the number formats that exceed it. Two layers with attention in bfloat16 have
about 1e-3, in float16 2e-4 to 3e-4, in float32 1e-6 (T5, BERT, Llama and LRA encoder)."""


@dataclass(frozen=True)
class Changed(Wrapped):
    """A method whose hidden states are changed by a share of their value, of random sign."""

    share: float = 0.0

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return super().encode(layers, self.changed(hidden), sequence)

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        return super().encode_shorter(layers, self.changed(hidden), sequence)

    def changed(self, hidden: Tensor) -> Tensor:
        generator = torch.Generator(hidden.device).manual_seed(0)
        signs = torch.randint(0, 2, hidden.shape, generator=generator, device=hidden.device)
        return hidden * (1 + self.share * (2.0 * signs - 1))


def estimate(family: Family, batch: Input, dtype: str) -> Row:
    """The relative rounding error of the method's output, and the number format that has it. Only
    for float32 cells: in others such a small change is lost. The method is unchanged afterwards."""
    if dtype != "float32":
        return {}
    method = family.method
    outputs = []
    for share in (CHANGE, 0.0, -CHANGE):
        torch.manual_seed(0)
        family.method = Changed(method, share)
        outputs.append(family.encode(*batch).flatten(0, -2))
    family.method = method
    up, middle, down = outputs
    noise = (up - 2 * middle + down).norm(dim=-1) / (6**0.5 * middle.norm(dim=-1))
    error = float(noise.nanmedian())
    dtype = next((name for bound, name in LOWER.items() if error > bound), "float32")
    return {"fid_rounding": error, "dtype_effective": dtype}
