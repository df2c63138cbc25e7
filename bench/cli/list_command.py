"""`bench ls`: the names of everything that a request may choose. Imports no torch and no plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from bench.errors import RequestError, unknown
from bench.request import plugins
from bench.request.overrides import GROUPS
from bench.terminal import method_table, task_table, text_table
from bench.terminal.options import command, format_option

METRICS = "metrics"
PLURALS = {group if group == "data" else f"{group}s": group for group in GROUPS}
LISTS = (*PLURALS, METRICS)
TABLES = {"method": method_table.method_table, "task": task_table.task_table}
COLUMNS = {"method": method_table.METHOD_COLUMNS, "task": task_table.TASK_COLUMNS}
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
        text_table.show(form, names, metrics, names, cells)
        return 0
    if chosen and chosen not in PLURALS and chosen not in GROUPS:
        raise unknown("list", chosen, LISTS)
    groups = [PLURALS.get(chosen, chosen)] if chosen else SHOWN
    table = TABLES.get(groups[0]) if len(groups) == 1 else None
    for_program = text_table.tabular(form)
    # Facts of tasks need their classes, which import numpy: the overview shows none.
    with_facts = for_program or len(groups) == 1
    records = [
        _record(group, name, path, with_facts)
        for group in groups
        for name, path in plugins.available(group).items()
    ]
    if for_program:
        columns = COLUMNS[groups[0]] if table else ()
        text_table.write(form, ("group", "name", "about", *columns, "problem"), records)
        return 0
    usable = [record for record in records if not record["problem"]]
    for group in groups if not table else ():
        lines = [(f"  {r['name']}", r["about"]) for r in usable if r["group"] == group]
        text = "\n".join(text_table.aligned(lines))
        print(text if len(groups) == 1 else f"{group}:\n{text}")
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
            return {**record, **task_table.task_facts(name, content)}
        case "method":
            return {**record, **method_table.method_facts(content)}
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
