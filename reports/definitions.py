"""What each table of a paper is here: reports/tables/*.yaml, one file a paper.

What stands above `tables` holds for every table of the file; a table adds to its methods, tasks,
metrics and averages, and replaces the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown
from reports.papers import Printed

FOLDER = Path(__file__).with_name("tables")
MEASURES = (
    "score", "score_kept", "latency", "attention", "training", "memory", "process_memory",
    "training_memory", "fidelity",
)  # fmt: skip
ADDED = ("methods", "tasks", "metrics", "averages")
SAYS = ("model", "weights", "data", "precision", "batch", "device")


@dataclass(frozen=True)
class MethodHere:
    """A printed method in the project's names.

    by_task  more parameters for a printed task
    size     the model's, where the paper prints none
    cannot   why nothing of it can be measured
    scores   why its scores can't be compared
    """

    label: str
    method: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    by_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: str = ""
    cannot: str | None = None
    scores: str | None = None

    def parameters(self, task: str) -> dict[str, Any]:
        return {**self.params, **self.by_task.get(task, {})}


@dataclass(frozen=True)
class TaskHere:
    """A printed task in the project's names; `cannot` and `scores` as of a method."""

    task: str | None = None
    cannot: str | None = None
    scores: str | None = None


@dataclass(frozen=True)
class MetricHere:
    """How a printed metric is measured: one of MEASURES. `figures` are the names it may have in a
    row; `inverse`: the paper prints vanilla / method, or a rate."""

    measure: str | None = None
    figures: tuple[str, ...] = ()
    inverse: bool = False
    cannot: str | None = None


@dataclass(frozen=True)
class ModelHere:
    """A printed size: the model to run, and patterns of the names of models of that size."""

    run: str
    like: tuple[str, ...]


@dataclass(frozen=True)
class Unsourced:
    """Cells of a table whose numbers aren't known."""

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    metric: str
    why: str


@dataclass(frozen=True)
class Definition:
    """One table.

    parts        tables of the paper's CSV that it consists of
    reference    printed methods that ratios are formed against
    others, other_tasks  why a method or task that isn't listed can't be measured
    averages     printed task → the tasks that it is the mean of
    weights      kinds of weights whose scores may be compared with the paper's
    says         what the paper says of its side, by SAYS
    words        what its commands have beside method, task, model and length
    settings     what of `extra` is a parameter of the method
    any_length   the printed length is a mean, not a limit
    """

    name: str
    paper: str
    source: str
    title: str
    parts: tuple[str, ...]
    methods: Mapping[str, MethodHere]
    tasks: Mapping[str, TaskHere]
    metrics: Mapping[str, MetricHere]
    models: Mapping[str, ModelHere]
    weights: tuple[str, ...]
    says: Mapping[str, str]
    words: tuple[str, ...]
    reference: tuple[str, ...]
    averages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    others: str | None = None
    other_tasks: str | None = None
    experiment: str | None = None
    measure: str = "published"
    batch: int | None = None
    settings: tuple[str, ...] = ()
    any_length: bool = False
    notes: tuple[str, ...] = ()
    unsourced: Unsourced | None = None

    def method(self, name: str) -> MethodHere:
        found = self.methods.get(name)
        return found or MethodHere(name.replace("_", " "), cannot=self.others or "no such method")

    def size(self, printed: Printed) -> str:
        """The size that the paper prints, or that its method is known to have."""
        return printed.model_size or self.method(printed.method).size

    def task(self, name: str) -> TaskHere:
        found = self.tasks.get(name)
        return found or TaskHere(cannot=self.other_tasks or "no such task here")

    def metric(self, name: str) -> MetricHere:
        return self.metrics.get(name) or MetricHere(cannot="no column holds this figure")


def load(names: Iterable[str] = (), folder: Path = FOLDER) -> list[Definition]:
    """The tables of these names (all without names; a paper's name stands for its tables), in the
    order of the files. Raises RequestError with the nearest name."""
    known = _all(folder)
    wanted: set[str] = set()
    papers = {definition.paper for definition in known}
    for name in names:
        found = {d.name for d in known if name in (d.name, d.paper)}
        if not found:
            raise unknown("table", name, [*(d.name for d in known), *papers])
        wanted |= found
    return [d for d in known if not wanted or d.name in wanted]


@cache
def _all(folder: Path) -> list[Definition]:
    import yaml

    order = ("vcc", "iceformer", "fourier", "bigbird", "lra")
    paths = sorted(
        folder.glob("*.yaml"),
        key=lambda path: (order.index(path.stem) if path.stem in order else len(order), path.stem),
    )
    found = []
    for path in paths:
        shared = yaml.safe_load(path.read_text())
        tables = shared.pop("tables")
        for name, own in tables.items():
            try:
                found.append(_definition(name, _merged(shared, own)))
            except (TypeError, KeyError, ValueError) as error:
                raise RequestError(f"reports/tables/{path.name}: table {name}: {error}") from error
    return found


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    added = {name: {**shared.get(name, {}), **own.get(name, {})} for name in ADDED}
    return {**shared, **own, **added}


def _definition(name: str, given: dict[str, Any]) -> Definition:
    parts: dict[str, Any] = {
        "methods": {k: MethodHere(**v) for k, v in given["methods"].items()},
        "tasks": {k: TaskHere(**v) for k, v in given["tasks"].items()},
        "metrics": {k: _metric(v) for k, v in given["metrics"].items()},
        "models": {k: ModelHere(v["run"], tuple(v["like"])) for k, v in given["models"].items()},
        "averages": {k: tuple(v) for k, v in given["averages"].items()},
        "says": {k: given["says"][k] for k in SAYS},
    }
    if unsourced := given.get("unsourced"):
        parts["unsourced"] = Unsourced(
            tuple(unsourced["methods"]), tuple(unsourced["tasks"]), unsourced["metric"],
            unsourced["why"],
        )  # fmt: skip
    for field_ in fields(Definition):
        value = given.get(field_.name)
        if field_.name not in parts and isinstance(value, list):
            parts[field_.name] = tuple(value)
    return Definition(**{**given, **parts, "name": name})


def _metric(given: Mapping[str, Any]) -> MetricHere:
    measure = given.get("measure")
    if measure is not None and measure not in MEASURES:
        raise ValueError(str(unknown("measure", measure, MEASURES)))
    return MetricHere(**{**given, "figures": tuple(given.get("figures", ()))})
