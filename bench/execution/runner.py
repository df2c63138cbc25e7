"""From a cell to its row: look for the row in the store, run the stages, derive columns, store."""

from __future__ import annotations

import contextlib
import importlib.abc
import json
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from bench.errors import RequestError
from bench.execution import cell_group, cell_run, spawn, stages
from bench.execution.cell_group import Columns
from bench.execution.cell_run import CellRun
from bench.execution.supervisor import Outcome, Progress
from bench.host import gpu, host, linux
from bench.models import auto
from bench.request import code_hash, compose, plugins, weights
from bench.request.cell import Cell
from bench.request.weights import training_of
from bench.rows.columns import SCHEMA_VERSION, Row
from bench.rows.comparison import TO_VANILLA
from bench.rows.store import Store
from bench.status import Status, WeightsProtocol

FINISHED = frozenset(Status) - {Status.ERROR, Status.SKIPPED, Status.RETIRED}
"""A cell with a row of such a status isn't run again: the status is a result."""
PROTOCOL = "1"
REQUESTED = ("force", "deadline_s", "experiment", "share_prefill")
"""Arguments of `run` that a request has under the same names."""
LEAST_FREE = 0.5
"""Share of the cores that a cell's threads need. If other processes leave fewer, there is no
verdict."""


class _NoPandas(importlib.abc.MetaPathFinder):
    """Hides pandas from pyarrow, which would import it in each process that stores a row, to look
    for pandas types among the values: this takes a second for each cell."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


class ReturnedRow(Row, total=False):
    """A stored row; `reused`: it comes from an earlier run."""

    reused: bool


def run(
    cell: Cell,
    results: Path | str = "results/runs",
    *,
    force: bool = False,
    deadline_s: float = 3600.0,
    progress: Progress | None = None,
    experiment: str | None = None,
    origin: host.Origin | None = None,
    share_prefill: bool = True,
    timed: Columns | None = None,
) -> ReturnedRow:
    """Run one cell and store its row; a finished cell's row is returned unchanged. While another
    process runs the cell into the same folder, wait for its row.

    A row is stored even if a child fails; its `status` reports how. `experiment` is the name of the
    experiment that requested the cell, `origin` how it was started. `share_prefill`: see
    `bench.execution.cell_group`; `timed`: see CellRun. Raises RequestError for a usage error,
    StoreError when the row can't be written, JobPreempted when Slurm ends the cell's job."""
    cell_group.check_in_turns(cell)
    results = Path(results).expanduser().resolve()
    shards = Store(results).shards()
    finished, attempts = _stored(results, cell, force)
    if finished:
        return finished
    check_writable(results)

    def report(line: str) -> None:
        if progress:
            progress(line, 0, 0)
        else:
            print(line, file=sys.stderr)

    with cell_run.lock_held(results / f".{cell.key}.lock", report):
        if Store(results).shards() != shards:  # another run may have ended meanwhile
            finished, attempts = _stored(results, cell, force)
        if finished:
            return finished
        run = CellRun(cell, results, deadline_s, progress, share_prefill=share_prefill, timed=timed)
        return _run(run, attempts, experiment, origin or host.Origin())


def _stored(results: Path, cell: Cell, force: bool) -> tuple[ReturnedRow | None, int]:
    """The cell's finished row, unless a new one is forced, and the number of its last attempt."""
    store = Store(results)
    row, attempts = spawn.run_in_fork(lambda: (store.find(cell.key), store.last_attempt(cell.key)))
    if force or row is None or row["status"] not in FINISHED:
        return None, attempts
    return cast(ReturnedRow, row | {"reused": True}), attempts


def _run(run: CellRun, attempts: int, experiment: str | None, origin: host.Origin) -> ReturnedRow:
    """Measure the cell after this number of earlier attempts, and store its row."""
    began = time.monotonic_ns()
    since = spawn.counters()
    neighbours = origin.neighbours()
    cell, columns = _measure(run)
    columns = host.fingerprint(cell.threads, cell.device["kind"], since, spawn.counters()) | columns
    neighbours |= origin.neighbours()
    columns["ran_beside"] = ", ".join(sorted(neighbours)) or "nothing known"
    noise = [columns["noise_reason"], gpu.noise(columns), *columns.pop("notes", ())]
    if neighbours and cell.plan.timed:
        noise.append(f"next to {columns['ran_beside']}")
    columns["noise_reason"] = "; ".join(filter(None, noise)) or None
    columns["noisy"] = columns["noise_reason"] is not None
    _leave_undecided(columns, cell.threads)
    wall_ns = time.monotonic_ns() - began
    row = identity(cell, run.deadline_s, origin)
    row |= {"experiment": experiment, "wall_total_ns": wall_ns}
    row["attempt"] += attempts

    def store_row() -> Row:
        from bench.rows import derived_columns

        derived = derived_columns.derive({**row, **columns}, cell, run.results)
        sys.meta_path.insert(0, _NoPandas())
        Store(run.results).append([derived])
        return derived

    return {**spawn.run_in_fork(store_row), "reused": False}


