"""Boards: rows that may be ranked against each other, with their ranks."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import plugins
from bench.errors import RequestError
from bench.rows import Row
from bench.store import PREDICTIONS
from reports.leaderboard import ranks
from reports.leaderboard.look import LOOKS
from reports.leaderboard.pick import BOARD, board_of

KINDS = {
    "official": "Official data",
    "own": "Embedded data or weights",
    "random": "Random weights",
}
"""Kinds of boards, which never share a table."""
ABOUT = {
    "official": "",
    "own": "Rows or weights made by this project: they compare methods, and are no official score.",
    "random": "Untrained weights: speed and memory mean something, quality doesn’t.",
}


@dataclass(frozen=True)
class Entry:
    """One row on a board: `label` names its method, `rank` its first and last possible rank.
    `beaten` says by how it is drawn against latency and memory: surely behind another row."""

    row: Row
    label: str
    rank: tuple[int, int] | None
    beaten: tuple[bool, bool]


@dataclass(frozen=True)
class Board:
    """`key` holds the columns BOARD; `how` says what the ranks rest on, `about` what the rows
    share of the question (task, length, metric) and `setting` of how it was asked."""

    key: Mapping[str, Any]
    kind: str
    entries: list[Entry]
    how: str
    about: str
    setting: str

    @property
    def title(self) -> str:
        return f"{self.about} · {self.setting}"

    @property
    def benchmark(self) -> str:
        return self.key["benchmark"] or "no benchmark"


def boards(rows: Iterable[Row], progress: Callable[[int, int], None]) -> list[Board]:
    """Every row on its board, benchmarks with most rows first; `progress(done, all)` is told of
    each board."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(board_of(row), []).append(row)
    sizes = Counter(row["benchmark"] for group in groups.values() for row in group)
    made = []
    seen = {name: {group[0][name] for group in groups.values()} for name in ("measure", "host_id")}
    several = [name for name, values in seen.items() if len(values) > 1]
    # Boards of one task stand together, so that its samples are loaded once.
    for number, group in enumerate(
        sorted(groups.values(), key=lambda g: (-sizes[g[0]["benchmark"]], _order(g)))
    ):
        progress(number, len(groups))
        made.append(_board(group, several))
    return made


def _order(group: Sequence[Row]) -> tuple[Any, ...]:
    row = group[0]
    kind = list(KINDS).index(_kind(row))
    rest = [_sortable(row[name]) for name in BOARD]
    return (row["benchmark"] or "", kind, row["task"] or "", row["length"] or 0, rest)


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = value if isinstance(value, int | float) else 0.0
    return value is None, float(number), str(value)


def _kind(row: Row) -> str:
    if row["weights_kind"] == "random":
        return "random"
    own = row["data_source"] == "embedded" or row["weights_kind"] == "embedded"
    return "own" if own else "official"


def _board(group: list[Row], several: Collection[str]) -> Board:
    kind = _kind(group[0])
    measured = [row for row in group if finite(row["value"]) is not None and kind != "random"]
    found = ranks.rank(measured, [_scores(row) for row in measured]) if measured else None
    place: dict[str, tuple[int, int]] = {}
    behind: dict[str, list[bool]] = {}
    if found:
        for row, first, last in zip(measured, found.first, found.last, strict=True):
            place[row["row_id"]] = first, last
        for cost in ("ratio", "mem_ratio"):
            for row, hit in zip(measured, ranks.beaten(measured, found.better, cost), strict=True):
                behind.setdefault(row["row_id"], []).append(hit)
    labels = _labels(group)
    entries = []
    for row, label in zip(group, labels, strict=True):
        latency, memory = behind.get(row["row_id"], (False, False))
        rank = place.get(row["row_id"]) if len(measured) > 1 else None
        entries.append(Entry(row, label, rank, (latency, memory)))
    key = {name: group[0][name] for name in BOARD}
    how = found.how if found else ""
    return Board(key, kind, sorted(entries, key=_place), how, *_titles(group, several))


def _titles(group: Sequence[Row], several: Collection[str]) -> tuple[str, str]:
    """What the rows share, of the question and of how it was asked, as far as it isn't so on every
    board: `several` are the columns that differ between boards."""
    row = group[0]
    metric = next((r["metric"] for r in group if r["metric"]), None)
    n = row["n_samples_planned"]
    about = [
        row["task"] or "no task",
        f"{row['length']:,} tokens" if row["length"] is not None else None,
        metric,
        f"seed {row['seed']}" if row["seed"] else None,
    ]
    setting = [
        f"{row['model']}, {row['weights_kind']} weights",
        f"{row['data_source']} rows, " + ("all of them" if n is None else f"n\u00a0=\u00a0{n:,}"),
        f"{row['device']} {row['dtype']}",
        _threads(row["threads"]) if row["device"] == "cpu" else None,
        f"batch {row['batch']}" if row["batch"] not in (None, 1) else None,
        row["measure"] if "measure" in several else None,
        f"host {row['host_id'] or 'unknown'}"[:13] if "host_id" in several else None,
    ]
    first, rest = (" · ".join(str(p) for p in parts if p) for parts in (about, setting))
    return first, rest


def _threads(count: int | None) -> str | None:
    return None if count is None else "1 thread" if count == 1 else f"{count} threads"


def finite(value: float | None) -> float | None:
    """The value; None for what is no number."""
    return value if value is not None and math.isfinite(value) else None


def _place(entry: Entry) -> tuple[Any, ...]:
    """By rank, then by value; what has none goes last, by method."""
    row = entry.row
    value = finite(row["value"])
    sign = -1 if row["higher_is_better"] is False else 1
    better = -math.inf if value is None else sign * value
    known = [*LOOKS]
    order = known.index(row["method"]) if row["method"] in known else len(known)
    return (row["status"] != "ok", entry.rank or (math.inf, 0), -better, order, entry.label)


def _labels(group: Sequence[Row]) -> list[str]:
    """The method, with those of its parameters in which rows of the board differ; and with the
    beginning of its weights' hash where only these differ."""
    parameters = [_parameters(row["method_params"]) for row in group]
    labels = []
    for row, own in zip(group, parameters, strict=True):
        others = [p for r, p in zip(group, parameters, strict=True) if r["method"] == row["method"]]
        differing = {n: own.get(n) for p in others for n in (*own, *p) if p.get(n) != own.get(n)}
        words = [f"{name}={value}" for name, value in sorted(differing.items())]
        labels.append(" ".join([row["method"] or "no method", *words]))
    again = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} ({(row['weights_sha256'] or 'no weights')[:8]})" if label in again else label
        for label, row in zip(labels, group, strict=True)
    ]


@functools.lru_cache(maxsize=4096)
def _parameters(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _scores(row: Row) -> dict[Any, float] | None:
    """Scores of the row's samples; None where its predictions, or the task's rows, are gone."""
    folder = row["folder"] if row["folder"].is_dir() else row["folder"].parent
    if not row["predictions_path"] or not (folder / PREDICTIONS).is_dir() or not _known_task(row):
        return None
    from bench.rescore import ScoreError, scores

    try:
        return scores(row, folder)
    except (ScoreError, LookupError, TypeError, ValueError):  # a stranger's cell may lack anything
        return None


def _known_task(row: Row) -> bool:
    """Whether the row's task is one of this installation: what rows name isn't run unseen."""
    try:
        task = json.loads(row["cell"] or "{}")["task"]
        return bool(_target(task["name"]) == task["target"])
    except (ValueError, LookupError, TypeError, RequestError):
        return False


@functools.cache
def _target(task: str) -> Any:
    return plugins.conf("task", task)["target"]
