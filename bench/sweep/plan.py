"""A sweep before it runs: its cells, what each will cost, and which are done already. No torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.execution import stages
from bench.execution.runner import FINISHED
from bench.request import protocol, values
from bench.request.cell import Cell, load_rows, task_of
from bench.request.values import check_device, check_values
from bench.status import Status
from bench.sweep import budget, events, launchers
from bench.sweep.estimate import Estimates
from bench.sweep.grid import Point, SweepGrid
from bench.sweep.planned import Plan, Planned, PlanState

COLUMNS = ["cell_key", "cell", "status", "status_detail", "row_id", "wall_total_ns",
           "train_wall_ns", "rss_base_bytes", "rss_peak_delta_bytes", "base_rss_peak_delta_bytes",
           "weights_bytes", "gpu_alloc_delta_bytes", "base_gpu_alloc_delta_bytes"]  # fmt: skip

Row = Mapping[str, Any]


def plan(overrides: Sequence[str], elsewhere: bool = False) -> Plan:
    """What `bench run -m` would do with these overrides, on this machine or `elsewhere`: on one
    whose device and cores can't be looked at. Raises RequestError."""
    grid = SweepGrid.of(overrides)
    base, launcher = grid.base, grid.hydra["launcher"]
    launcher_name = grid.hydra["runtime"]["choices"].get("launcher", "local")
    engine = launchers.engine_of(launcher_name)
    shard, budget_s = _parsed_shard(base["shard"]), budget.seconds(base["time"])
    if base["n_jobs"] == 0 or base["n_jobs"] < -1:
        raise RequestError(f"n_jobs={base['n_jobs']} is not accepted: 1 or more, or -1 for all")
    if base["n_jobs"] != 1 and engine != launchers.JOBLIB:
        raise RequestError(f"n_jobs={base['n_jobs']} is for launcher=joblib; here it is {engine}")
    results = Path(base["results"]).expanduser().resolve()
    points = _of_shard(list(grid.points()), shard)
    planner = _Planner(results, _threads(engine, launcher), bool(base["force"]))
    cells = [planner.planned(point) for point in points]
    if cells and all(planned.state == PlanState.REFUSED for planned in cells):
        raise RequestError(cells[0].reason)
    for text in {json.dumps(point.request["device"], sort_keys=True) for point in points}:
        launchers.check_gpus(engine, launcher, json.loads(text))
        if engine != launchers.SLURM and not elsewhere:
            check_device(json.loads(text))
    if engine != launchers.SLURM and not elsewhere:
        for threads in {point.request["threads"] for point in points}:
            values.check_threads(threads)
    cells = budget.ordered(cells, budget_s)
    n_timed = sum(1 for p in cells if p.runs and p.cell and (p.cell.plan.speed or p.cell.probe))
    warning = launchers.check_timed(engine, launcher, n_timed)
    return Plan(
        tuple(events.without(grid.fixed)), tuple(cells), engine, launcher_name, launcher,
        results, base["time"], budget_s, warning, events.path_of(base),
    )  # fmt: skip


def measured(results: Path) -> list[tuple[Cell, Row]]:
    """The rows of a folder that hold a cell, with their cells and the keys that plans know them
    by."""
    if not results.is_dir():
        return []
    from bench.rows.store import Store

    rows: list[tuple[Cell, Row]] = []
    for row in Store(results).rows(COLUMNS).to_pylist():
        try:
            cell = Cell.from_json(row["cell"])
            rows.append((cell, {**row, "plan_key": cell.plan_key}))
        except (TypeError, ValueError, KeyError):
            continue
    return rows


def finished(rows: Iterable[Row]) -> dict[str, Row]:
    """A cell's plan_key → the row for which it isn't run again, an ok one before any other."""
    by_key: dict[str, Row] = {}
    for row in rows:
        key, status = row["plan_key"], row["status"]
        if status == Status.OK or (status in FINISHED and key not in by_key):
            by_key[key] = row
    return by_key


