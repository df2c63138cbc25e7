"""Rows for cells whose job was killed with all that was in it: what Slurm's accounts say of them.

The sweep's own process writes them at its end. Where it is gone (Ctrl-C leaves the jobs in the
queue), `bench status` does, and the next sweep into the same folder before it plans.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Container
from pathlib import Path

from bench import config, launchers, runner, slurm
from bench.cell import Cell, load
from bench.errors import RequestError
from bench.plan import finished, measured
from bench.record import Note, Record, ended, sweeps
from bench.resolve import resolved
from bench.shards import StoreError


def left_behind(results: Path) -> int:
    """Rows for the lost cells of a folder's sweeps that no process looks after any more; gives
    their number. Cells that have been measured since are passed over. Raises slurm.SlurmError."""
    count = 0
    done: Container[str] | None = None
    for record in sweeps(results):
        content = record.content()
        if content["engine"] != launchers.SLURM or "fixed" not in content or alive(content):
            continue
        open_cells = [i for i in range(len(content["cells"])) if not ended(record.read(i))]
        if open_cells and done is None:
            done = finished(row for _, row in measured(results))
        among = {i for i in open_cells if content["cells"][i]["sketch"] not in (done or ())}
        count += lost(record, wait=False, among=among) if among else 0
    return count


def alive(content: Note) -> bool:
    """Whether the process that began a sweep lives, as far as this machine can see."""
    here = content["host"] == socket.gethostname()
    return here and Path(f"/proc/{content['pid']}").exists()


def lost(record: Record, wait: bool = True, among: Container[int] | None = None) -> int:
    """Note the end of each lost cell of a sweep and store its row, if Slurm's word says anything of
    the cell; gives the number of rows. `wait`: until the accounts have caught up with the queue.
    Raises slurm.SlurmError."""
    content = record.content()
    cells, rows = content["cells"], 0
    for i, (job, log) in slurm.lost(record, len(cells), content["started"], wait).items():
        if among is not None and i not in among:
            continue
        status, note = slurm.status_of(job, log), record.read(i)
        killed = "killed for memory" if status == "oom_host" else "ended with all that was in it"
        detail = f"job {job.id} on {job.node or 'no node'} {killed} ({job.state})\n{log}".strip()
        row_id = None
        if status:
            more = {**slurm.columns(job), "status_stage": note.get("stage", ["start"])[0]}
            with contextlib.suppress(RequestError, StoreError):
                cell = _cell(content, i)
                results = record.folder.parent.parent
                row_id = runner.lost(cell, results, status, detail, **more)["row_id"]
                rows += 1
        note = {"slurm_job_id": job.id, "node": job.node, **note}
        took = note.get("at", 0.0) - note.get("since", note.get("at", 0.0))
        over = {"words": " ".join(cells[i]["words"]) or "the cell", "code": 1, "reason": detail,
                "status": status or job.state.lower(), "row_id": row_id, "figures": "",
                "seconds": took}  # fmt: skip
        record.note(i, **{**note, "state": "ended", **over})
    return rows


def _cell(content: Note, index: int) -> Cell:
    """The cell that a sweep planned: not Cell.of, for its node had the device, this machine needn't
    have it. Raises RequestError."""
    planned = content["cells"][index]
    words = [word for word in (*content["fixed"], *planned["words"])
             if not word.lstrip("+~").startswith(("launcher=", "hydra."))]  # fmt: skip
    request = resolved(config.composed(config.checked(words))[0], words)
    request["threads"] = request["threads"] or planned["threads"]
    rows = load(request)
    return Cell.with_rows(request, rows.split, rows.sha256)
