"""`bench ls`: the names of everything that a request may choose, from their descriptions in YAML.
Imports no torch and no plugin."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import click

from bench.errors import RequestError, unknown
from bench.request import answering, plugins
from bench.request.answering import Reads, models_for
from bench.request.cell import task_of
from bench.request.overrides import GROUPS
from bench.terminal import output
from bench.terminal.options import command, format_option
from tasks.base import ANSWERS

METRICS = "metrics"
PLURALS = {group if group == "data" else f"{group}s": group for group in GROUPS}
LISTS = (*PLURALS, METRICS)
SHOWN = ("method", "task", "model")
"""Groups that are listed when none is named."""


@command(f"List methods, tasks and models, or one of: {', '.join(LISTS)}.")
@click.argument(
    "chosen",
    required=False,
    metavar="[LIST]",
    shell_complete=lambda ctx, param, word: [name for name in LISTS if name.startswith(word)],
)
@format_option(default="table")
def ls(chosen: str | None, form: str) -> int:
    """Names with the descriptions from their YAML. A file that can't be used is listed with the
    error."""
    for problem in plugins.problems():
        print(f"bench: {problem}", file=sys.stderr)
    if chosen == METRICS:
        names, metrics = ("name", "version", "tasks"), _metrics()
        cells = ([str(record[name]) for name in names] for record in metrics)
        output.show(form, names, metrics, names, cells)
        return 0
    if chosen and chosen not in PLURALS and chosen not in GROUPS:
        for group in SHOWN:
            if chosen in plugins.available(group):
                raise RequestError(
                    f"'{chosen}' is a {group}, which bench ls {group}s lists. Known lists: "
                    f"{', '.join(LISTS)}"
                )
        raise unknown("list", chosen, LISTS)
    groups = [PLURALS.get(chosen, chosen)] if chosen else SHOWN
    only = groups[0] if len(groups) == 1 else ""
    table, columns = TABLES.get(only, (None, ()))
    for_program = output.tabular(form)
    # Facts of tasks need their classes, which import numpy: the overview shows none.
    records = [
        _record(group, name, path, with_facts=for_program or only != "")
        for group in groups
        for name, path in plugins.available(group).items()
    ]
    if for_program:
        output.write(form, ("group", "name", "about", *columns, "problem"), records)
        return 0
    usable = [record for record in records if not record["problem"]]
    for group in groups if not table else ():
        lines = [(f"  {r['name']}", r["about"]) for r in usable if r["group"] == group]
        text = "\n".join(output.aligned(lines))
        print(text if only else f"{group}:\n{text}")
    if table:
        print(table(usable))
    for record in records:
        if record["problem"]:
            print(f"  {record['name']}  can't be used: {record['problem']}")
    return 0


def _record(group: str, name: str, path: Path, with_facts: bool) -> dict[str, Any]:
    about = plugins.about(path).partition(". ")[0].rstrip(".")
    record = {"group": group, "name": name, "about": about, "problem": None}
    try:
        content = plugins.checked(group, path)
    except RequestError as error:
        return {**record, "problem": str(error)}
    match group if with_facts else None:
        case "task":
            return {**record, **task_facts(name, content)}
        case "method":
            return {**record, **plugins.method_facts(content)}
    return record


def _metrics() -> list[dict[str, Any]]:
    """Each metric with the tasks for which it is official."""
    from tasks.metrics import METRICS as metrics

    used: dict[str, list[str]] = {name: [] for name in sorted(metrics)}
    for name, conf in plugins.usable("task").items():
        own = f"{conf['benchmark']}/{conf.get('metric')}"
        used.setdefault(own if own in metrics else str(conf.get("metric")), []).append(name)
    return [
        {"name": name, "version": metrics[name].version, "tasks": " ".join(tasks)}
        for name, tasks in used.items()
        if name in metrics
    ]


def method_table(records: Sequence[Mapping[str, Any]]) -> str:
    """A line for each method."""
    columns = plugins.METHOD_COLUMNS
    lines = [(record["name"], *(record[c] or "–" for c in columns)) for record in records]
    return "\n".join(output.aligned([("method", *columns), *lines]))


# The table of tasks.

TASK_COLUMNS = (
    "benchmark", "n_train", "n_validation", "n_test", "length", "metric", "answers", "sources",
    "licence", "models", "embedded_weights", "embedded_model",
)  # fmt: skip
"""Columns of a task in a machine-readable listing."""
HEAD = ("task", "n: train/dev/test", "tokens", "metric", "rows from", "read", "licence")
READ = {Reads.ABOVE: "yes", Reads.AT_CHANCE: "no", Reads.NOT_TRIED: "–"}
RIGHT = (1, 2)
WIDTH = 100
SPLITS = ("train", "validation", "test")
ALONE = "benchmarks of one task"
FEW = 3
"""Maximum number of benchmarks named for one kind of answers."""
NOTE = """\
n: rows of the official splits. tokens: the length at which the benchmark is measured; a run reads
4,096 unless it is given length=… Embedded rows exist unless the column has "only". Local rows are
read with data=local data.dir=FOLDER, rows of the hub with data=hub after `bench fetch TASK`. hub?:
nobody has checked the commit and the files yet; `bench fetch --probe` does. `bench ls` describes
each task. model=embedded takes the shipped model of a task; any checkpoint of these families
answers too. read: yes if vanilla with the shipped weights scores above the best constant answer on
a few embedded rows (card.yaml has the scores); no if it is at chance, so that these rows don't
distinguish methods; – if it was not tried."""


def task_facts(name: str, conf: Mapping[str, Any]) -> dict[str, Any]:
    """TASK_COLUMNS of a task, from its YAML, and the kind of answers of this project's tasks."""
    n, hub = (value if isinstance(value, dict) else {} for value in map(conf.get, ("n", "hub")))
    sources = []
    if conf.get("files") or conf.get("member"):
        sources.append("local")
    if hub:
        sources.append("hub?" if hub.get("unverified") else "hub")
    task = None
    # A plugin's isn't imported.
    if str(conf.get("target", "")).startswith("tasks."):
        with contextlib.suppress(RequestError):
            task = task_of(conf)
    if task is not None and not getattr(task, "has_embedded", True):
        sources.append("only")
    answers = task.answers if task is not None else None
    read, model = answering.reads(name)
    return {
        **{f"n_{split}": n.get(split) for split in SPLITS},
        **{key: conf.get(key) for key in ("length", "metric", "licence")},
        "benchmark": str(conf.get("benchmark", name)),
        "sources": " ".join(sources) or "embedded",
        "answers": answers,
        "models": " ".join(models_for(answers, name)) if answers else None,
        "embedded_weights": str(read),
        "embedded_model": model,
    }


