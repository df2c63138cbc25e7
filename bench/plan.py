"""A sweep before it runs: its cells, what each will cost, and which are done already. No torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import budget, launchers, plugins, trained, training
from bench import cell as cells
from bench.cell import Cell
from bench.errors import RequestError
from bench.estimate import Estimates, start_s
from bench.grid import Grid, Point
from bench.models.auto import FAMILIES
from bench.runner import FINISHED

STATES = ("done", "to do", "unsupported", "refused", "over budget")
SUPPORT = plugins.ROOT / "docs" / "support.md"
COLUMNS = ["cell_key", "cell", "status", "status_detail", "row_id", "wall_total_ns",
           "train_wall_ns", "rss_base_bytes", "rss_peak_delta_bytes", "base_rss_peak_delta_bytes",
           "weights_bytes", "gpu_alloc_delta_bytes", "base_gpu_alloc_delta_bytes"]  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One cell of a sweep. `words` tell it from the others, `state` ∈ STATES, `reason` why it is
    refused or unsupported; `seconds` and `bytes` are estimates of what is still to do."""

    words: tuple[str, ...]
    request: Mapping[str, Any]
    cell: Cell | None
    state: str
    reason: str = ""
    seconds: float = 0.0
    bytes: int = 0
    row_id: str | None = None

    @property
    def title(self) -> str:
        return " ".join(self.words) or "the cell"

    @property
    def runs(self) -> bool:
        """Whether a sweep starts it. What is thought unsupported is asked of the method itself."""
        return self.state == "to do" or (self.state == "unsupported" and self.row_id is None)


@dataclass(frozen=True)
class Plan:
    """`words` are the request's own, `fixed` those that all cells share; `cells` stand in the order
    in which they run. Seconds are those of one cell after the other."""

    words: tuple[str, ...]
    fixed: tuple[str, ...]
    cells: tuple[Planned, ...]
    grid: Grid
    engine: str
    launcher_name: str
    results: Path
    budget_s: float | None
    warning: str | None = None

    @property
    def open(self) -> list[Planned]:
        """What a sweep starts. One after the other, what the estimates leave out is asked again
        when its turn comes: there may be time after all."""
        asked_again = "over budget" if self.engine == "basic" else None
        return [p for p in self.cells if p.runs or p.state == asked_again]

    def of(self, state: str) -> list[Planned]:
        return [planned for planned in self.cells if planned.state == state]


def plan(overrides: Sequence[str]) -> Plan:
    """What `bench run -m` would do with these words. Raises RequestError."""
    grid = Grid.of(overrides)
    base = grid.base
    launcher_name = grid.hydra["runtime"]["choices"].get("launcher", "local")
    engine = launchers.engine_of(launcher_name)
    shard, budget_s = _shard(base["shard"]), budget.seconds(base["budget"])
    if base["n_jobs"] == 0 or base["n_jobs"] < -1:
        raise RequestError(f"n_jobs={base['n_jobs']} is not accepted: 1 or more, or -1 for all")
    if base["n_jobs"] != 1 and engine != "joblib":
        raise RequestError(f"n_jobs={base['n_jobs']} is for launcher=joblib; here it is {engine}")
    results = Path(base["results"]).expanduser().resolve()
    points = _of_shard(list(grid.points()), shard)
    sketch = _Sketches(grid, engine)
    known = _Known(results)
    found = [known.planned(point, sketch, bool(base["force"])) for point in points]
    if found and all(planned.state == "refused" for planned in found):
        raise RequestError(found[0].reason)
    for text in {json.dumps(point.request["device"], sort_keys=True) for point in points}:
        device = json.loads(text)
        launchers.check_gpus(engine, grid.hydra["launcher"], device)
        if engine != launchers.SLURM:
            cells.check_device(device)
    found = budget.ordered(found, budget_s)
    timed = sum(1 for p in found if p.runs and p.cell and (p.cell.plan.speed or p.cell.probe))
    warning = launchers.check_alone(engine, grid.hydra["launcher"], timed)
    return Plan(
        tuple(overrides), tuple(grid.fixed), tuple(found), grid, engine, launcher_name,
        results, budget_s, warning,
    )  # fmt: skip


