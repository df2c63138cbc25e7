"""`bench ls tasks`, from the descriptions in YAML. No plugin is imported."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from typing import Any

from bench.errors import RequestError
from bench.request import answering
from bench.request.answering import Reads, models_for
from bench.request.cell import task_of
from bench.terminal import text_table
from tasks.base import ANSWERS

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
    lines = iter(text_table.aligned([HEAD, *chain(*(group for _, group in groups))], RIGHT))
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
