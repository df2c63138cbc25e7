"""`bench run -m`: a plan's open cells through Hydra's sweeper and launcher, one row each.

The plan is made before anything starts, so that a wrong request is told at once and a finished cell
costs nothing. Each cell notes in the sweep's record how far it is, wherever it runs.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench import budget, config, launchers, place, plugins, schema, settle, slurm, spans
from bench.errors import RequestError
from bench.live import Display, Watch
from bench.plan import Plan, Planned, plan
from bench.record import Note, Record, ended
from bench.resolve import resolved
from bench.runner import writable
from bench.shards import StoreError
from bench.summary import Ended, figures, heading, left_out, outcome, parallel, say

MOST_ARRAY = 1000
"""Jobs of one array: one less than Slurm's own default of MaxArraySize."""
UNTIL_KILLED_S = 600.0
WATCH_S = {"joblib": 1.0, launchers.SLURM: 3.0}


@dataclass
class _Sweep:
    """What the sweeper, the launcher and a cell in this process share."""

    plan: Plan
    record: Record
    display: Display
    refused: str | None = None


_current: _Sweep | None = None


def run_sweep(overrides: Sequence[str]) -> int:
    """Run what isn't done of a request's cells; one that fails doesn't stop the rest. Returns 2
    when a request was wrong, 1 when a run failed, else 0."""
    made = plan(overrides)
    asks = made.engine == launchers.SLURM and made.open
    # Jobs of an earlier sweep may have died when nobody looked.
    if asks and _tell_unsettled(lambda: settle.left_behind(made.results)):
        made = plan(overrides)
    print(heading(made))
    if made.warning:
        print(f"bench: {made.warning}", file=sys.stderr)
    results: list[Ended] = []
    command = f"bench run -m {' '.join(overrides)}"
    if made.open:
        results = _run(made, command)
    _store_left_out(made, results, command)
    say(made, results)
    before = [p for p in made.of("done") if p.reason]
    refused = 2 if made.of("refused") else 0
    return max(refused, 1 if before else 0, *(each.code for each in results), 0)


def _tell_unsettled(settled: Callable[[], int]) -> int:
    try:
        return settled()
    except slurm.SlurmError as error:
        print(f"bench: cells without a row stay to do: {error}", file=sys.stderr)
        return 0


def _store_left_out(made: Plan, results: list[Ended], command: str) -> None:
    """Rows that say what wasn't measured and why."""
    if unmeasured := left_out(made, results):
        here = made.engine != launchers.SLURM
        spent = str(made.grid.base["budget"])
        try:
            budget.store_rows(unmeasured, made.results, spent, command, here)
        except (RequestError, StoreError) as error:
            print(f"bench: no rows for what the budget left out: {error}", file=sys.stderr)


def _run(made: Plan, command: str) -> list[Ended]:
    global _current
    writable(made.results)
    record = Record.begin(made, command)
    timed = any(p.cell and p.cell.plan.speed for p in made.open)
    words = [*made.fixed, *made.open[0].words, f"hydra.sweep.dir='{record.folder}'"]
    if made.engine == launchers.SLURM:
        launcher = made.grid.hydra["launcher"]
        words += launchers.slurm_overrides(launcher, record.queue_name, timed)
    display = Display(made.open, parallel(made))
    os.environ[place.LAUNCHER] = made.launcher_name
    if made.engine == "joblib" and parallel(made) != 1:
        os.environ[place.BESIDE] = f"n_jobs={made.grid.base['n_jobs']}"
    sweep = _current = _Sweep(made, record, display)
    try:
        with display:
            _hydra(words)
    except KeyboardInterrupt:
        _say_interrupted(made, record)
        raise
    finally:
        _current = None
        for name in (place.LAUNCHER, place.BESIDE, place.RUN_ID):
            os.environ.pop(name, None)
    if sweep.refused:
        raise RequestError(sweep.refused)
    return [outcome(p, record.read(i)) for i, p in enumerate(made.open)]


def _hydra(words: Sequence[str]) -> None:
    import hydra

    schema.register()
    sys.argv = ["bench", "-m", *words]
    hydra.main(version_base="1.3", config_path=str(plugins.ROOT / "conf"), config_name="config")(
        run_job
    )()


def launch_planned(launcher: Any) -> None:
    """What the sweeper does: give the launcher the open cells, until each has ended or can't."""
    sweep = _current
    assert sweep is not None, "bench run -m starts a sweep"
    jobs = [[*sweep.plan.fixed, *p.words, *_settled(p)] for p in sweep.plan.open]
    every_s = WATCH_S.get(sweep.plan.engine)
    if every_s is None:
        _one_by_one(launcher, jobs, sweep)
        return
    with Watch(sweep.record, sweep.display, every_s):
        try:
            if sweep.plan.engine == launchers.SLURM:
                slurm.queued(sweep.record.queue_name)  # raises where there is no cluster
                for first in range(0, len(jobs), MOST_ARRAY):
                    _through_slurm(launcher, jobs[first : first + MOST_ARRAY], first, sweep)
                _tell_unsettled(lambda: settle.lost(sweep.record))
            else:
                _through_pool(launcher, jobs, sweep)
        except (_Refused, slurm.SlurmError) as error:
            # Hydra would print it with its own advice.
            sweep.refused = str(error)


def _settled(planned: Planned) -> list[str]:
    """What the plan decided for a cell, so that it is the same cell on another machine."""
    assert planned.cell is not None
    return [] if planned.request["threads"] else [f"threads={planned.cell.threads}"]


