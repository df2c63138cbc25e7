"""Matches the rows of A with rows of B, and compares each pair: two selections cell by cell, and
which limits their changes exceed. Also finds the differences between two cells.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from bench.compare import compare
from bench.compare.compare import Difference, Limit
from bench.errors import RequestError, unknown
from bench.rows import row_facts
from bench.rows.columns import Row, value_of
from bench.rows.query import Selection, best, counting
from bench.status import Status

KEY = (
    "method", "method_params", "benchmark", "task", "task_version", "split", "data_source",
    "dataset_sha256", "n_samples_planned", "model", "weights_kind", "weights_sha256", "length",
    "batch", "dtype", "device", "threads", "seed", "measure", "new_tokens",
    "question", "turns", "prompt", "filled", "n_unanswerable",
)  # fmt: skip
"""Columns in which rows of the same cell agree for any version of the code."""
FOLLOWS = {
    "method": ("method_params", "weights_sha256"),
    "model": ("weights_kind", "weights_sha256"),
    "weights_kind": ("weights_sha256",),
    "benchmark": ("task", "task_version", "split", "dataset_sha256"),
    "task": ("task_version", "split", "dataset_sha256"),
    "data_source": ("split", "dataset_sha256"),
    "split": ("dataset_sha256",),
    "n_samples_planned": ("dataset_sha256",),
    "length": ("dataset_sha256",),
    "seed": ("dataset_sha256",),
}
"""Column → columns that change with it: the weights may be trained with the method, and generated
text depends on the length."""

BESIDE = (
    "status", "kernel", "lat_ratio", "engine_ratio", "tpot_ratio", "kv_bytes_held",
    "method_version", "metric_version", "predictions_sha256", "code_sha", "host_id", "cpu_model",
    "gpu_name", "gpu_driver", "os_kernel", "python", "torch", "packages_sha", "noisy",
    "large_memory_kept",
)  # fmt: skip
"""Not in the key, but may explain why two rows of one cell differ."""
NOT_IN_KEY = ("model.path", "model.adapted", "data.dir")
"""Parts of a cell that its key leaves out: paths."""


class Pair(NamedTuple):
    a: Row
    b: Row


class Matched(NamedTuple):
    """Pairs of rows, and the rows that have no counterpart."""

    pairs: list[Pair]
    only_a: list[Row]
    only_b: list[Row]


def match(a: Selection, b: Selection, on: Collection[str] = ()) -> Matched:
    """Each cell of A with its counterpart in B: equal in all columns of KEY except the compared
    ones, which are those with different values in the two filters, and `on`. A counterpart measured
    on the same host is preferred. Settings of methods are paired if they `_agree`.

    Raises RequestError when nothing matches, or when a filter leaves several cells to choose from.
    """
    names = {n for n in {*a.named, *b.named} if a.named.get(n) != b.named.get(n)} | set(on)
    free = names | {"method_params" for name in names if name.startswith("method.")}
    for name in names:
        free |= {*FOLLOWS.get(name, ())}
    pairs, left, right = [], counting(a.rows), counting(b.rows)
    if a.one and b.one:
        pairs, left, right = [Pair(best(left), best(right))], [], []
    for where in (("host_id",), ()):
        fixed = [name for name in (*KEY, *where) if name not in free]
        ours, theirs = _grouped(left, fixed), _grouped(right, fixed)
        for cell in [cell for cell in ours if cell in theirs]:
            mine, other = _settings(ours[cell], a, free), _settings(theirs[cell], b, free)
            found = [Pair(*pair) for pair in product(mine, other) if _agree(*pair, names)]
            pairs += found
            paired = {row["row_id"] for pair in found for row in pair}
            ours[cell] = [row for row in mine if row["row_id"] not in paired]
            theirs[cell] = [row for row in other if row["row_id"] not in paired]
        left, right = (list(chain(*groups.values())) for groups in (ours, theirs))
    if not pairs:
        raise RequestError(_no_match(left, right, a, b, free))
    if all(pair.a["row_id"] == pair.b["row_id"] for pair in pairs):
        raise RequestError(f"'{a.text}' and '{b.text}' are the same rows")
    return Matched(pairs, left, right)


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        probe = json.loads(row.get("cell") or "{}").get("probe")
        groups.setdefault((*(value_of(row, name) for name in names), probe), []).append(row)
    return groups


def _settings(rows: list[Row], selection: Selection, free: set[str]) -> list[Row]:
    """The newest row of each setting of a group's method; rows of a setting may differ only in code
    and hashes."""
    for name in sorted(free & {*KEY} - {"method_params"}):
        values = {str(value_of(row, name)) for row in rows}
        if len(values) > 1 and not name.endswith(("sha256", "version")):
            some = ", ".join(sorted(values)[:4])
            raise RequestError(
                f"'{selection.text}' leaves several cells to choose from: {name} is {some}; "
                f"name one ({name}=…)"
            )
    return [best(group) for group in _grouped(rows, sorted({"method_params"} & free)).values()]


def _agree(a: Row, b: Row, compared: Collection[str]) -> bool:
    """Whether two settings are paired: for different methods, if their budgets are equal or one has
    none; for one method, if all parameters but the `compared` ones are equal."""
    ours, theirs = (json.loads(row["method_params"] or "{}") for row in (a, b))
    shared = ours.keys() & theirs.keys() - {name.removeprefix("method.") for name in compared}
    if a["method"] != b["method"]:
        shared &= {"budget"}
    return "method_params" in compared or all(ours[name] == theirs[name] for name in shared)


def _no_match(
    left: list[Row], right: list[Row], a: Selection, b: Selection, free: Collection[str]
) -> str:
    reasons = []
    for name in KEY:
        ours, theirs = ({str(value_of(row, name)) for row in rows} for rows in (left, right))
        if name not in free and not ours & theirs:
            short = (", ".join(sorted(v[:12] for v in values)[:3]) for values in (ours, theirs))
            reasons.append(f"{name} ({' / '.join(short)})")
    differ = f"they differ in {'; '.join(reasons)}"
    why = differ if reasons else "no two rows agree in all else of the key and the budget"
    return (
        f"no cell of '{a.text}' has a counterpart in '{b.text}': {why}. "
        "--on NAME compares cells that differ in NAME"
    )


def key_differences(a: Row, b: Row) -> list[tuple[str, Any, Any]]:
    """Differences between the cells of two rows, as (name, in A, in B); the names of nested parts
    are joined with a dot. For an older row without a cell, the columns of its key are used."""
    cells = (
        json.loads(row["cell"] or "{}") or {n: value_of(row, n) for n in KEY} for row in (a, b)
    )
    first, second = map(flat, cells)
    names = dict.fromkeys([*first, *second])
    return [(n, first.get(n), second.get(n)) for n in names if first.get(n) != second.get(n)]


def other_differences(a: Row, b: Row) -> list[tuple[str, Any, Any]]:
    """Further possible reasons why two rows differ, as (name, in A, in B)."""
    values = [(name, value_of(a, name), value_of(b, name)) for name in BESIDE]
    return [line for line in values if line[1] != line[2]]


def flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The parts of a cell from which its key is made."""
    parts: dict[str, Any] = {}
    for name, value in content.items():
        whole = f"{above}{name}"
        if whole not in NOT_IN_KEY:
            parts |= flat(value, f"{whole}.") if isinstance(value, Mapping) else {whole: value}
    return parts


