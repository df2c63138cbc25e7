"""How each table of a paper is reproduced here: reports/tables/*.yaml, one file for each paper.

Fields above `tables` in a file apply to all of its tables. A table's own methods, tasks, metrics
and averages are added to the shared ones; its other fields replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown
from reports.papers.printed import PAPERS, Printed

FOLDER = Path(__file__).parents[1] / "tables"
MEASURES = (
    "score", "score_kept", "latency", "whole_answer", "attention", "training", "memory",
    "process_memory", "training_memory", "fidelity",
)  # fmt: skip
CLAIMS = "claims"
"""What bench report takes in place of a table: what the papers claim."""
MERGED = ("methods", "tasks", "metrics", "averages")
SETUP = ("model", "weights", "data", "precision", "batch", "device")


@dataclass(frozen=True)
class PaperMethod:
    """A printed method in the project's names.

    by_task   additional parameters for a printed task
    by_size   additional parameters for a printed size
    unlike    NAME=VALUE of a parameter that isn't the paper's → the difference in behaviour
    size      size of its model, if the paper prints none
    models    printed size → its own models, for a system that isn't a method in the table's models
    cannot    reason why none of its figures can be measured
    scores    reason why no row here can have its scores
    missing   resources for its scores that aren't available here: GPU-hours, a checkpoint
    unstated  unknown settings because of which none of its figures can be compared
    any_task  its cost depends only on the length of its inputs, so that filled rows of other tasks
              of the table count too
    ends      if its settings aren't known, the possible ones with the least and the greatest cost:
              its costs are compared at both
    """

    label: str
    method: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    by_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    by_size: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unlike: Mapping[str, str] = field(default_factory=dict)
    size: str = ""
    models: Mapping[str, PaperModel] = field(default_factory=dict)
    cannot: str | None = None
    scores: str | None = None
    missing: str | None = None
    unstated: str | None = None
    any_task: bool = False
    ends: tuple[Mapping[str, Any], ...] = ()

    def at_ends(self) -> list[PaperMethod]:
        """The method with each of its `ends` as its parameters."""
        return [replace(self, params={**self.params, **end}, ends=()) for end in self.ends]


@dataclass(frozen=True)
class PaperTask:
    """A printed task in the project's names; `cannot` and `scores` as in PaperMethod.
    `recipe` trains for it: in a command for scores it replaces task, model and length; `model` is
    the recipe's model if the paper's has other sizes. `answer`: tokens of a whole answer."""

    task: str | None = None
    recipe: str | None = None
    model: str | None = None
    answer: int = 0
    cannot: str | None = None
    scores: str | None = None


@dataclass(frozen=True)
class PaperMetric:
    """How a printed metric is measured: one of MEASURES. `figures` are its possible names in a row;
    `inverse`: the paper prints vanilla / method, or a rate."""

    measure: str | None = None
    figures: tuple[str, ...] = ()
    inverse: bool = False
    cannot: str | None = None

    def __post_init__(self) -> None:
        if self.measure is not None and self.measure not in MEASURES:
            raise ValueError(str(unknown("measure", self.measure, MEASURES)))


@dataclass(frozen=True)
class PaperModel:
    """A printed size: the model to run, name patterns of models of that size, and required entries
    of the configuration in addition to the model's."""

    run: str
    like: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Unsourced:
    """Cells of a table whose printed numbers aren't known."""

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    metric: str
    why: str


