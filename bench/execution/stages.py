"""The stages of a cell: each runs modules of bench.measure or bench.train in child processes, and
returns their outcome and the columns that they give."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from bench.execution import cell_group, outside, worker
from bench.execution.cell_group import Columns
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Outcome, Progress, Running
from bench.host import gpu
from bench.request import weights
from bench.request.cell import Cell
from bench.request.schema import BASELINE
from bench.rows.comparison import SIDES, pooled
from bench.status import Status

PREFILL_NS, DECODE_NS = "quality_prefill_ns", "quality_decode_ns"
TUNABLES = "GLIBC_TUNABLES"
MALLOC_WITHOUT_CACHE = {
    TUNABLES: ":".join(filter(None, (os.environ.get(TUNABLES), "glibc.malloc.tcache_count=0")))
}
"""For a training: malloc doesn't join small freed blocks in its cache with their neighbours, and
since each step has blocks of other sizes, the holes become too small for those of the next step.
After 220 steps vanilla's ListOps held 3.4 GB with the cache and 1.8 GB without it; after 4,900
steps, 12.5 GB with it."""
TRAINING_DEADLINE_S = 14 * 24 * 3600.0
"""Practically no deadline: a stopped training continues from its last checkpoint."""
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
    answer in the same batches."""
    times = cell_group.answer_in_batches(run) if run.share_prefill else Counter[str]()
    outcome = predicted(run, "quality")
    found = outcome.result
    times.update(quality_ns=outcome.wall_ns)
    times.update({name: found.get(name) or 0 for name in (PREFILL_NS, DECODE_NS)})
    if outcome.status == Status.OK and not run.cell.is_baseline:
        base = predicted(replace(run, cell=run.cell.baseline()), "quality of vanilla")
        if base.status != Status.OK:
            return base, {}
        times.update(quality_ns=base.wall_ns, base_quality_ns=base.wall_ns)
    return outcome, found | times | {PREFILL_NS: times[PREFILL_NS] or None}


def predicted(run: CellRun, stage: str) -> Outcome:
    """Have a child answer the rows without a stored prediction, and store its answers."""
    return cell_group.answered(run, [run.cell], "measure.quality", stage=stage)


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
    """Times of tokens, measured in turns with vanilla's, unless they were measured together with
    those of other cells."""
    if run.timed is not None:
        return Outcome(Status.OK, run.cell.measure), dict(run.timed)
    outcome, found = cell_group.time_in_turns(run, [run.cell])
    return outcome, found.get(run.cell.key, {})


def engine(run: CellRun) -> tuple[Outcome, Columns]:
    """Times of an engine's tokens, and the peak memory of its process and of vanilla's."""
    outcome, columns = _in_processes(run, "engine")
    if outcome.status != Status.OK:
        return outcome, {}
    columns["lat"] = columns.pop("timed")
    columns["mem_reason"] = "an engine takes memory before it reads: see whole_peak_bytes"
    peaks = run.child("measure.engine", peak=True)
    if peaks.status == Status.OK:
        columns |= peaks.result
    if not run.cell.baseline().is_engine:
        base = run.child("measure.memory", arm=BASELINE)
        if base.status == Status.OK:
            columns |= cell_group.of_base(base.result)
    return outcome, columns


def _timed(run: CellRun, name: str) -> tuple[Outcome, Columns]:
    """Pairs timed in processes that keep the memory they free. If they run out of memory, the pairs
    are timed again in processes that keep large blocks by size, with `large_memory_kept` True."""
    outcome, columns = _in_processes(run, name)
    out_of_memory = Status.OOM_HOST in (outcome.status, columns.get("baseline_status"))
    if not out_of_memory or not worker.kept_blocks_library():
        return outcome, columns
    outcome, columns = _in_processes(run, name, by_size=True)
    return outcome, columns | {"large_memory_kept": True}