# Pairs compared figure by figure.

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

    @property
    def shown(self) -> str:
        """The label, with a mark if the weights are toy weights."""
        return row_facts.labelled(self.label, {**self.pair.a, "weights_format": None})

    @property
    def failed_in_b(self) -> bool:
        """Whether B's cell failed and A's did not."""
        return self.pair.a["status"] == Status.OK != self.pair.b["status"]

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
    matched = match(a, b, on)
    folders = [selection.folder for selection in (a, b)]
    # Predictions are in the same folder as the rows, also for a single file of rows.
    folders = [folder.parent if folder.is_file() else folder for folder in folders]
    found = [_differences(pair, folders, margin) for pair in matched.pairs]
    corrected = iter(compare.holm_corrected(list(chain(*found))))
    cells = [
        CellComparison(pair, label, [next(corrected) for _ in own])
        for pair, label, own in zip(matched.pairs, _labels(matched.pairs), found, strict=True)
    ]
    return cells, matched


def _differences(pair: Pair, folders: Sequence[Path], margin: float) -> list[Difference]:
    has = {
        figure
        for figure, columns in MEASURED.items()
        if any(value_of(row, name) is not None for row in pair for name in columns)
    }
    if not has or any(row["status"] != Status.OK for row in pair):
        has |= {*ALWAYS}
    found = [
        _quality(pair, folders, margin),
        *(compare.time(figure, *pair) for figure in compare.TIMES),
        compare.memory(*pair),
        compare.kv_held(*pair),
    ]
    return [each for each in found if each.figure in has]


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
    weights = row_facts.compared(a["weights_sha256"], b["weights_sha256"])
    from bench.rows.rescore import scores
    from bench.rows.store import documents

    try:
        ours, theirs = (scores(row, folder) for row, folder in zip(pair, folders, strict=True))
    except RequestError as error:
        if a["metric_version"] != b["metric_version"]:
            return unknown_change._replace(note=f"of two versions of the metric: {error}")
        found = compare.unpaired_quality(a, b)
        reason = str(error).partition(": ")[0]
        return found._replace(comparison=weights, note=f"unpaired, since {reason}")
    shared = [sample for sample in ours if sample in theirs]
    if not shared:
        return unknown_change._replace(note="no shared samples")
    first, second = ([scored[sample] for sample in shared] for scored in (ours, theirs))
    higher_is_better = a["higher_is_better"] is not False
    difference = compare.quality(first, second, higher_is_better, margin, documents(shared))
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
        difference = cell.difference(limit.figure)
        comparable |= difference.change_pct is not None
        if limit.exceeded_by(difference):
            yield f"{limit.text}: {cell.label}: {difference.change_pct:+.1f} %"
        elif cell.failed_in_b and difference.change_pct is None:
            yield f"{limit.text}: {cell.label}: B ended with {cell.pair.b['status']}"
            comparable = True
    if not comparable:
        notes = dict.fromkeys(cell.difference(limit.figure).note for cell in cells)
        yield f"{limit.text}: can't be judged: {'; '.join(filter(None, notes)) or 'no figure'}"
