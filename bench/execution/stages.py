"""The stages of a cell: each runs modules of bench.measure or bench.train in child processes, and
returns how they ended and the columns that they give."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from bench.execution import kept_blocks, outside, shared_prefill, turns
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Outcome, Progress, Running
from bench.execution.worker import Kept
from bench.host import gpu
from bench.request import weights
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows.columns import COLUMNS
from bench.rows.comparison import SIDES, pooled
from bench.rows.predictions import Predictions
from bench.rows.shards import remove_leftovers
from bench.rows.store import PREDICTIONS
from bench.status import Status

Columns = dict[str, Any]
"""Columns of a row, as children give them in JSON, and raw samples that others are derived from."""

TUNABLES = "GLIBC_TUNABLES"
MALLOC_WITHOUT_CACHE = {
    TUNABLES: ":".join(filter(None, (os.environ.get(TUNABLES), "glibc.malloc.tcache_count=0")))
}
"""For a training: small freed blocks that malloc caches aren't joined with their neighbours, and as
each step has blocks of other sizes, the holes between them become too small for the next step's.
After 220 steps vanilla's ListOps held 3.4 GB with the cache and 1.8 without, at 4,900 12.5 with it.
"""
TRAINING_DEADLINE_S = 14 * 24 * 3600.0
"""In effect none: a training that is stopped continues from its last checkpoint."""
MAX_PROBED_LENGTH = 1 << 22

PAGE_FAULTS = ("lat_page_faults", "base_page_faults")


Stage = Callable[[CellRun], tuple[Outcome, Columns]]


def planned(cell: Cell) -> Sequence[Stage]:
    if cell.probe:
        return (max_length,)
    stages: list[Stage] = []
    if cell.plan.quality and cell.model["weights"] != "random":
        stages.append(quality)
    if cell.plan.speed and cell.is_engine:
        stages.append(engine)
    elif cell.plan.speed:
        stages += [latency, decoding, memory] if cell.new_tokens else [latency, memory]
    if cell.plan.in_turns:
        stages.append(in_turns)
    if cell.plan.training:
        stages.append(training_step)
    return stages


def quality(run: CellRun) -> tuple[Outcome, Columns]:
    """Predictions of the method, and of vanilla by a process without the method, unless both may
    answer after the same prefill."""
    shared_ns = shared_prefill.answer_with_vanilla(run) if run.share_prefill else 0
    is_baseline = run.cell.method["name"] == BASELINE
    timed_in_process = run.cell.plan.speed and not is_baseline and not run.cell.is_engine
    outcome = predicted(run, "quality", keeps_first=timed_in_process)
    times = {"quality_ns": shared_ns + outcome.wall_ns}
    if outcome.status == Status.OK and not is_baseline:
        base = predicted(replace(run, cell=run.cell.baseline()), "quality of vanilla")
        if base.status != Status.OK:
            return base, {}
        times = {"quality_ns": times["quality_ns"] + base.wall_ns, "base_quality_ns": base.wall_ns}
    return outcome, outcome.result | times


def predicted(run: CellRun, stage: str, keeps_first: bool = False) -> Outcome:
    """Have a child answer the rows without a stored prediction, and store its answers."""
    folder, key = run.results / PREDICTIONS, run.cell.prediction_key
    remove_leftovers(folder / key)
    stored = Predictions(folder, key)
    done = [[name, record.get("input_sha256")] for name, record in stored.done().items()]

    def store(_: Running, message: Mapping[str, Any]) -> None:
        stored.append(message["records"])

    return run.child(
        "measure.quality", {"predictions": store}, stage=stage, done=done, keeps_first=keeps_first
    )


def latency(run: CellRun) -> tuple[Outcome, Columns]:
    outcome, columns = _timed(run, "latency")
    if "timed" in columns:
        columns["lat"] = columns.pop("timed")  # for bench.rows.derived_columns
    return outcome, columns


def decoding(run: CellRun) -> tuple[Outcome, Columns]:
    outcome, found = _timed(run, "decoding")
    if outcome.status != Status.OK:
        return outcome, {}
    names = ("notes", "large_memory_kept", "decode_ns_per_token", "tokens_out")
    also = {name: found[name] for name in names if name in found}
    comparisons = {"tpot": found["timed"], "tpot_engine": found.get("engine")}
    return outcome, found.get("fidelity", {}) | also | comparisons


def in_turns(run: CellRun) -> tuple[Outcome, Columns]:
    """Times of tokens in turns with vanilla's, unless they were measured together with those of
    other cells."""
    if run.timed is not None:
        return Outcome(Status.OK, run.cell.measure), dict(run.timed)
    outcome, found = turns.time(run, [run.cell])
    return outcome, found.get(run.cell.key, {})


def engine(run: CellRun) -> tuple[Outcome, Columns]:
    """Times of an engine's tokens, and the peak memory of its process and of vanilla's."""
    outcome, columns = _in_processes(run, "engine", Kept.ALL)
    if outcome.status != Status.OK:
        return outcome, {}
    columns["lat"] = columns.pop("timed")
    base = run.child("measure.memory", arm=BASELINE)
    peaks = run.child("measure.engine", peak=True)
    columns["mem_reason"] = "an engine takes memory before it reads: see whole_peak_bytes"
    if peaks.status == Status.OK:
        columns |= peaks.result
    if base.status == Status.OK:
        columns |= _of_base(base.result)
    return outcome, columns


def _of_base(columns: Columns) -> Columns:
    """The columns of a row that are vanilla's."""
    found = {f"base_{name}": value for name, value in columns.items()}
    return {name: value for name, value in found.items() if name in COLUMNS}