@dataclass(frozen=True)
class Definition:
    """One table.

    parts        the tables of the paper's CSV of which it consists
    reference    printed methods that are the denominators of ratios
    others, other_tasks  reason why a method or task that isn't listed can't be measured
    averages     printed task → the tasks over which it is the mean
    weights      kinds of weights whose scores are comparable with the paper's
    setup        the paper's statements about its setup, by SETUP
    overrides    overrides of its commands besides method, task, model and length
    settings     entries of `extra` that are parameters of the method
    any_length   the printed length is a mean, not a limit
    devices      number of devices over which the printed batch is spread: a ratio may be for one
                 device's part
    needs        resources for its scores, if a command can make them
    """

    name: str
    paper: str
    source: str
    title: str
    parts: tuple[str, ...]
    methods: Mapping[str, PaperMethod]
    tasks: Mapping[str, PaperTask]
    metrics: Mapping[str, PaperMetric]
    models: Mapping[str, PaperModel]
    weights: tuple[str, ...]
    setup: Mapping[str, str]
    overrides: tuple[str, ...]
    reference: tuple[str, ...]
    averages: Mapping[str, Sequence[str]] = field(default_factory=dict)
    others: str | None = None
    other_tasks: str | None = None
    experiment: str | None = None
    measure: str = "published"
    batch: int | None = None
    settings: tuple[str, ...] = ()
    any_length: bool = False
    devices: int = 1
    needs: str = ""
    notes: tuple[str, ...] = ()
    unsourced: Unsourced | None = None

    @property
    def heading(self) -> str:
        return f"{self.source}, {self.title}"

    def method(self, name: str) -> PaperMethod:
        other = PaperMethod(name.replace("_", " "), cannot=self.others or "no such method")
        return self.methods.get(name, other)

    def size(self, printed: Printed) -> str:
        """The size that the paper prints, or the known size of its method."""
        return printed.model_size or self.method(printed.method).size

    def parameters(self, method: PaperMethod, printed: Printed, task: str) -> dict[str, Any]:
        """The parameters of a method in a cell, for the printed task `task`."""
        by_task, by_size = method.by_task.get(task, {}), method.by_size.get(self.size(printed), {})
        settings = {k: printed.extra[k] for k in self.settings if k in printed.extra}
        return {**method.params, **by_task, **by_size, **settings}

    def models_of(self, method: PaperMethod) -> Mapping[str, PaperModel]:
        """Printed size → the models of that size for the method's rows."""
        return method.models or self.models

    def task(self, name: str) -> PaperTask:
        return self.tasks.get(name, PaperTask(cannot=self.other_tasks or "no such task here"))

    def metric(self, name: str) -> PaperMetric:
        return self.metrics.get(name, PaperMetric(cannot="no column holds this figure"))

    def measured_names(self) -> tuple[set[str], set[str]]:
        """The methods and the tasks of this project whose rows the table reads."""
        methods = {method.method for method in self.methods.values() if method.method}
        return methods, {task.task for task in self.tasks.values() if task.task}


def load_definitions(names: Iterable[str] = (), others: Iterable[str] = ()) -> list[Definition]:
    """The tables of these names (all without names; a paper's name selects all its tables), in the
    order of the files. Raises RequestError with the nearest name, which may be one of `others`."""
    definitions = _all_definitions()
    wanted: set[str] = set()
    for name in names:
        matching = {d.name for d in definitions if name in (d.name, d.paper)}
        if not matching:
            papers = {definition.paper for definition in definitions}
            raise unknown("table", name, [*(d.name for d in definitions), *papers, CLAIMS, *others])
        wanted |= matching
    return [d for d in definitions if not wanted or d.name in wanted]


@cache
def _all_definitions() -> list[Definition]:
    import yaml

    rank = {paper: i for i, paper in enumerate(PAPERS)}
    paths = sorted(FOLDER.glob("*.yaml"), key=lambda path: (rank.get(path.stem, 99), path.stem))
    definitions = []
    for path in paths:
        shared = yaml.safe_load(path.read_text())
        for name, own in shared.pop("tables").items():
            merged = {key: {**shared.get(key, {}), **own.get(key, {})} for key in MERGED}
            try:
                fields = {**shared, **own, **merged, "name": name}
                fields["setup"] = {key: fields["setup"][key] for key in SETUP}
                definitions.append(_built(Definition, fields))
            except (TypeError, KeyError, ValueError) as error:
                raise RequestError(f"reports/tables/{path.name}: table {name}: {error}") from error
    return definitions


NESTED = {"methods": PaperMethod, "tasks": PaperTask, "metrics": PaperMetric, "models": PaperModel}
"""Fields that map names to objects of a class."""


def _built(kind: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """An object with the fields of a file, whose lists become tuples."""
    values: dict[str, Any] = dict(fields)
    for name, value in fields.items():
        if isinstance(value, list):
            values[name] = tuple(value)
        elif name in NESTED:
            values[name] = {key: _built(NESTED[name], own) for key, own in value.items()}
    if values.get("unsourced"):
        values["unsourced"] = _built(Unsourced, values["unsourced"])
    return kind(**values)
