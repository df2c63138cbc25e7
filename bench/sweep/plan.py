"""A sweep before it runs: its cells, their estimated costs, which of them are done already, and
their order. No torch."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.errors import RequestError
from bench.execution import cell_group, cell_run, stages
from bench.execution.runner import FINISHED
from bench.request import compose, parameters, plugins, weights
from bench.request.cell import Cell, load_rows, task_of
from bench.request.parameters import check_device, check_values
from bench.request.schema import MEASURES
from bench.status import PlanState, QualityVerdict, Status
from bench.sweep import launchers
from bench.sweep.estimate import Estimates
from bench.sweep.grid import Point, SweepGrid
from bench.units import counted, span

COLUMNS = ["cell_key", "cell", "model", "status", "status_detail", "row_id", "wall_total_ns",
           "train_wall_ns", "batched_answers", "quality_prefill_ns", "rss_base_bytes",
           "rss_peak_delta_bytes", "base_rss_peak_delta_bytes", "weights_bytes",
           "gpu_alloc_delta_bytes", "base_gpu_alloc_delta_bytes", "n_scored",
           "value_diff_detectable", "quality_verdict"]  # fmt: skip
SMALLEST, SMALLEST_JOB = 4, 16
"""Cells of a part of a group, in a worker and in a job of Slurm; in smaller parts hardly less would
be read than alone."""

REFERENCE = plugins.ROOT / "results" / "reference"
DETECTABLE_NATS = 0.02
"""Difference from vanilla in nats; a plan gives the number of texts that show it."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Planned:
    """One cell of a sweep. `overrides` distinguish it from the others, `reason` is why it is
    refused, unsupported or failed; `seconds` and `bytes` are estimates, `row_id` its existing row.

    Cells of one `group` answer together (`bench.execution.cell_group`), within the time of the
    first one; alone, a cell would take `alone_s`.
    """

    overrides: tuple[str, ...]
    request: Mapping[str, Any]
    cell: Cell | None
    state: PlanState
    reason: str = ""
    seconds: float = 0.0
    bytes: int = 0
    row_id: str | None = None
    group: int | None = None
    alone_s: float = 0.0

    @property
    def title(self) -> str:
        return " ".join(self.overrides) or "the cell"

    @property
    def runs(self) -> bool:
        """Whether a sweep starts it."""
        return self.state == PlanState.TO_DO


