"""The `bench` commands that would measure the cells of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from bench.request import plugins
from reports.looks import VANILLA
from reports.papers.definitions import Definition, PaperMethod
from reports.papers.measured import RATIOS, SCORES, UNFUSED
from reports.papers.objections import task_length
from reports.papers.table import PaperCell, PaperTable

Labelled = tuple[str, str]
"""What a command is for, and the command."""
Key = tuple[str, ...]
"""The parts of a command without its tasks: label, what the tasks are given as ("task" or
"recipe"), method, then the other overrides."""
DEFAULT_LENGTH = 4096
SCORES_ONLY = {*SCORES, None}
"""What a table measures whose commands need no time and no memory."""


def preparation(table: PaperTable) -> list[Labelled]:
    """The first commands: the experiment of the whole table, and downloads."""
    definition = table.definition
    runnable = [cell for cell in table.cells if _runs(definition, cell)]
    if not runnable:
        return []
    labelled: list[Labelled] = []
    if definition.experiment in plugins.available("experiment"):
        whole = f"bench run -m experiment={definition.experiment}"
        labelled += [("the whole table", whole), ("on two cores", f"{whole} scale=small")]
    tasks = dict.fromkeys(task for cell in runnable for _, task in _tasks(definition, cell))
    models = dict.fromkeys(_model(definition, cell) for cell in runnable)
    arguments = [*tasks] if "data=hub" in definition.overrides else []
    arguments += [f"--model {model}" for model in models if "/" in model]
    if arguments:
        labelled.append(("first, with a network", f"bench fetch {' '.join(arguments)}"))
    return labelled


def commands(table: PaperTable) -> list[Labelled]:
    """At least one command for each printed line that can be measured; tasks that need otherwise
    equal commands share one."""
    groups = _grouped(key for cell in table.cells for key in _keys(table, cell))
    return list(dict.fromkeys((key[0], _command(key, tasks)) for key, tasks in groups.items()))


def cell_commands(table: PaperTable) -> dict[int, str]:
    """id of a cell → its command; a mean over tasks has one for each group of tasks."""
    return {
        id(cell): " && ".join(_command(*group) for group in groups.items())
        for cell in table.cells
        if (groups := _grouped(_keys(table, cell)))
    }


def _keys(table: PaperTable, cell: PaperCell) -> Iterator[tuple[Key, str]]:
    """Each task of a cell, with the rest of its command."""
    definition = table.definition
    if _runs(definition, cell):
        measures = {definition.metric(c.printed.metric).measure for c in table.cells}
        sizes, lengths = len(definition.models) > 1, not definition.any_length
        label = cell.line.label(definition, sizes, lengths, " tokens")
        for name, task in _tasks(definition, cell):
            recipe = definition.task(name).recipe if measures <= SCORES_ONLY else None
            given = "recipe" if recipe else "task"
            method = definition.method(cell.printed.method)
            for one in method.at_ends() or [method]:
                overrides = _overrides(definition, measures, cell, name, one)
                yield (label, given, *overrides), recipe or task


def _grouped(keys: Iterable[tuple[Key, str]]) -> dict[Key, list[str]]:
    groups: dict[Key, dict[str, None]] = {}
    for key, task in keys:
        groups.setdefault(key, {})[task] = None
    return {key: list(tasks) for key, tasks in groups.items()}


def _command(key: Key, tasks: list[str]) -> str:
    _, given, method, *overrides = key
    sweep = "-m " if len(tasks) > 1 or "," in method else ""
    return f"bench run {sweep}{method} {given}={','.join(tasks)} {' '.join(overrides)}"


def _runs(definition: Definition, cell: PaperCell) -> bool:
    """Whether a command could measure the cell, or the reference of its ratio."""
    metric = definition.metric(cell.printed.metric)
    method = definition.method(cell.printed.method)
    unprinted = cell.printed.value is None and not definition.unsourced
    impossible = method.cannot or (metric.cannot and not metric.measure) or unprinted
    of_its_own = method.models and metric.measure in RATIOS
    return not (impossible or of_its_own) and bool(_tasks(definition, cell))


def _tasks(definition: Definition, cell: PaperCell) -> list[tuple[str, str]]:
    """The printed task, or the tasks that it averages, each with its name in this project."""
    names = definition.averages.get(cell.printed.task, (cell.printed.task,))
    return [(name, task) for name in names if (task := definition.task(name).task)]


def _model(definition: Definition, cell: PaperCell) -> str:
    sizes = definition.models_of(definition.method(cell.printed.method))
    return (sizes.get(definition.size(cell.printed)) or next(iter(sizes.values()))).run


def _overrides(
    definition: Definition, measures: set[str | None], cell: PaperCell, task: str,
    method: PaperMethod,
) -> tuple[str, ...]:  # fmt: skip
    """The overrides of a command except its tasks; the method and its parameters come first."""
    printed = cell.printed
    name = method.method or ""
    if name == VANILLA and measures & set(RATIOS):
        name = f"{name},{UNFUSED}"
    parameters = definition.parameters(method, printed, task)
    words = [
        f"method.{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in parameters.items()
    ]
    printed_length = None if definition.any_length else printed.length
    length = printed_length or task_length(definition.task(task).task) or DEFAULT_LENGTH
    batch = printed.extra.get("batch", definition.batch)
    scores_only = measures <= SCORES_ONLY
    measure = "quality" if scores_only else definition.measure
    printed_task = definition.task(task)
    if scores_only and printed_task.recipe:
        sizes = [f"model={printed_task.model}"] if printed_task.model else []
    else:
        sizes = [f"model={_model(definition, cell)}", f"length={length}"]
    return (
        " ".join([f"method={name}", *words]),
        *sizes,
        *(["n=null"] if measures & set(SCORES) else []),
        *([f"batch={batch}"] if batch else []),
        *definition.overrides,
        f"measure={measure}",
    )