def _timed(run: CellRun, name: str) -> tuple[Outcome, Columns]:
    """Pairs timed in processes that keep the memory they free. Where that runs out of memory, once
    more in processes that keep large blocks by size, with `large_memory_kept` True."""
    outcome, columns = _in_processes(run, name, Kept.ALL)
    out_of_memory = Status.OOM_HOST in (outcome.status, columns.get("baseline_status"))
    if not out_of_memory or not kept_blocks.library():
        return outcome, columns
    outcome, columns = _in_processes(run, name, Kept.BY_SIZE)
    return outcome, columns | {"large_memory_kept": True}


def _in_processes(run: CellRun, name: str, kept: Kept) -> tuple[Outcome, Columns]:
    """Pairs timed in several processes, one after the other: the first decides how many pairs each
    times. When one fails, so does the stage: the samples taken before are not to be trusted."""
    module, rounds = f"measure.{name}", outside.Rounds()
    scored = run.scored if name == "latency" else None

    def time_outside(method: Running, message: Mapping[str, Any]) -> None:
        vanilla = run.started(module, kept=kept, outside=True)
        rounds.append(message["process"], outside.time_both(message, method, vanilla, scored))

    handlers = {"outside": time_outside}
    first = run.child(module, handlers, kept=kept, scored=scored)
    columns = dict(first.result)
    shares, parts, wall_ns = columns.pop("shares", ()), [columns], first.wall_ns

    def report(stage: str, *position: Any) -> None:
        # A further process's loading and warm-up are not shown.
        if run.progress and stage == name:
            run.progress(stage, *position)

    for share in shares:
        # On a GPU only the first process is timed outside.
        again = scored if scored and run.on_cpu else None
        further = replace(run, progress=report).child(
            module, handlers, kept=kept, share=share, scored=again
        )
        wall_ns += further.wall_ns
        if further.status != Status.OK:
            where = f"in process {share['process'] + 1} of {len(shares) + 1}"
            detail = f"{further.detail or further.status}\n{where}"
            return replace(further, detail=detail, wall_ns=wall_ns), {}
        parts.append(further.result)
    outcome = replace(first, wall_ns=wall_ns)
    if rounds.faults and outcome.status == Status.OK:
        detail = f"IntegrityError: integrity check failed: {rounds.faults[0]}"
        return replace(outcome, status=Status.ERROR, detail=detail, stage=name), {}
    notes, answers = _notes(parts), _answers(parts)
    columns = _pooled(parts) if shares else columns
    if outcome.status == Status.OK:
        columns["notes"] = notes
        columns["timed"] |= rounds.fields() | answers
    return outcome, columns


def _notes(parts: Sequence[Columns]) -> list[str]:
    """Remarks of all processes, each once."""
    return list(dict.fromkeys(chain.from_iterable(part.pop("notes", None) or () for part in parts)))


def _answers(parts: Sequence[Columns]) -> Columns:
    """How the answers of the timed calls differ from vanilla's, as fields of a comparison."""
    rel_l2, top1 = (
        list(chain.from_iterable(part.pop(name, None) or () for part in parts))
        for name in ("timed_rel_l2_samples", "timed_top1_samples")
    )
    return {
        "timed_rel_l2": statistics.median(rel_l2) if rel_l2 else None,
        "timed_top1_agree": statistics.fmean(top1) if top1 else None,
    }


def _pooled(parts: Sequence[Columns]) -> Columns:
    """The columns of the first process with the samples of all, and the process of each pair."""
    columns = dict(parts[0])
    walls = [part.get("wall_samples_ns") for part in parts]
    on_two_clocks = [each for each in walls if each is not None]
    if len(on_two_clocks) < len(parts):
        on_two_clocks = []
    columns["wall_samples_ns"] = list(chain.from_iterable(on_two_clocks)) or None
    for arm in filter(columns.get, ("timed", "engine", "tpot")):
        timed = [part[arm] for part in parts if part.get(arm, {}).get("samples_ns")]
        if len(timed) < len(parts):
            columns[arm] = {field: x for field, x in columns[arm].items() if field not in SIDES}
            continue
        columns[arm] = pooled(timed)
    left_out = any(part["timed"].get("waits_left_out") for part in parts)
    columns["timed"]["waits_left_out"] = left_out or None
    for name in filter(columns.__contains__, PAGE_FAULTS):
        columns[name] = round(statistics.mean(part[name] for part in parts))
    if columns.get("gpu_throttle_reasons"):
        columns["gpu_throttle_reasons"] = gpu.union(p["gpu_throttle_reasons"] for p in parts)
        spans = [part["gpu_throttled_ns"] for part in parts]
        columns["gpu_throttled_ns"] = None if None in spans else sum(spans)
    return columns