def _in_processes(run: CellRun, name: str, by_size: bool = False) -> tuple[Outcome, Columns]:
    """Pairs timed in several processes, one after the other: the first decides the number of pairs
    of each. When one fails, so does the stage: the earlier samples can't be trusted."""
    module, rounds = f"measure.{name}", dict[int, dict[str, Any]]()
    scored = run.scored if name == "latency" else None

    def time_outside(method: Running, message: Mapping[str, Any]) -> None:
        vanilla = run.started(module, by_size=by_size, outside=True)
        rounds[message["process"]] = outside.time_both(message, method, vanilla, scored)

    handlers = {"outside": time_outside}
    first = run.child(module, handlers, by_size=by_size, scored=scored)
    columns = dict(first.result)
    shares, parts, wall_ns = columns.pop("shares", ()), [columns], first.wall_ns

    def report(stage: str, *position: Any) -> None:
        # A further process's loading and warm-up are not shown.
        if run.progress and stage == name:
            run.progress(stage, *position)

    for share in shares:
        further = replace(run, progress=report).child(
            module, handlers, by_size=by_size, share=share, scored=scored
        )
        wall_ns += further.wall_ns
        if further.status != Status.OK:
            where = f"in process {share['process'] + 1} of {len(shares) + 1}"
            detail = f"{further.detail or further.status}\n{where}"
            return replace(further, detail=detail, wall_ns=wall_ns), {}
        parts.append(further.result)
    outcome = replace(first, wall_ns=wall_ns)
    if outcome.status != Status.OK:
        return outcome, columns
    if faults := [found["fault"] for found in rounds.values() if "fault" in found]:
        detail = f"IntegrityError: integrity check failed: {faults[0]}"
        return replace(outcome, status=Status.ERROR, detail=detail, stage=name), {}
    answers = [part.pop("answers") for part in parts if "answers" in part]
    notes = chain.from_iterable(part.get("notes", ()) for part in parts)
    columns = _pooled(parts) if shares else columns
    columns["notes"] = list(dict.fromkeys(notes))
    columns["timed"] |= outside.fields(rounds) | outside.answers("timed", answers)
    return outcome, columns


def _pooled(parts: Sequence[Columns]) -> Columns:
    """The columns of the first process with the samples of all, and the process of each pair."""
    columns = dict(parts[0])
    walls = [part.get("wall_samples_ns") or [] for part in parts]
    columns["wall_samples_ns"] = list(chain.from_iterable(walls)) if all(walls) else None
    for arm in filter(columns.get, ("timed", "engine", "tpot")):
        timed = [part[arm] for part in parts if part.get(arm, {}).get("samples_ns")]
        if len(timed) < len(parts):
            columns[arm] = {field: x for field, x in columns[arm].items() if field not in SIDES}
            continue
        columns[arm] = pooled(timed)
    left_out = (part["timed"].get("waits_left_out") for part in parts)
    columns["timed"]["waits_left_out"] = any(left_out) or None
    for name in filter(columns.__contains__, PAGE_FAULTS):
        columns[name] = round(statistics.mean(part[name] for part in parts))
    return columns | gpu.throttled(parts)


def memory(run: CellRun) -> tuple[Outcome, Columns]:
    """Peak memory of the method and of vanilla, each in a separate process."""
    outcome = run.child("measure.memory", arm="method")
    if outcome.status != Status.OK:
        return outcome, {}
    columns = dict(outcome.result)
    if run.cell.is_baseline:
        return outcome, columns
    base = run.child("measure.memory", arm=BASELINE)
    if base.status != Status.OK:
        reason = f"vanilla ended with {base.status}"
        return outcome, columns | {"mem_reason": reason, "baseline_status": base.status}
    return outcome, columns | cell_group.of_base(base.result)


def max_length(run: CellRun) -> tuple[Outcome, Columns]:
    """The longest input for which one forward or, if the measure is of training, one step fits in
    memory, to a sixteenth: the length is doubled until it fails, then bisected."""
    fits, fails, end = 0, None, None
    outcome = Outcome(Status.ERROR, "probe")
    length, silent = run.cell.length, replace(run, progress=None)
    module = "measure.training_step" if run.cell.plan.training else "measure.memory"
    while length <= MAX_PROBED_LENGTH:
        if run.progress:
            run.progress(f"{length:,} tokens", 0, 0)
        outcome = silent.child(module, length=length)
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
    return replace(outcome, status=Status.OK), {"max_length_fit": fits, "max_length_end": end}


def training_step(run: CellRun) -> tuple[Outcome, Columns]:
    outcome, found = _timed(run, "training_step")
    if outcome.status != Status.OK:
        return outcome, {}
    also = ("notes", "timed_tokens", "large_memory_kept")
    columns = {name: found[name] for name in also if name in found} | {"train": found["timed"]}
    for arm in ("method",) if run.cell.is_baseline else ("method", BASELINE):
        peak = run.child("measure.training_step", arm=arm)
        if peak.status != Status.OK:
            return outcome, columns | {"train_reason": f"peak memory of {arm}: {peak.status}"}
        columns |= peak.result if arm == "method" else cell_group.of_base(peak.result)
    return outcome, columns


def cells_to_train(cell: Cell) -> list[Cell]:
    """The cells whose weights must be trained by a recipe before this one is measured: the cell
    itself, and vanilla's if their answers are compared."""
    if cell.recipe is None or cell.plan.training:
        return []
    compares = cell.plan.quality and not cell.is_baseline
    return [cell.trained(), *([cell.baseline()] if compares else [])]


def train_missing(cell: Cell, progress: Progress | None) -> tuple[Outcome | None, Cell]:
    """Train the missing weights of the cell. Returns the outcome of a failed training, or None, and
    the cell with its trained weights."""
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