def task_table(records: Sequence[Mapping[str, Any]]) -> str:
    """One line for each task under a line for each benchmark, at most 120 columns wide."""
    found: dict[str, list[tuple[str, ...]]] = {}
    kinds: dict[str, dict[str, None]] = {}
    for record in records:
        alone = record["benchmark"] == record["name"]
        found.setdefault(ALONE if alone else record["benchmark"], []).append(_line(record))
        if record["answers"]:
            kinds.setdefault(record["answers"], {})[record["benchmark"]] = None
    groups = sorted(found.items(), key=lambda one: (one[0] == ALONE, one[0]))
    lines = iter(output.aligned([HEAD, *chain(*(group for _, group in groups))], RIGHT))
    text = [next(lines)]
    for benchmark, group in groups:
        text += ["", benchmark, *islice(lines, len(group))]
    for kind, benchmarks in kinds.items():
        where = f" ({', '.join(benchmarks)})" if len(benchmarks) <= FEW else ""
        models = f"Models that answer with {ANSWERS[kind]}{where}: {', '.join(models_for(kind))}"
        text += ["", textwrap.fill(models, WIDTH, break_on_hyphens=False)]
    return "\n".join([*text, "", NOTE])


def _line(record: Mapping[str, Any]) -> tuple[str, ...]:
    counts = [record[f"n_{split}"] for split in SPLITS]
    return (
        f"  {record['name']}",
        "/".join(map(_number, counts)),
        _number(record["length"]),
        str(record["metric"] or "–"),
        record["sources"],
        READ[record["embedded_weights"]],
        str(record["licence"] or "–"),
    )


def _number(value: Any) -> str:
    """A number as text; a plugin's YAML may contain another value."""
    return f"{value:,}" if isinstance(value, int) else "–" if value is None else str(value)


TABLES = {"method": (method_table, plugins.METHOD_COLUMNS), "task": (task_table, TASK_COLUMNS)}
"""Group → its table for a person, and its columns for a program."""
