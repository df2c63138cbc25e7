"""Why a row's figure can't be compared with a printed one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from bench.request import plugins
from reports.papers import measured
from reports.papers.definitions import Definition, PaperMethod, PaperMetric
from reports.papers.printed import Printed
from reports.rows import Row

DEV = ("dev", "validation")


def objections(
    definition: Definition, row: Row, printed: Printed, method: PaperMethod, metric: PaperMetric
) -> Iterator[str]:
    """A score needs the paper's data, split and kind of weights; a ratio needs its batch; both need
    the paper's model size, parameters and length."""
    if metric.measure in measured.SCORES:
        yield from _of_scores(definition, row, printed, method)
    if metric.cannot:
        yield metric.cannot
    if method.unstated:
        yield method.unstated
    size = definition.size(printed)
    model = definition.models_of(method).get(size)
    if model is None or not measured.of_size(row, model.like):
        expected = size or "of another size"
        yield f"model {row['model']}; the paper's is {expected}"
    batch = printed.extra.get("batch")
    if metric.measure in measured.RATIOS and batch not in (None, row["batch"]):
        yield f"batch {row['batch']}; the paper's is {batch}"
    settings = {k: printed.extra[k] for k in definition.settings if k in printed.extra}
    given = measured.parameters(row)
    for name, value in (method.parameters(printed.task, size) | settings).items():
        # Where a row has None, the method chose: it chooses as its paper does.
        if given.get(name) not in (None, value):
            other = f"{name}={given[name]}"
            does = f" ({method.unlike[other]})" if other in method.unlike else ""
            yield f"{other}{does}; the paper's is {value}"
    limit = None if definition.any_length else printed.length
    wanted = limit or task_length(definition.task(printed.task).task)
    if wanted and (row["length"] or 0) < wanted:
        yield f"truncated at {row['length'] or 0:,} tokens; the paper's limit is {wanted:,}"


def _of_scores(
    definition: Definition, row: Row, printed: Printed, method: PaperMethod
) -> Iterator[str]:
    if row["data_source"] == "embedded":
        yield "embedded rows are this project's own, not the benchmark's"
    if row["weights_kind"] not in definition.weights:
        yield f"{row['weights_kind']} weights; the paper's are {definition.setup['weights']}"
    if printed.split and _split(row["split"]) != _split(printed.split):
        yield f"{row['split']} split; the paper's is {printed.split}"
    yield from filter(None, (method.scores, definition.task(printed.task).scores))


def _split(name: str | None) -> str:
    return "validation" if name in DEV else name or ""


@cache
def task_length(task: str | None) -> int | None:
    """The input length that the task's own YAML states."""
    conf = plugins.conf("task", task) if task in plugins.available("task") else {}
    length = conf.get("length")
    return length if isinstance(length, int) else None