class _Sketches:
    """Cells without the hashes of embedded rows; what many cells share is looked up once."""

    def __init__(self, grid: Grid, engine: str) -> None:
        self.memory: dict[str, Any] = {}
        # The cell of a cluster has the CPUs of its job, not those of the machine that plans.
        cpus = grid.hydra["launcher"].get("cpus_per_task") if engine == launchers.SLURM else None
        self.threads = cpus or len(os.sched_getaffinity(0))

    def cell(self, request: Mapping[str, Any]) -> Cell:
        cells.check(request)
        request = {**request, "threads": request["threads"] or self.threads}
        return Cell.with_rows(request, *self._rows(request))

    def _rows(self, request: Mapping[str, Any]) -> tuple[str, str]:
        data = request["data"]
        shape = [request[name] for name in ("task", "data", "n", "length", "seed")]
        if data["source"] == "embedded":
            task = self._once("task", request["task"], lambda: plugins.build(request["task"]))
            split = data.get("split") or getattr(task, "default_split", None)
            if split is not None and split in getattr(task, "splits", (split,)):
                return str(split), ""
        loaded = self._once("rows", shape, lambda: cells.load(request))
        return loaded.split, loaded.sha256

    def _once(self, kind: str, about: Any, make: Callable[[], Any]) -> Any:
        name = f"{kind} {json.dumps(about, sort_keys=True)}"
        if name not in self.memory:
            self.memory[name] = make()
        return self.memory[name]


def measured(results: Path) -> list[tuple[Cell, dict[str, Any]]]:
    """The rows of a folder, each with its cell; those of an older version are left out."""
    if not results.is_dir():
        return []
    from bench.store import Store

    found = []
    for row in Store(results).rows(COLUMNS).to_pylist():
        try:
            cell = Cell.from_json(row["cell"])
            found.append((cell, {**row, "sketch": cell.sketch}))
        except (TypeError, ValueError, KeyError):
            continue
    return found


def finished(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """A cell's sketch → the row for which it isn't run again, an ok one before any other."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["status"] == "ok" or (row["status"] in FINISHED and row["sketch"] not in found):
            found[row["sketch"]] = row
    return found


class _Known:
    """What the store and the page of support say of cells."""

    def __init__(self, results: Path) -> None:
        rows = measured(results)
        self.finished = finished(row for _, row in rows)
        self.estimates = Estimates(rows)
        self.unsupported = unsupported()
        self.trainings: set[str] = set()

    def planned(self, point: Point, sketches: _Sketches, force: bool) -> Planned:
        try:
            cell = sketches.cell(point.request)
        except RequestError as error:
            return Planned(point.words, point.request, None, "refused", str(error))
        row = None if force else self.finished.get(cell.sketch)
        if row:
            state = "unsupported" if row["status"] == "unsupported" else "done"
            reason = "" if row["status"] == "ok" else f"{row['status']}: {row['status_detail']}"
            return Planned(point.words, point.request, cell, state, reason, row_id=row["row_id"])
        seconds, held = self.estimates.seconds(cell), self.estimates.bytes(cell)
        # One measurement that meets its deadline ends the cell.
        seconds = min(seconds, 2.0 * point.request["deadline_s"])
        reason = self.unsupported.get((cell.method["name"], cell.model["family"]), "")
        state = "unsupported" if reason else "to do"
        if reason:
            seconds = min(seconds, start_s(cell))
        else:
            seconds += self._training_s(cell)
        return Planned(point.words, point.request, cell, state, reason, seconds, held)

    def _training_s(self, cell: Cell) -> float:
        """Seconds of the trainings that a cell is the first of the plan to ask for."""
        total = 0.0
        for arm in trained.arms(cell):
            place = str(arm.model["path"])
            if place not in self.trainings and training.card(Path(place)) is None:
                self.trainings.add(place)
                total += self.estimates.training(arm)
        return total


def unsupported() -> dict[tuple[str, str], str]:
    """(method, family target) → why the method can't read there, from docs/support.md, which says
    what each method answered."""
    try:
        text = SUPPORT.read_text()
    except OSError:
        return {}
    reasons = dict(re.findall(r"^(\d+)\. (.+)$", text, re.MULTILINE))
    found = {}
    families: list[str] = []
    for line in text.splitlines():
        name, *marks = [part.strip() for part in line.strip("|").split("|")]
        if name == "Inference":
            families = marks
        elif name == "Training":
            break
        for family, mark in zip(families, marks, strict=False):
            if number := re.fullmatch(r"no \((\d+)\)", mark):
                found[name, FAMILIES.get(family, family)] = reasons.get(number[1], "")
    return found


def _of_shard(points: list[Point], shard: tuple[int, int] | None) -> list[Point]:
    """The points of one machine. They are dealt after a shuffle that is the same everywhere:
    in the order of the words one machine would get all the long inputs."""
    if shard is None:
        return points
    number, count = shard
    shuffled = sorted(points, key=lambda p: hashlib.sha256(" ".join(p.words).encode()).digest())
    mine = {point.words for point in shuffled[number - 1 :: count]}
    return [point for point in points if point.words in mine]


def _shard(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)/(\d+)", str(text))
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise RequestError(f"shard={text} is not accepted: it is such as 2/8, from 1/8 to 8/8")
    return int(found[1]), int(found[2])
