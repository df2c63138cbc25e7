"""Reasons why a row's figure can't be compared with a printed one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from bench.request import plugins
from reports.papers import measured
from reports.papers.definitions import Definition, PaperMethod, PaperMetric, PaperModel
from reports.papers.printed import Printed
from reports.rows import Row, json_object

DEV = ("dev", "validation")
NEAR = 0.1
"""A cost at a length this near, as a share, stands for that at the printed mean."""
SIZES = re.compile(r"d_\w+|\w+_(layers|heads)|(hidden|intermediate|head)_size|\w+_ffn_dim")
"""Entries of a configuration that its cost follows from."""


def objections(
    definition: Definition, row: Row, printed: Printed, method: PaperMethod, metric: PaperMetric
) -> Iterator[str]:
    """A score needs the paper's data, split and kind of weights; a ratio needs its batch; both need
    the paper's model size, parameters and length."""
    if metric.measure in measured.SCORES:
        if row["data_source"] == "embedded":
            yield "embedded rows are this project's own, not the benchmark's"
        if row["weights_kind"] not in definition.weights:
            yield f"{row['weights_kind']} weights; the paper's are {definition.setup['weights']}"
        if printed.split and _split(row["split"]) != _split(printed.split):
            yield f"{row['split']} split; the paper's is {printed.split}"
    yield from lacking(definition, printed, method, metric)
    size = definition.size(printed)
    model = definition.models_of(method).get(size)
    if model is None or not measured.of_size(row, model.like):
        expected = size or "of another size"
        yield f"model {row['model']}; the paper's is {expected}"
    elif metric.measure in measured.RATIOS:
        yield from _of_size(row, model)
    batch = printed.extra.get("batch")
    if metric.measure in measured.RATIOS and batch is not None:
        part = max(1, batch // definition.devices)
        if row["batch"] not in (batch, part):
            a_device = f", {part} on each device" if part != batch else ""
            yield f"batch {row['batch']}; the paper's is {batch}{a_device}"
    given = json_object(row["method_params"])
    for name, value in definition.parameters(method, printed, printed.task).items():
        if name == "layers" and metric.measure == "attention":
            continue  # the attention of all layers takes the same time
        # None in a row means that the method chose, as in its paper.
        if given.get(name) not in (None, value):
            other = f"{name}={given[name]}"
            does = f" ({method.unlike[other]})" if other in method.unlike else ""
            yield f"{other}{does}; the paper's is {value}"
    if definition.any_length and printed.length and metric.measure in measured.RATIOS:
        if abs((row["length"] or 0) / printed.length - 1) > NEAR:
            yield f"{row['length'] or 0:,} tokens; the paper's mean is {printed.length:,}"
        return
    timed = row["timed_tokens"] if metric.measure in measured.RATIOS else None
    if timed and printed.length and abs(timed / printed.length - 1) > NEAR:
        yield f"inputs of {timed:,.0f} tokens were timed; the paper's have {printed.length:,}"
    limit = None if definition.any_length else printed.length
    wanted = limit or task_length(definition.task(printed.task).task)
    if wanted and (row["length"] or 0) < wanted:
        yield f"truncated at {row['length'] or 0:,} tokens; the paper's limit is {wanted:,}"


def lacking(
    definition: Definition, printed: Printed, method: PaperMethod, metric: PaperMetric
) -> Iterator[str]:
    """Data that no row of this project can have, for any measurement."""
    if metric.measure in measured.SCORES and printed.task not in definition.averages:
        yield from filter(None, (method.scores, definition.task(printed.task).scores))
    elif metric.measure in measured.SCORES:
        yield from filter(None, (method.scores,))
    known = metric.measure in measured.RATIOS and definition.method(printed.method).ends
    yield from filter(None, (metric.cannot, None if known else method.unstated))


def _of_size(row: Row, model: PaperModel) -> Iterator[str]:
    """Entries of a model's configuration that the request changed and that change its cost."""
    config = measured.model_config(row)
    name = str(row["model"])
    own = plugins.conf("model", name).get("config") if name in plugins.available("model") else {}
    expected = {**(own or {}), **model.config}
    for key in sorted(config.keys() | model.config.keys()):
        if SIZES.fullmatch(key) and config.get(key) != expected.get(key):
            yield f"{name} with {key}={config.get(key)}; the paper's has {expected.get(key)}"


def _split(name: str | None) -> str:
    return "validation" if name in DEV else name or ""


@cache
def task_length(task: str | None) -> int | None:
    """The input length in the task's YAML."""
    conf = plugins.conf("task", task) if task in plugins.available("task") else {}
    length = conf.get("length")
    return length if isinstance(length, int) else None