class _Planner:
    """Plans points one by one; what many of them share is looked up once."""

    def __init__(self, results: Path, threads: int, force: bool) -> None:
        self.threads, self.force = threads, force
        rows = measured(results)
        self.finished = finished(row for _, row in rows)
        self.estimates = Estimates(rows)
        self.trainings: set[str] = set()
        self.cache: dict[str, Any] = {}

    def planned(self, point: Point) -> Planned:
        try:
            cell = self._cell(point.request)
        except RequestError as error:
            return Planned(point.overrides, point.request, None, PlanState.REFUSED, str(error))
        planned = Planned(point.overrides, point.request, cell, PlanState.TO_DO)
        row = None if self.force else self.finished.get(cell.plan_key)
        if row:
            unsupported = row["status"] == Status.UNSUPPORTED
            state = PlanState.UNSUPPORTED if unsupported else PlanState.DONE
            is_ok = row["status"] == Status.OK
            reason = "" if is_ok else f"{row['status']}: {row['status_detail']}"
            return replace(planned, state=state, reason=reason, row_id=row["row_id"])
        # One measurement that meets its deadline ends the cell.
        seconds = min(self.estimates.seconds(cell), 2.0 * point.request["deadline_s"])
        seconds += self._training_s(cell)
        return replace(planned, seconds=seconds, bytes=self.estimates.bytes(cell))

    def _cell(self, request: Mapping[str, Any]) -> Cell:
        """The cell of a point, without the hash of embedded rows: to generate them takes time."""
        check_values(request)
        request = {**request, "threads": request["threads"] or self.threads}
        return Cell.with_rows(request, *self._rows(request))

    def _rows(self, request: Mapping[str, Any]) -> tuple[str, str, int]:
        """The split of a request's rows, their hash, empty for embedded rows, and how many were
        left out."""
        data = request["data"]
        if data["source"] == "embedded":
            task = self._once(request["task"], lambda: task_of(request["task"]))
            split = data.get("split") or getattr(task, "default_split", None)
            if split is not None and split in getattr(task, "splits", (split,)):
                return str(split), "", 0
        read = [
            request[name]
            for name in ("task", "data", "n", "length", "seed", "question", "turns",
                         "skip_unanswerable")
        ]  # fmt: skip
        loaded = self._once(read, lambda: load_rows(request))
        return loaded.split, loaded.sha256, loaded.n_unanswerable

    def _once(self, about: Any, make: Callable[[], Any]) -> Any:
        key = json.dumps(about, sort_keys=True)
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def _training_s(self, cell: Cell) -> float:
        """Seconds of the trainings that a cell is the first of the plan to need."""
        total = 0.0
        for arm in stages.cells_to_train(cell):
            path = str(arm.model["path"])
            if path not in self.trainings and protocol.card(Path(path)) is None:
                self.trainings.add(path)
                total += self.estimates.training(arm)
        return total


def _threads(engine: str, launcher: Mapping[str, Any]) -> int:
    """CPU threads of a cell whose request gives none: on a cluster, those of its job."""
    cpus = launcher.get("cpus_per_task") if engine == launchers.SLURM else None
    return int(cpus or len(os.sched_getaffinity(0)))


def _of_shard(points: list[Point], shard: tuple[int, int] | None) -> list[Point]:
    """The points of one machine. They are dealt after a shuffle that is the same everywhere:
    in the order of the overrides one machine would get all the long inputs."""
    if shard is None:
        return points
    number, count = shard
    shuffled = sorted(
        points, key=lambda point: hashlib.sha256(" ".join(point.overrides).encode()).digest()
    )
    mine = {point.overrides for point in shuffled[number - 1 :: count]}
    return [point for point in points if point.overrides in mine]


def _parsed_shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise RequestError(f"shard={text} is not accepted: it is such as 2/8, from 1/8 to 8/8")
    return int(match[1]), int(match[2])