def _one_by_one(launcher: Any, jobs: list[list[str]], sweep: _Sweep) -> None:
    """In this process. What Hydra itself can't compose costs no other cell its turn."""
    for i, job in enumerate(jobs):
        try:
            launcher.launch([job], initial_job_idx=i)
        except Exception as error:
            line = next(iter(str(error).splitlines()), type(error).__name__)
            _over(sweep.record, i, Ended(sweep.plan.open[i].title, 2, "refused", line), {})


def _through_slurm(launcher: Any, jobs: list[list[str]], first: int, sweep: _Sweep) -> None:
    name = sweep.record.queue_name
    began = sweep.record.content()["started"]
    before = set(slurm.accounted(name, began)) if first else set()
    try:
        launcher.launch(jobs, initial_job_idx=first)
    except Exception as error:
        # It raises when a job died, and when nothing was submitted at all.
        if not slurm.queued(name) and before >= set(slurm.accounted(name, began)):
            lines = [line for line in str(error).splitlines() if line.strip()] or ["no reason"]
            why = next((line for line in lines if "sbatch:" in line), lines[-1])
            raise _Refused(f"Slurm takes no job: {why.strip()}") from error
    slurm.wait(name)


class _Refused(RuntimeError):
    """The launcher took nothing; one line."""


def _through_pool(launcher: Any, jobs: list[list[str]], sweep: _Sweep) -> None:
    """Workers of this machine. When one dies the pool does; what hasn't begun goes to a new one."""
    record = sweep.record
    left = list(range(len(jobs)))
    while left:
        try:
            for start, part in _runs(left):
                launcher.launch([jobs[i] for i in part], initial_job_idx=start)
            why = "its worker ended without a word"
        except Exception as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
        for i in left:
            note = record.read(i)
            if note and not ended(note):
                words = sweep.plan.open[i].title
                _over(record, i, Ended(words, 1, "error", f"worker lost: {why}"), note)
        still = [i for i in left if not record.read(i)]
        if len(still) == len(left):
            raise _Refused(f"no worker starts: {why}")
        left = still


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """Stretches of numbers that follow one another: a launcher numbers its jobs from a first."""
    part: list[int] = []
    for number in numbers:
        if part and number != part[-1] + 1:
            yield part[0], part
            part = []
        part.append(number)
    if part:
        yield part[0], part


def run_job(composed: Any) -> int:
    """One cell, wherever the launcher put it: in this process, in a worker, on a node. How it went
    is in the sweep's record. Returns its exit code."""
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    record, index = Record(Path(hydra.sweep.dir)), int(hydra.job.num)
    content = record.content()
    os.environ.setdefault(place.LAUNCHER, content["launcher"])
    os.environ[place.RUN_ID] = record.id
    words = " ".join(content["cells"][index]["words"])
    here = {"since": time.time(), "pid": os.getpid()}
    here |= {k: v for k, v in place.columns().items() if k in ("slurm_job_id", "node") and v}
    if why := budget.left_out(record, content, index):
        return _over(record, index, Ended(words, 0, "over budget", why), here)

    def told(stage: str, done: int, total: int, note: str = "") -> None:
        _tell(record, index, {**here, "state": "running", "stage": [stage, done, total]})

    told("starts", 0, 0)
    began = time.monotonic()
    command = f"bench run {' '.join(hydra.overrides.task)}"
    try:
        request = resolved(config.plain(composed), hydra.overrides.task)
        over = run_cell(request, words, command, told)
    except place.Cut:
        told("is ended", 0, 0)
        # To end well would be to tell Slurm that nothing is left to do.
        time.sleep(UNTIL_KILLED_S)
        return 1
    return _over(record, index, replace(over, seconds=time.monotonic() - began), here)


def run_cell(
    request: dict[str, Any], words: str, command: str, told: Callable[[str, int, int], None]
) -> Ended:
    """Run one composed request. Whatever is wrong with it is told, not raised."""
    from bench import runner
    from bench.cell import Cell
    from bench.cli import exit_code

    results = Path(request["results"]).expanduser().resolve()
    try:
        cell = Cell.of(request)
        row = runner.run(
            cell, results, force=request["force"], deadline_s=request["deadline_s"],
            progress=told, command=command,
        )  # fmt: skip
    except RequestError as error:
        return Ended(words, 2, "refused", str(error))
    except StoreError as error:
        return Ended(words, 1, "not stored", str(error))
    except place.Cut:
        raise
    except Exception as error:
        # By its name, for submitit is an extra: a job's last time limit, after all its requeues.
        if type(error).__name__ == "UncompletedJobError":
            detail = f"the job's time limit: {error}"
            row = runner.lost(cell, results, "timeout", detail, command=command)
            return Ended(words, 1, "timeout", detail, row["row_id"])
        return Ended(words, 1, "error", f"{type(error).__name__}: {error}")
    return Ended(
        words, exit_code(row), row["status"], row.get("status_detail") or "", row["row_id"],
        figures(row),
    )  # fmt: skip


def _over(record: Record, index: int, over: Ended, here: Note) -> int:
    _tell(record, index, {**here, "state": "ended", **asdict(over)})
    return over.code


def _tell(record: Record, index: int, note: Note) -> None:
    # A full disk must not cost the row, which may still find room.
    with contextlib.suppress(OSError):
        record.note(index, **note)
    if _current is not None and _current.plan.engine not in WATCH_S:
        _current.display.tell(index, {"at": time.time(), **note})


def _say_interrupted(made: Plan, record: Record) -> None:
    over = sum(ended(record.read(i)) for i in range(len(made.open)))
    print(f"\n{over} of {spans.cells(len(made.open))} ended", file=sys.stderr)
    if made.engine == launchers.SLURM:
        print(
            "its jobs stay in the queue: bench status shows them, "
            f"bench status --cancel {record.id} takes them out", file=sys.stderr,
        )  # fmt: skip
