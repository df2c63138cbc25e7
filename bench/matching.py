"""Which row of B stands against which row of A, and what makes two cells different."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.errors import RequestError
from bench.rows import Row, Selection, best, counting

KEY = (
    "method", "method_params", "benchmark", "task", "task_version", "split", "data_source",
    "dataset_sha256", "n_samples_planned", "model", "weights_kind", "weights_sha256", "length",
    "batch", "dtype", "device", "threads", "seed", "measure",
)  # fmt: skip
"""What makes two rows of the same cell, but for the version of the code."""
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
"""Columns that can't stay equal when another one changes: weights that were trained further with
a method, stories written for a length."""

NOT_IN_KEY = ("model.path", "model.adapted", "data.dir")
"""Parts of a cell that may differ between rows of one key: where things lie."""


class Pair(NamedTuple):
    a: Row
    b: Row


class Matched(NamedTuple):
    """Pairs of rows, and the rows that have no counterpart. `free` are the columns in which the
    two of a pair may differ."""

    pairs: list[Pair]
    only_a: list[Row]
    only_b: list[Row]
    free: frozenset[str]


def match(a: Selection, b: Selection, on: Collection[str] = ()) -> Matched:
    """Each cell of A with its counterpart in B: equal in all of KEY but what A and B are compared
    on, which is what their words say differently, and `on`. On the same host where there is one.

    Raises RequestError when nothing matches, or when words leave several cells to choose from.
    """
    if a.one and b.one:
        pairs = [Pair(best(a.rows), best(b.rows))]
        return Matched(_told_apart(pairs, a, b), [], [], frozenset(KEY))
    words = {n for n in {*a.named, *b.named} if a.named.get(n) != b.named.get(n)} | set(on)
    free = {"method_params" if name.startswith("method.") else name for name in words}
    for name in tuple(free):
        free |= {name, *FOLLOWS.get(name, ())}
    pairs, left, right = [], counting(a.rows), counting(b.rows)
    for where in (("host_id",), ()):
        names = [name for name in (*KEY, *where) if name not in free]
        ours, theirs = _grouped(left, names), _grouped(right, names)
        for cell in ours:
            if cell in theirs:
                pairs.append(Pair(_only(ours[cell], a, free), _only(theirs[cell], b, free)))
        left = [row for cell, group in ours.items() if cell not in theirs for row in group]
        right = [row for cell, group in theirs.items() if cell not in ours for row in group]
    if not pairs:
        raise RequestError(_no_match(left, right, a, b, free))
    return Matched(_told_apart(pairs, a, b), left, right, frozenset(free))


def _grouped(rows: Iterable[Row], names: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        probe = json.loads(row.get("cell") or "{}").get("probe")
        groups.setdefault((*(row[name] for name in names), probe), []).append(row)
    return groups


def _only(rows: list[Row], selection: Selection, free: Collection[str]) -> Row:
    """The newest row of a group: its rows may differ in code and hashes, in nothing else."""
    for name in sorted({*free} & {*KEY}):
        values = {str(row[name]) for row in rows}
        if len(values) > 1 and not name.endswith(("sha256", "version")):
            some = ", ".join(sorted(values)[:4])
            raise RequestError(
                f"'{selection.text}' leaves several cells to choose from: {name} is {some}; "
                f"name one ({'method.NAME' if name == 'method_params' else name}=…)"
            )
    return best(rows)


def _told_apart(pairs: list[Pair], a: Selection, b: Selection) -> list[Pair]:
    if all(pair.a["row_id"] == pair.b["row_id"] for pair in pairs):
        raise RequestError(f"'{a.text}' and '{b.text}' are the same rows")
    return pairs


def _no_match(
    left: list[Row], right: list[Row], a: Selection, b: Selection, free: Collection[str]
) -> str:
    told = []
    for name in KEY:
        ours, theirs = ({str(row[name]) for row in rows} for rows in (left, right))
        if name not in free and not ours & theirs:
            short = (", ".join(sorted(v[:12] for v in values)[:3]) for values in (ours, theirs))
            told.append(f"{name} ({' / '.join(short)})")
    why = f"they differ in {'; '.join(told)}" if told else "no two rows agree in all the rest"
    return (
        f"no cell of '{a.text}' has a counterpart in '{b.text}': {why}. "
        "--on NAME compares cells that differ in NAME"
    )


def explain(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs between the keys of two cells, as (name, in A, in B); the names of nested
    parts are joined with a dot."""
    ours, theirs = flat(a), flat(b)
    names = dict.fromkeys([*ours, *theirs])
    return [(n, ours.get(n), theirs.get(n)) for n in names if ours.get(n) != theirs.get(n)]


def flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """The parts of a cell that its key is made of."""
    parts: dict[str, Any] = {}
    for name, value in content.items():
        whole = f"{above}{name}"
        if whole not in NOT_IN_KEY:
            parts |= flat(value, f"{whole}.") if isinstance(value, Mapping) else {whole: value}
    return parts