@dataclass(frozen=True)
class Plan:
    """`cells` are in the order in which they run. `engine` is the choice of `hydra/launcher`,
    `launcher` its settings; `time` is the time that the request gives the sweep, `events` the file
    for the events. `texts` is the number of texts that show a difference of DETECTABLE_NATS from
    vanilla, by stored rows of the planned methods that have no verdict, and the cell that needs
    most; None without such rows.
    """

    cells: tuple[Planned, ...]
    engine: str
    launcher_name: str
    launcher: Mapping[str, Any]
    results: Path
    time: str | None
    time_s: float | None
    warning: str | None = None
    events: Path | None = None
    texts: tuple[int, str] | None = None

    @property
    def open(self) -> list[Planned]:
        """The cells that a sweep starts. In one process, cells that the estimates leave out are
        considered again when their turn comes: there may be time for them."""
        considered = PlanState.OVER_BUDGET if self.engine == launchers.BASIC else None
        return [planned for planned in self.cells if planned.runs or planned.state == considered]

    def of(self, state: PlanState) -> list[Planned]:
        return [planned for planned in self.cells if planned.state == state]

    @property
    def n_parallel(self) -> int:
        """The number of cells that run at the same time."""
        if self.engine == launchers.JOBLIB:
            n = int(self.launcher["n_jobs"])
            return n if n > 0 else len(os.sched_getaffinity(0))
        if self.engine == launchers.SLURM:
            return min(int(self.launcher["array_parallelism"]), len(self.open))
        return 1

    @property
    def workers(self) -> str | None:
        """The setting by which cells run at the same time on this machine."""
        several = self.engine == launchers.JOBLIB and self.n_parallel != 1
        return f"n_jobs={self.launcher['n_jobs']}" if several else None

    @property
    def groups(self) -> list[list[Planned]]:
        """The cells that answer together."""
        found: dict[int, list[Planned]] = {}
        for planned in self.cells:
            if planned.group is not None:
                found.setdefault(planned.group, []).append(planned)
        return list(found.values())

    @property
    def jobs(self) -> list[list[int]]:
        """Numbers of the open cells that run one after the other in one process: a group, a part of
        a group if there were fewer jobs than processes, or a single cell."""
        groups: dict[tuple[int | None, int], list[int]] = {}
        for i, planned in enumerate(self.open):
            groups.setdefault((planned.group, i if planned.group is None else 0), []).append(i)
        wanted, jobs = -(-self.n_parallel // max(1, len(groups))), list[list[int]]()
        smallest = SMALLEST_JOB if self.engine == launchers.SLURM else SMALLEST
        for group in groups.values():
            parts = max(1, min(wanted, len(group) // smallest))
            jobs += [group[part::parts] for part in range(parts)]
        return jobs

    @property
    def seconds(self) -> float:
        """The estimate of the whole sweep."""
        seconds = sum(planned.seconds for planned in self.open if planned.runs)
        return seconds / max(1, self.n_parallel)


def plan(overrides: Sequence[str], elsewhere: bool = False) -> Plan:
    """The plan of `bench run -m` with these overrides, on this machine or `elsewhere`: on a machine
    whose device and cores can't be checked. Raises RequestError."""
    grid = SweepGrid.of(overrides)
    base, launcher = grid.base, grid.hydra["launcher"]
    launcher_name = grid.hydra["runtime"]["choices"].get("launcher", "local")
    engine = launchers.engine_of(launcher_name)
    time_s = parameters.seconds_of(base["time"])
    if base["n_jobs"] == 0 or base["n_jobs"] < -1:
        raise RequestError(f"n_jobs={base['n_jobs']} is not accepted: 1 or more, or -1 for all")
    if base["n_jobs"] != 1 and engine != launchers.JOBLIB:
        raise RequestError(f"n_jobs={base['n_jobs']} is for launcher=joblib; here it is {engine}")
    results = Path(base["results"]).expanduser().resolve()
    points = [  # the time is the sweep's, not each cell's
        replace(point, request={**point.request, "time": None})
        for point in _of_shard(list(grid.points()), base["shard"])
    ]
    # On a cluster, a cell whose request gives no threads has those of its job.
    cpus = launcher.get("cpus_per_task") if engine == launchers.SLURM else None
    threads = int(cpus or len(os.sched_getaffinity(0)))
    planner = _Planner(results, threads, bool(base["force"]))
    cells = [planner.planned(point) for point in points]
    if cells and all(planned.state == PlanState.REFUSED for planned in cells):
        raise RequestError(cells[0].reason)
    # In order: of several wrong devices, the first one is named.
    devices = dict.fromkeys(json.dumps(point.request["device"], sort_keys=True) for point in points)
    if engine != launchers.SLURM and not elsewhere:
        for text in devices:
            check_device(json.loads(text))
        for threads in {point.request["threads"] for point in points}:
            parameters.check_threads(threads)
    if base["share_prefill"]:
        cells = _grouped(cells, planner.estimates)
    cells = _ordered(cells, time_s)
    n_timed = sum(1 for p in cells if p.runs and p.cell and (p.cell.plan.timed or p.cell.probe))
    warning = launchers.check(engine, launcher, map(json.loads, devices), n_timed)
    distinct = {(p.request["model"]["name"], p.request["length"]): p.request for p in points}
    beyond = [line for each in distinct.values() if (line := weights.beyond_positions(each))]
    warning = "; ".join(filter(None, [warning, *beyond])) or None
    return Plan(
        tuple(cells), engine, launcher_name, launcher, results, base["time"], time_s, warning,
        compose.events_path(base), planner.texts(cells),
    )  # fmt: skip


def measured(results: Path, model: str | None = None) -> list[tuple[Cell, Row]]:
    """The rows of a folder that hold a cell, or those of one model, with their cells and the keys
    that plans use."""
    if not results.is_dir():
        return []
    from bench.rows.store import Store

    rows: list[tuple[Cell, Row]] = []
    for row in Store(results).rows(COLUMNS).to_pylist():
        if model not in (None, row["model"]):  # a filter of the store would load pandas
            continue
        try:
            cell = Cell.from_json(row["cell"])
            rows.append((cell, {**row, "plan_key": cell.plan_key}))
        except (TypeError, ValueError, KeyError):
            continue
    return rows


def finished(rows: Iterable[tuple[Cell, Row]]) -> dict[str, Row]:
    """A cell's plan_key → the row that prevents another run, ok rows before others."""
    by_key: dict[str, Row] = {}
    for _, row in rows:
        key, status = row["plan_key"], row["status"]
        if status == Status.OK or (status in FINISHED and key not in by_key):
            by_key[key] = row
    return by_key


class _Planner:
    """Plans points one by one; facts that many of them share are looked up once."""

    def __init__(self, results: Path, threads: int, force: bool) -> None:
        self.threads, self.force = threads, force
        self.rows = measured(results)
        self.finished = finished(self.rows)
        self.estimates = Estimates(self.rows, partial(measured, REFERENCE))
        self.trainings: set[str] = set()
        self.cache: dict[str, Any] = {}

    def planned(self, point: Point) -> Planned:
        try:
            check_values(point.request)
            request = {**point.request, "threads": point.request["threads"] or self.threads}
            # Without the hash of embedded rows: generating them takes time.
            cell = Cell.with_rows(request, *self._rows(request))
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
        # One measurement that reaches its deadline ends the cell.
        seconds = min(self.estimates.seconds(cell), 2.0 * point.request["deadline_s"])
        for arm in stages.cells_to_train(cell):
            path = str(arm.model["path"])
            # Only the first cell of the plan that needs a training pays for it.
            if path not in self.trainings and weights.card(Path(path)) is None:
                self.trainings.add(path)
                seconds += self.estimates.training(arm)
        return replace(planned, seconds=seconds, bytes=self.estimates.bytes(cell))

    def texts(self, cells: Iterable[Planned]) -> tuple[int, str] | None:
        """See `Plan`."""

        def about(cell: Cell) -> tuple[str, str, str, int]:
            label = plugins.method_label(cell.method["name"], cell.method)
            return str(label), cell.task["name"], cell.model["name"], cell.length

        wanted = {about(p.cell) for p in cells if p.cell and p.cell.task.get("continuation")}
        found = [
            (math.ceil(row["n_scored"] * (least / DETECTABLE_NATS) ** 2), about(cell)[0])
            for cell, row in self.rows
            if (least := row["value_diff_detectable"])
            and about(cell) in wanted
            and row["quality_verdict"] == QualityVerdict.UNDECIDED
        ]
        return max(found, default=None)

    def _rows(self, request: Mapping[str, Any]) -> tuple[str, str, int]:
        """The split of a request's rows, their hash, empty for embedded rows, and the number of
        rows left out."""
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


def _of_shard(points: list[Point], shard: str | None) -> list[Point]:
    """The points of one machine. They are distributed after a shuffle that is the same everywhere:
    in the order of the overrides one machine would get all the long inputs. Raises RequestError."""
    if shard is None:
        return points
    match = re.fullmatch(r"(\d+)/(\d+)", str(shard))
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise RequestError(f"shard={shard} is not accepted: it is such as 2/8, from 1/8 to 8/8")
    shuffled = sorted(
        points, key=lambda point: hashlib.sha256(" ".join(point.overrides).encode()).digest()
    )
    mine = {point.overrides for point in shuffled[int(match[1]) - 1 :: int(match[2])]}
    return [point for point in points if point.overrides in mine]


def _grouped(cells: list[Planned], estimates: Estimates) -> list[Planned]:
    """The cells with the groups that answer together. The cells of a group follow one another, and
    so do cells with the same inputs, which are then encoded once."""
    found: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    place = [(i, i) for i in range(len(cells))]
    for i, planned in enumerate(cells):
        if planned.runs and planned.cell:
            place[i] = first.setdefault(cell_run.inputs_key(planned.cell), i), i
            if key := cell_group.key(planned.cell):
                found.setdefault(key, []).append(i)
    for number, members in enumerate(each for each in found.values() if len(each) > 1):
        together = [cell for i in members if (cell := cells[i].cell)]
        for i, (seconds, alone_s) in zip(members, estimates.together(together), strict=True):
            cells[i] = replace(cells[i], seconds=seconds, group=number, alone_s=alone_s)
            place[i] = place[i][0], members[0]
        most = estimates.bytes_together(together)
        cells[members[0]] = replace(cells[members[0]], bytes=most)
    return [cells[i] for i in sorted(range(len(cells)), key=place.__getitem__)]


def _ordered(cells: list[Planned], time_s: float | None) -> list[Planned]:
    """The cells in the given order; with a limit of time, the coarse cells of all methods before
    the fine ones of any: first few rows and pairs, then the first seed, then short cells. The
    methods of one point stay together, so that a point is left out for all of them. A group is run
    or left out as a whole."""
    if time_s is None:
        return cells
    points: dict[tuple[str, ...], list[Planned]] = {}
    for planned in cells:
        point = tuple(o for o in planned.overrides if not o.startswith("method"))
        points.setdefault(point, []).append(planned)

    def fineness(group: list[Planned]) -> tuple[Any, ...]:
        request = group[0].request
        measure = MEASURES.get(request["measure"], MEASURES["quick"])
        cost = sum(planned.seconds for planned in group) / len(group)
        return (request["n"] or math.inf, measure.pairs, measure.budget_s, request["seed"], cost,
                request["length"])  # fmt: skip

    spent, result, runs = 0.0, [], dict[int, bool]()
    for planned in (each for group in sorted(points.values(), key=fineness) for each in group):
        if planned.runs:
            fits = not spent or spent + planned.seconds <= time_s
            if planned.group is not None:
                fits = runs.setdefault(planned.group, fits)
            if not fits:
                planned = replace(planned, state=PlanState.OVER_BUDGET)
            else:
                spent += planned.seconds
        result.append(planned)
    return result


# A plan as text.


def heading(plan: Plan) -> str:
    """The plan in one line."""
    parts = [counted(len(plan.cells), "cell")]
    parts += [f"{len(plan.of(state))} {state}" for state in PlanState if plan.of(state)]
    if any(planned.runs for planned in plan.cells):
        parts.append(f"about {span(plan.seconds)}")
    return " · ".join(parts)


def sharing(plan: Plan) -> list[str]:
    """A line for each group of cells that answer together, or are timed in turns."""
    lines = []
    for group in plan.groups:
        first = group[0]
        in_turns = first.cell is not None and first.cell.plan.in_turns
        how = "are timed in turns" if in_turns else "read each prompt once"
        together, alone = sum(p.seconds for p in group), sum(p.alone_s for p in group)
        lines.append(
            f"{counted(len(group), 'cell')} from {first.title} on {how}: about {span(together)}, "
            f"alone {span(alone)}"
        )
    return lines
