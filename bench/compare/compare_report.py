"""Two selections of rows compared cell by cell, and which limits their changes exceed."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from bench.compare import compare, matching
from bench.compare.compare import Difference, Limit
from bench.compare.matching import KEY, Matched, Pair
from bench.errors import RequestError, unknown
from bench.rows.columns import value_of
from bench.rows.quality_verdicts import compared, labelled
from bench.rows.query import Selection
from bench.status import Status

MEASURED = {
    "quality": ("value",),
    "latency": ("lat_median_ns",),
    "tpot": ("tpot_median_ns",),
    "memory": ("rss_peak_delta_bytes", "gpu_alloc_delta_bytes"),
    "kv_held": ("kv_bytes_held",),
}
"""Figure → columns; a row for which it was measured has at least one of them."""
ALWAYS = ("quality", "latency", "memory")
BARE_LABELS = ("method", "task", "model", "device", "dtype")
"""Columns whose value is shown without a name."""
FIRST = ("task", "model", "length", "measure")
"""Columns by which cells are distinguished before the others."""


class CellComparison(NamedTuple):
    """A pair of rows, its label among the pairs, and its change in each figure that at least one
    row has; quality, latency and memory are also listed if one row failed or both have none."""

    pair: Pair
    label: str
    differences: list[Difference]

    @classmethod
    def of(cls, pair: Pair, label: str, all_figures: Sequence[Difference]) -> CellComparison:
        """`all_figures`: its change in each of `compare.FIGURES`."""
        has = {
            figure
            for figure, columns in MEASURED.items()
            if any(value_of(row, name) is not None for row in pair for name in columns)
        }
        if not has or any(row["status"] != Status.OK for row in pair):
            has |= {*ALWAYS}
        return cls(pair, label, [each for each in all_figures if each.figure in has])

    @property
    def shown(self) -> str:
        """The label, with a mark if the weights are toy weights."""
        return labelled(self.label, {**self.pair.a, "weights_format": None})

    def difference(self, figure: str) -> Difference:
        found = (each for each in self.differences if each.figure == figure)
        return next(found, Difference(figure, note="not measured"))


def compare_selections(
    a: Selection, b: Selection, on: Collection[str], margin: float
) -> tuple[list[CellComparison], Matched]:
    """Each cell of A and its counterpart in B, corrected for the number of comparisons, and the
    rows behind them. `on` names columns in which cells may differ; scores within `margin` points
    are the same.

    Raises RequestError for an unknown column, a negative margin, and when nothing matches.
    """
    if not margin >= 0:
        raise RequestError(f"--margin {margin} is not accepted: it must be 0 or more")
    for name in on:
        if name not in KEY:
            raise unknown("column of the key", name, KEY)
    matched = matching.match(a, b, on)
    folders = [selection.folder for selection in (a, b)]
    # Predictions are in the same folder as the rows, also for a single file of rows.
    folders = [folder.parent if folder.is_file() else folder for folder in folders]
    differences = []
    for pair in matched.pairs:
        differences += [
            _quality(pair, folders, margin),
            *(compare.time(figure, *pair) for figure in compare.TIMES),
            compare.memory(*pair),
            compare.kv_held(*pair),
        ]
    corrected = iter(compare.holm_corrected(differences))
    figures = [list(islice(corrected, len(compare.FIGURES))) for _ in matched.pairs]
    return list(map(CellComparison.of, matched.pairs, _labels(matched.pairs), figures)), matched


def _quality(pair: Pair, folders: Sequence[Path], margin: float) -> Difference:
    a, b = pair
    unknown_change = Difference("quality", a["value"], b["value"])
    for side, row in (("A", a), ("B", b)):
        if row["value"] is None:
            reason: str = "no score" if row["status"] == Status.OK else row["status"]
            reason = "random weights have none" if row["weights_kind"] == "random" else reason
            return unknown_change._replace(note=f"{side}: {reason}")
    if (a["task"], a["metric"]) != (b["task"], b["metric"]):
        return unknown_change._replace(note="different tasks")
    from bench.rows.predictions import documents
    from bench.rows.rescore import scores

    try:
        ours, theirs = (scores(row, folder) for row, folder in zip(pair, folders, strict=True))
    except RequestError as error:
        if a["metric_version"] != b["metric_version"]:
            return unknown_change._replace(note=f"of two versions of the metric: {error}")
        weights = compared(a["weights_sha256"], b["weights_sha256"])
        found = compare.unpaired_quality(a, b)
        reason = str(error).partition(": ")[0]
        return found._replace(comparison=weights, note=f"unpaired, since {reason}")
    shared = [sample for sample in ours if sample in theirs]
    if not shared:
        return unknown_change._replace(note="no shared samples")
    first, second = ([scored[sample] for sample in shared] for scored in (ours, theirs))
    higher_is_better = a["higher_is_better"] is not False
    difference = compare.quality(first, second, higher_is_better, margin, documents(shared))
    weights = compared(a["weights_sha256"], b["weights_sha256"])
    difference = difference._replace(comparison=weights)
    if a["metric_version"] != b["metric_version"]:
        return difference._replace(note="both by today's metric")
    return difference


def _labels(pairs: Sequence[Pair]) -> list[str]:
    """Labels that distinguish the pairs: task and length, the model if there are several, and
    further parts while pairs have equal labels, the methods' parameters last."""
    columns = [
        name
        for name in KEY
        if name != "method_params"
        and not name.endswith(("sha256", "version"))
        and all(value_of(pair.a, name) == value_of(pair.b, name) for pair in pairs)
    ]
    parts = [{n: value_of(pair.a, n) for n in columns} | _parameters(pair) for pair in pairs]

    def distinct(names: Collection[str]) -> int:
        return len({tuple(str(part.get(name)) for name in names) for part in parts})

    always = ("task", "length", *(["model"] if distinct(["model"]) > 1 else []))
    kept: list[str] = []
    names = list(dict.fromkeys(chain.from_iterable(parts)))
    for name in dict.fromkeys((*FIRST, *names)):
        if name in always or distinct([*kept, name]) > distinct(kept):
            kept.append(name)
    return [
        " ".join(
            f"{'' if name in BARE_LABELS else f'{name}='}{part[name]}"
            for name in names
            if name in kept and part.get(name) is not None
        )
        for part in parts
    ]


