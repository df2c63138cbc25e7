"""The commands that would measure a table's cells, in the words of bench run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from bench import plugins
from reports.build import Cell, Table
from reports.definitions import Definition
from reports.elements import Code
from reports.measured import RATIOS, SCORES, UNFUSED, VANILLA
from reports.objections import task_length

Labelled = tuple[str, str]
DEFAULT_LENGTH = 4096


def preparation(table: Table) -> list[Labelled]:
    """What comes before: the recipe of the whole table, and what has to be fetched."""
    definition, found = table.definition, []
    runnable = [cell for cell in table.cells if _runs(table, cell)]
    if not runnable:
        return []
    if definition.experiment in plugins.available("experiment"):
        whole = f"bench run -m experiment={definition.experiment}"
        found += [("the whole table", Code(whole)), ("on two cores", Code(f"{whole} scale=small"))]
    return found + _fetch(definition, runnable)


def _fetch(definition: Definition, cells: Iterable[Cell]) -> list[Labelled]:
    tasks = dict.fromkeys(task for cell in cells for task in _tasks(definition, cell))
    models = [m for m in dict.fromkeys(_model(definition, cell) for cell in cells) if "/" in m]
    words = [*tasks] if "data=hub" in definition.words else []
    words += [f"--model {model}" for model in models]
    return [("first, with a network", Code(f"bench fetch {' '.join(words)}"))] if words else []


def commands(table: Table) -> list[Labelled]:
    """One command or more for each printed line that can be measured; tasks that differ in nothing
    else share one."""
    groups: dict[tuple[str, ...], dict[str, None]] = {}
    for cell in table.cells:
        for key, task in _keys(table, cell):
            groups.setdefault(key, {})[task] = None
    return list(dict.fromkeys((key[0], _command(key, tasks)) for key, tasks in groups.items()))


def cell_commands(table: Table) -> dict[int, str]:
    """id of a cell → its own command; a mean over tasks has one for each group of them."""
    found = {}
    for cell in table.cells:
        groups: dict[tuple[str, ...], dict[str, None]] = {}
        for key, task in _keys(table, cell):
            groups.setdefault(key, {})[task] = None
        if groups:
            found[id(cell)] = " && ".join(_command(*group) for group in groups.items())
    return found


def _keys(table: Table, cell: Cell) -> Iterator[tuple[tuple[str, ...], str]]:
    """Of each task of a cell, everything else of its command, its label first."""
    if _runs(table, cell):
        for name, task in _printed_tasks(table.definition, cell):
            yield (_label(table.definition, cell), *_words(table, cell, name)), task


def _command(key: tuple[str, ...], tasks: Iterable[str]) -> Code:
    _, method, *words = key
    chosen = ",".join(tasks)
    several = "-m " if "," in chosen or "," in method else ""
    return Code(f"bench run {several}{method} task={chosen} {' '.join(words)}")


def _runs(table: Table, cell: Cell) -> bool:
    """Whether a command could give the cell its figure, or what its ratio is formed against."""
    definition = table.definition
    metric = definition.metric(cell.printed.metric)
    method = definition.method(cell.printed.method)
    unprinted = cell.printed.value is None and not definition.unsourced
    return not (method.cannot or (metric.cannot and not metric.measure) or unprinted) and bool(
        _tasks(definition, cell)
    )


def _printed_tasks(definition: Definition, cell: Cell) -> list[tuple[str, str]]:
    """The printed task, or those that it is the mean of, each with its name here."""
    names = definition.averages.get(cell.printed.task, (cell.printed.task,))
    return [(n, task) for n in names if (task := definition.task(n).task)]


def _tasks(definition: Definition, cell: Cell) -> list[str]:
    return [task for _, task in _printed_tasks(definition, cell)]


def _model(definition: Definition, cell: Cell) -> str:
    sizes = definition.models
    return (sizes.get(definition.size(cell.printed)) or next(iter(sizes.values()))).run


def _words(table: Table, cell: Cell, task: str) -> tuple[str, ...]:
    """A command without its task: the method and its parameters first."""
    definition, printed = table.definition, cell.printed
    method = definition.method(printed.method)
    name = method.method or ""
    measures = {definition.metric(c.printed.metric).measure for c in table.cells}
    if name == VANILLA and measures & set(RATIOS):
        name = f"{name},{UNFUSED}"
    given = {k: printed.extra[k] for k in definition.settings if k in printed.extra}
    parameters = method.parameters(task) | given
    printed_length = None if definition.any_length else printed.length
    length = printed_length or task_length(definition.task(task).task) or DEFAULT_LENGTH
    batch = printed.extra.get("batch", definition.batch)
    measure = "quality" if measures <= {*SCORES, None} else definition.measure
    return (
        f"method={name}" + "".join(f" method.{k}={_value(v)}" for k, v in parameters.items()),
        f"model={_model(definition, cell)}",
        f"length={length}",
        *(["n=null"] if measures & set(SCORES) else []),
        *([f"batch={batch}"] if batch else []),
        *definition.words,
        f"measure={measure}",
    )


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _label(definition: Definition, cell: Cell) -> str:
    line = cell.line
    size = line.size if len(definition.models) > 1 else ""
    tokens = f"{line.length:,} tokens" if line.length and not definition.any_length else ""
    settings = ", ".join(f"{k}={v}" for k, v in line.settings)
    label = definition.method(line.method).label
    return ", ".join(filter(None, (label, size, tokens, settings)))
