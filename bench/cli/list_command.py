"""`bench ls`: the names of everything that a request may choose. Imports no torch and no plugin."""

from __future__ import annotations

import sys
from collections.abc import Sequence
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
TABLES: dict[str, Any] = {"method": method_table, "task": task_table}
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
    """Names and what their YAML says of them. A file that can't be used is listed with what is
    wrong with it."""
    for problem in plugins.problems():
        print(f"bench: {problem}", file=sys.stderr)
    if chosen == METRICS:
        names = ("name", "version", "tasks")
        if text_table.tabular(form):
            text_table.write(form, names, _metrics())
        else:
            text_table.draw("", names, [[str(r[n]) for n in names] for r in _metrics()], names)
        return 0
    if chosen and chosen not in PLURALS and chosen not in GROUPS:
        raise unknown("list", chosen, LISTS)
    groups = [PLURALS.get(chosen, chosen)] if chosen else SHOWN
    for_program = text_table.tabular(form)
    # Facts of tasks need their classes, and so numpy: the overview shows none.
    with_facts = for_program or len(groups) == 1
    records = [
        _record(group, name, path, with_facts)
        for group in groups
        for name, path in plugins.available(group).items()
    ]
    if for_program:
        columns = TABLES[groups[0]].COLUMNS if len(groups) == 1 and groups[0] in TABLES else ()
        text_table.write(form, ("group", "name", "about", *columns, "problem"), records)
    elif len(groups) == 1 and groups[0] in TABLES:
        print(TABLES[groups[0]].table(records))
    else:
        _print(records, titled=len(groups) > 1)
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
            return {**record, **task_table.facts(name, content)}
        case "method":
            return {**record, **method_table.facts(content)}
    return record


def _print(records: Sequence[dict[str, Any]], titled: bool) -> None:
    """A line for each name; the names of a group are aligned."""
    for group in dict.fromkeys(record["group"] for record in records):
        if titled:
            print(f"{group}:")
        lines = [
            (f"  {r['name']}", f"can't be used: {r['problem']}" if r["problem"] else r["about"])
            for r in records
            if r["group"] == group
        ]
        print("\n".join(text_table.aligned(lines)))


def _metrics() -> list[dict[str, Any]]:
    """Each metric with the tasks that it is official for."""
    from tasks.metrics import METRICS as metrics

    tasks = [(name, conf["benchmark"], conf.get("metric"))
             for name, conf in plugins.usable("task").items()]  # fmt: skip
    used: dict[str, list[str]] = {name: [] for name in sorted(metrics)}
    for name, benchmark, metric in tasks:
        own = f"{benchmark}/{metric}"
        used.setdefault(own if own in metrics else str(metric), []).append(name)
    return [
        {"name": name, "version": metrics[name].version, "tasks": " ".join(used[name])}
        for name in used
        if name in metrics
    ]