def _parameters(pair: Pair) -> dict[str, Any]:
    """The parameters of the pair's methods: method.k if both sides have the value, else A.k."""
    sides = [json.loads(row["method_params"] or "{}") for row in pair]
    found = {}
    for letter, own, other in zip("AB", sides, sides[::-1], strict=True):
        for name, value in own.items():
            side = "method" if other.get(name) == value else letter
            found[f"{side}.{name}"] = value["name"] if isinstance(value, dict) else value
    return found


def exceeded(limit: Limit, cells: Sequence[CellComparison]) -> Iterator[str]:
    """A line for each cell beyond the limit. A figure missing because B failed exceeds every limit,
    and so does a comparison in which no cell has the figure."""
    comparable = False
    for cell in cells:
        difference, status = cell.difference(limit.figure), cell.pair.b["status"]
        comparable |= difference.change_pct is not None
        if limit.exceeded_by(difference):
            yield f"{limit.text}: {cell.label}: {difference.change_pct:+.1f} %"
        elif cell.pair.a["status"] == Status.OK != status and difference.change_pct is None:
            yield f"{limit.text}: {cell.label}: B ended with {status}"
            comparable = True
    if not comparable:
        notes = dict.fromkeys(cell.difference(limit.figure).note for cell in cells)
        yield f"{limit.text}: can't be judged: {'; '.join(filter(None, notes)) or 'no figure'}"