def _measure(run: CellRun) -> tuple[Cell, Columns]:
    """Run the cell's stages until one fails. Returns the cell with the weights on which it was
    measured, and the columns that the stages give."""
    failed, cell = stages.train_missing(run.cell, run.progress)
    if failed:
        return cell, _ended(failed)
    run = replace(run, cell=cell)
    began = time.monotonic_ns()
    if run.timed is None and (failed := cell_run.load_parent(run)):
        return cell, _ended(failed)
    load_ns = time.monotonic_ns() - began
    columns: Columns = {"notes": []}
    for stage in stages.planned(cell):
        outcome, stage_columns = stage(run)
        run = replace(run, scored=stage_columns.pop("scored", run.scored))
        columns["notes"] += stage_columns.pop("notes", ())
        if "quality_load_ns" in stage_columns:
            stage_columns["quality_load_ns"] += load_ns
        columns |= stage_columns | _ended(outcome)
        if outcome.status != Status.OK:
            break
    return cell, columns


def _leave_undecided(columns: Columns, threads: int) -> None:
    """Add to the timed samples of a busy machine a reason for having no verdict."""
    cores, others = len(linux.usable_cpus()), columns.get("others_pct") or 0.0
    free = cores * (1 - others / 100)
    if free >= threads * LEAST_FREE:
        return
    for name in TO_VANILLA:
        if columns.get(name, {}).get("base_samples_ns"):
            reason = f"busy machine: other processes took {others:.0f} % of the cores"
            columns[name]["reason"] = columns[name].get("reason") or reason


def check_writable(results: Path) -> None:
    """Raises RequestError when no row can be stored there; called before the run."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=results).close()
    except OSError as error:
        raise unwritable(results, error) from error


def unwritable(results: Path, error: OSError) -> RequestError:
    return RequestError(
        f"results={results} can't be written: {error.strerror}; give another folder"
    )


def store_unmeasured(cell: Cell, results: Path, status: str, detail: str, **columns: Any) -> Row:
    """Store the row of a cell whose whole process was killed, the supervisor included."""
    row = unmeasured_row(cell, status, detail, **{"status_stage": "start", **columns})
    Store(results).append([row])
    return row


def unmeasured_row(cell: Cell, status: str, detail: str, **columns: Any) -> Row:
    """The row of a cell for which nothing was measured."""
    columns |= {"status": Status(status), "status_detail": detail}
    return identity(cell) | cast(Row, columns)


def identity(cell: Cell, deadline_s: float | None = None, origin: host.Origin | None = None) -> Row:
    """The columns that are known before anything is measured."""
    columns: Row = {
        "schema_version": SCHEMA_VERSION,
        "row_id": uuid.uuid4().hex,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "protocol": PROTOCOL,
        "cell_key": cell.key,
        "cell": cell.stored_json(),
        "command": None,
        "method_version": code_hash.code_sha256(*plugins.targets(cell.method))[:12],
        "task_version": str(cell.task["version"]),
        "truncation_side": cell.task.get("truncation_side", "right"),
        "status": Status.OK,
    }
    with contextlib.suppress(RequestError):  # a cell not composed from the files in conf/
        columns["command"] = compose.command_of(cell, deadline_s)
    return (
        columns
        | _checkpoint_limits(cell)
        | cast(Row, cell.columns)
        | _weights(cell)
        | cast(Row, (origin or host.Origin()).columns())
    )


def _checkpoint_limits(cell: Cell) -> Row:
    """Positions that the cell exceeds and settings of generation that it ignores, if the
    checkpoint's files contain them."""
    path, config = Path(cell.model["path"]), cell.model.get("config")
    columns: Row = {}
    with contextlib.suppress(ValueError):
        if (learned := auto.learned_positions(path, config)) and learned < cell.length:
            columns["positions_learned"] = learned
        longest = cell.length + (cell.new_tokens or 0)
        if (rotary := auto.rotary_positions(path, config)) and rotary < longest:
            columns["positions_rotary"] = rotary
    if cell.plan.quality and not config:
        columns["generation_ignored"] = auto.ignored_generation(path, cell.model["family"])
    return columns


def _weights(cell: Cell) -> Row:
    """The columns that describe how the weights were made."""
    training = training_of(cell.model)
    columns: Row = {
        "weights_protocol": cast("WeightsProtocol | None", cell.protocol),
        "training": json.dumps(training, sort_keys=True) if training else None,
    }
    if cell.recipe is None:
        return columns
    card = weights.card(Path(cell.model["path"])) or {}
    trained: Row = {
        "recipe": cell.recipe["name"],
        "recipe_params": json.dumps(dict(cell.recipe), sort_keys=True),
        "checkpoint_key": cell.model["training"],
        "train_steps": card.get("best_step"),
        "train_wall_ns": card.get("wall_ns"),
        "train_dev_score": card.get("dev_score"),
    }
    return columns | trained


def _ended(outcome: Outcome) -> Columns:
    """The columns of an outcome that isn't OK. Raises JobPreempted."""
    host.check_preempted(outcome.exit_signal)
    if outcome.status == Status.OK:
        return {}
    return {
        "status": outcome.status,
        "status_stage": outcome.stage,
        "status_detail": outcome.detail,
        "exit_signal": outcome.exit_signal,
    }