def memory(run: CellRun) -> tuple[Outcome, Columns]:
    """Peak memory of the method and of vanilla, each in a separate process."""
    outcome = run.child("measure.memory", arm="method")
    if outcome.status != Status.OK:
        return outcome, {}
    columns = dict(outcome.result)
    if run.cell.method["name"] == BASELINE:
        return outcome, columns
    base = run.child("measure.memory", arm=BASELINE)
    if base.status != Status.OK:
        reason = f"vanilla ended with {base.status}"
        return outcome, columns | {"mem_reason": reason, "baseline_status": base.status}
    columns |= _of_base(base.result)
    on_gpu = run.cell.device["kind"] == "cuda"
    peak = "gpu_alloc_delta_bytes" if on_gpu else "rss_peak_delta_bytes"
    if columns.get(peak) is not None and base.result.get(peak):
        columns["mem_ratio"] = columns[peak] / base.result[peak]
    for ratio, name in (("kv_held_ratio", "kv_bytes_held"),
                        ("kv_read_ratio", "kv_bytes_read_per_token")):  # fmt: skip
        if columns.get(name) is not None and base.result.get(name):
            columns[ratio] = columns[name] / base.result[name]
    return outcome, columns


def max_length(run: CellRun) -> tuple[Outcome, Columns]:
    """The longest input of which one forward fits or, where the measure is of training, one step,
    to a sixteenth: the length is doubled until it fails, then bisected."""
    fits, fails, end = 0, None, None
    outcome = Outcome(Status.ERROR, "probe")
    length, silent = run.cell.length, replace(run, progress=None)
    while length <= MAX_PROBED_LENGTH:
        if run.progress:
            run.progress(f"{length:,} tokens", 0, 0)
        outcome = silent.child("measure.max_length", length=length)
        if outcome.status == Status.OK:
            fits = length
        elif outcome.status in (Status.OOM_HOST, Status.OOM_DEVICE, Status.TIMEOUT):
            fails, end = length, outcome.status
        else:
            return outcome, {}
        if fails is None:
            length *= 2
        elif fails - fits > max(1, fits // 16):
            length = (fits + fails) // 2
        else:
            break
    if not fits:
        return outcome, {}
    return replace(outcome, status=Status.OK), {
        "max_length_fit": fits, "max_length_end": end,
    }  # fmt: skip


def training_step(run: CellRun) -> tuple[Outcome, Columns]:
    outcome, found = _timed(run, "training_step")
    if outcome.status != Status.OK:
        return outcome, {}
    also = ("notes", "timed_tokens", "large_memory_kept")
    columns = {name: found[name] for name in also if name in found} | {"train": found["timed"]}
    arms = {"": "method", "base_": BASELINE}
    if run.cell.method["name"] == BASELINE:
        del arms["base_"]
    for prefix, arm in arms.items():
        peak = run.child("measure.training_step", arm=arm)
        if peak.status != Status.OK:
            return outcome, columns | {"train_reason": f"peak memory of {arm}: {peak.status}"}
        columns |= {f"{prefix}{name}": value for name, value in peak.result.items()}
    own, base = columns.get("train_peak_bytes"), columns.get("base_train_peak_bytes")
    if own is not None and base:
        columns["train_mem_ratio"] = own / base
    return outcome, columns


def cells_to_train(cell: Cell) -> list[Cell]:
    """The cells whose weights must be trained by a recipe before this one is measured: its own,
    and vanilla's where their answers are compared."""
    if cell.recipe is None or cell.plan.training:
        return []
    compares = cell.plan.quality and cell.method["name"] != BASELINE
    return [cell.trained(), *([cell.baseline()] if compares else [])]


def train_missing(cell: Cell, progress: Progress | None) -> tuple[Outcome | None, Cell]:
    """Train the weights that the cell needs and that aren't there. Returns the outcome of a
    training that failed, and the cell on its trained weights."""
    needed = cells_to_train(cell)
    for other in needed:
        if weights.card(Path(other.model["path"])) is None:
            outcome = train(other, progress)
            if outcome.status != Status.OK:
                return outcome, cell
    return None, cell.trained() if needed else cell


def train(cell: Cell, progress: Progress | None) -> Outcome:
    """Train the cell's weights, or continue; the result is the checkpoint's card."""
    run = CellRun(cell, Path(), TRAINING_DEADLINE_S, progress, MALLOC_WITHOUT_CACHE)
    return run.child("train.trainer")
