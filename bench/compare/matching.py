"""Matches the rows of A with rows of B, and finds the differences between two cells."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, product
from typing import Any, NamedTuple

from bench.errors import RequestError
from bench.rows.columns import Row, value_of
from bench.rows.query import Selection, best, counting

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
