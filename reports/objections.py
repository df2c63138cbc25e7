"""What speaks against setting a row's figure beside a printed one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from bench import plugins
from bench.rows import Row
from reports import measured
from reports.definitions import Definition, MethodHere, MetricHere
from reports.papers import Printed

DEV = ("dev", "validation")


def objections(
    definition: Definition, row: Row, printed: Printed, method: MethodHere, metric: MetricHere
) -> Iterator[str]:
    """A score needs the paper's data, split and kind of weights; a ratio needs its batch; both need
    the paper's model size, parameters and length."""
    if metric.measure in measured.SCORES:
        yield from _of_scores(definition, row, printed, method)
    if metric.cannot:
        yield metric.cannot
    size = definition.models.get(definition.size(printed))
    if size is None or not measured.of_size(row, size.like):
        told = definition.size(printed) or "of another size"
        yield f"model {row['model']}; the paper's is {told}"
    batch = printed.extra.get("batch")
    if metric.measure in measured.RATIOS and batch not in (None, row["batch"]):
        yield f"batch {row['batch']}; the paper's is {batch}"
    settings = {k: printed.extra[k] for k in definition.settings if k in printed.extra}
    given = measured.parameters(row)
    for name, value in (method.parameters(printed.task) | settings).items():
        if name in given and given[name] != value:
            yield f"{name}={given[name]}; the paper's is {value}"
    wanted = None if definition.any_length else printed.length
    wanted = wanted or task_length(definition.task(printed.task).task)
    if wanted and (row["length"] or 0) < wanted:
        yield f"cut at {row['length'] or 0:,} tokens; the paper's limit is {wanted:,}"


def _of_scores(
    definition: Definition, row: Row, printed: Printed, method: MethodHere
) -> Iterator[str]:
    if row["data_source"] == "embedded":
        yield "embedded rows are this project's own, not the benchmark's"
    if row["weights_kind"] not in definition.weights:
        yield f"{row['weights_kind']} weights; the paper's are {definition.says['weights']}"
    if printed.split and _split(row["split"]) != _split(printed.split):
        yield f"{row['split']} split; the paper's is {printed.split}"
    yield from filter(None, (method.scores, definition.task(printed.task).scores))


def _split(name: str | None) -> str:
    return "validation" if name in DEV else name or ""


@cache
def task_length(task: str | None) -> int | None:
    """The tokens that the task's own YAML gives an input."""
    found = plugins.conf("task", task) if task in plugins.available("task") else {}
    length = found.get("length")
    return length if isinstance(length, int) else None
