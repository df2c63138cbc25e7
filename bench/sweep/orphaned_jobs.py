"""Rows for cells whose Slurm job was killed together with its supervisor, from Slurm's accounts.

The sweep's own process writes them at its end. Where it is gone (Ctrl-C leaves the jobs in the
queue), `bench status` does, and the next sweep into the same folder before it plans.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Container
from dataclasses import asdict
from pathlib import Path

from bench.errors import RequestError
from bench.execution import runner
from bench.request.cell import Cell
from bench.rows.shards import StoreError
from bench.status import Status
from bench.sweep import launchers, slurm
from bench.sweep.job import write_end
from bench.sweep.plan import finished, measured
from bench.sweep.state import CellOutcome, Note, Record, has_ended, sweeps


def settle(results: Path) -> int:
    """Stores rows for the lost cells of a folder's sweeps whose process is gone, except for cells
    that have been measured since. Returns the number of rows. An error of Slurm is printed."""
    count = 0
    done: Container[str] | None = None
    for record in sweeps(results):
        content = record.content()
        if content["engine"] != launchers.SLURM or is_alive(content):
            continue
        not_ended = [i for i in range(len(content["cells"])) if not has_ended(record.read_note(i))]
        if not_ended and done is None:
            done = finished(row for _, row in measured(results))
        missing = {i for i in not_ended if content["cells"][i]["plan_key"] not in (done or ())}
        count += settle_record(record, wait=False, among=missing) if missing else 0
    return count


def is_alive(content: Note) -> bool:
    """Whether the process that began a sweep is alive, as far as this machine knows."""
    here = content["host"] == socket.gethostname()
    return here and Path(f"/proc/{content['pid']}").exists()


def settle_record(record: Record, wait: bool = True, among: Container[int] | None = None) -> int:
    """Writes how each lost cell of a sweep ended, and stores its row where Slurm's state of the job
    is a result of the cell. Returns the number of rows. `wait`: until the accounts have caught up
    with the queue. An error of Slurm is printed."""
    content = record.content()
    cells, n_rows = content["cells"], 0
    try:
        lost = slurm.lost(record, len(cells), content["started"], wait)
    except slurm.SlurmError as error:
        print(f"bench: cells without a row stay to do: {error}", file=sys.stderr)
        return 0
    for i, (job, log) in lost.items():
        if among is not None and i not in among:
            continue
        status, note = slurm.status_of(job, log), record.read_note(i)
        killed = "killed for memory" if status == Status.OOM_HOST else "ended without a result"
        detail = f"job {job.id} on {job.node or 'no node'} {killed} ({job.state})\n{log}".strip()
        row_id = None
        if status:
            more = {"launcher": "slurm", "slurm_job_id": job.id, "node": job.node or None,
                    "status_stage": note.get("stage", ["start"])[0]}  # fmt: skip
            with contextlib.suppress(RequestError, StoreError):
                results = record.folder.parent.parent
                cell = Cell.from_json(cells[i]["cell"]).hashed()
                row_id = runner.store_unmeasured(cell, results, status, detail, **more)["row_id"]
                n_rows += 1
        note = {"slurm_job_id": job.id, "node": job.node, **note}
        seconds = note.get("at", 0.0) - note.get("since", note.get("at", 0.0))
        outcome = CellOutcome(1, status or job.state.lower(), detail, row_id, seconds=seconds)
        record.write_note(i, **{**note, "state": "ended", **asdict(outcome)})
        write_end(record.events, i, outcome)
    return n_rows
