"""Boards: rows that may be ranked against each other, with their ranks."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.errors import RequestError
from bench.host.host import short_host
from bench.request import plugins
from bench.rows import row_facts
from bench.rows.row_facts import labelled, vanilla_at_chance
from bench.rows.store import PREDICTIONS
from bench.status import Status
from bench.units import counted, finite
from reports.leaderboard import ranks
from reports.leaderboard.facts import processor
from reports.leaderboard.pick import BOARD, CELL, SHOWN, board_of
from reports.looks import VANILLA, looks
from reports.oracles import is_oracle, marked
from reports.rows import Row, grouped, json_object

KINDS = {
    "official": "Official data",
    "own": "Embedded data or weights",
    "official_partial": "Official data, without speed or without quality",
    "own_partial": "Embedded data or weights, without speed or without quality",
    "random": "Random weights",
}
"""Kinds of boards, which never share a table, in their order on the page."""
ABOUT = {
    "official": "",
    "own": "Rows or weights made by this project: for comparing methods; no official scores.",
    "official_partial": "Quality or speed was not measured: these boards show no trade-off.",
    "own_partial": "Quality or speed was not measured: these boards show no trade-off.",
    "random": "Untrained weights: speed and memory are meaningful, quality is not measured.",
}

NOT_RANKED = "not ranked: vanilla at chance"
"""Of a board whose rows can't tell methods apart."""


PREFIX = "base_"
OTHER_NAMES = {"lat_median_ns": "lat_base_median_ns", "lat_samples_ns": "lat_base_samples_ns"}
SHARED = (
    *CELL, "row_id", "created_utc", "code_sha", "code_dirty", "metric", "launcher",
    "higher_is_better", "chance", "new_tokens", "cpu_model", "instruction_sets", "cores_phys",
    "gpu_name", "os_kernel", "virt", "python", "torch", "noisy", "noise_reason",
)  # fmt: skip
"""Columns that are equal for vanilla and the row with which it was measured."""
MEASURED = [name for name in SHOWN if PREFIX + name in SHOWN]
FIGURES = (
    "base_value", "lat_base_median_ns", "base_rss_peak_delta_bytes", "tpot_base_median_ns",
)  # fmt: skip


@dataclass(frozen=True)
class BoardEntry:
    """One row on a board: `label` names its method; `rank` is its first and last possible rank, or
    None if the samples don't separate the row from any other. `beaten`, for latency and for memory:
    another row is significantly better in both quality and that cost. An `oracle` is a ceiling: it
    has no rank and beats no row."""

    row: Row
    label: str
    rank: tuple[int, int] | None
    beaten: tuple[bool, bool]
    oracle: bool = False


@dataclass(frozen=True)
class Board:
    """`key` holds the columns BOARD; `how` is the evidence for the ranks, `title` the task, length,
    metric, model, data and machine of all rows; `lacks` names the figures that no row has; with
    `at_chance`, vanilla isn't clearly above chance, so no row is ranked. `baseline` is vanilla if
    it has no row among the entries."""

    key: Mapping[str, Any]
    kind: str
    entries: list[BoardEntry]
    how: str
    title: str
    lacks: str = ""
    at_chance: bool = False
    baseline: BoardEntry | None = None

    @property
    def benchmark(self) -> str:
        return self.key["benchmark"] or "no benchmark"


def boards(rows: Iterable[Row], progress: Callable[[int, int], None]) -> list[Board]:
    """Every row on its board, benchmarks with the most rows on complete boards first;
    `progress(done, all)` is called for each board."""
    groups = grouped(rows, board_of)
    sizes: Counter[tuple[str, bool]] = Counter()
    lacking = {key: _lacks(group) for key, group in groups.items()}
    for key, group in groups.items():
        name = group[0]["benchmark"]
        sizes[name, True] += len(group) * (not lacking[key])
        sizes[name, False] += len(group)
    ranked = []
    seen = {name: {group[0][name] for group in groups.values()} for name in ("measure", "host_id")}
    several = [name for name, values in seen.items() if len(values) > 1]

    # Boards of one task are adjacent, so that its samples are loaded once.
    def order(key: tuple[Any, ...]) -> tuple[Any, ...]:
        row = groups[key][0]
        name = row["benchmark"]
        kind = list(KINDS).index(_kind(row, lacking[key]))
        rest = [_sortable(value) for value in key]
        size = -sizes[name, True], -sizes[name, False]
        return *size, name or "", kind, row["task"] or "", row["length"] or 0, rest

    for number, key in enumerate(sorted(groups, key=order)):
        progress(number, len(groups))
        ranked.append(_board(groups[key], lacking[key], several))
    return _told_apart(ranked)


def _told_apart(boards: Sequence[Board]) -> list[Board]:
    """The boards; titles that would be equal also contain the columns that differ."""
    namesakes = grouped(boards, lambda board: board.title)
    found = []
    for board in boards:
        others = namesakes[board.title]
        if len(others) == 1:
            found.append(board)
            continue
        differing = [n for n in BOARD if len({str(other.key[n]) for other in others}) > 1]
        words = [f"{name} {str(board.key[name])[:12]}" for name in differing]
        found.append(replace(board, title=" · ".join([board.title, *words])))
    return found


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = value if isinstance(value, int | float) else 0.0
    return value is None, float(number), str(value)


def _kind(row: Row, lacks: str) -> str:
    """The kind of the row's board; `lacks` are the figures that its rows lack, if any."""
    if row["weights_kind"] == "random":
        return "random"
    own = row["data_source"] == "embedded" or row["weights_kind"] == "embedded"
    return ("own" if own else "official") + ("_partial" if lacks else "")


def _board(group: list[Row], lacks: str, several: Collection[str]) -> Board:
    kind = _kind(group[0], lacks)
    lacks = "quality not measured" if kind == "random" else lacks
    at_chance = any(map(vanilla_at_chance, group))
    oracles = [is_oracle(row["method"], row["method_params"]) for row in group]
    measured = [
        row for row, oracle in zip(group, oracles, strict=True)
        if row["status"] == Status.OK and finite(row["value"]) is not None
        and kind != "random" and not at_chance and not oracle
    ]  # fmt: skip
    ranking = ranks.rank(measured, [*map(_scores, measured)]) if len(measured) > 1 else None
    place: dict[str, tuple[int, int]] = {}
    beaten: dict[str, tuple[bool, bool]] = {}
    if ranking:
        by_latency, by_memory = (
            ranks.beaten(measured, ranking.better, cost) for cost in ("lat_ratio", "mem_ratio")
        )
        for i, row in enumerate(measured):
            beaten[row["row_id"]] = by_latency[i], by_memory[i]
            span = ranking.first[i], ranking.last[i]
            if span != (1, len(measured)):  # else it isn't separated from any other
                place[row["row_id"]] = span
    labels = _labels(group)
    entries = []
    for row, label, oracle in zip(group, labels, oracles, strict=True):
        label = labelled(marked(label, {"oracle": oracle}), {"status": row["status"]})
        behind = beaten.get(row["row_id"], (False, False))
        entries.append(BoardEntry(row, label, place.get(row["row_id"]), behind, oracle))
    key = {name: group[0][name] for name in BOARD}
    how = ranking.how if ranking else ""
    vanilla = baseline(group)
    unranked = BoardEntry(vanilla, VANILLA, None, (False, False)) if vanilla else None
    ordered = sorted(entries, key=_place)
    return Board(key, kind, ordered, how, _title(group, several), lacks, at_chance, unranked)


def baseline(rows: Sequence[Row]) -> Row | None:
    """Vanilla's row, made of the `base_` columns of the row that has the most of them. None if
    vanilla has a row, or if no row was measured with it."""
    if any(row["method"] == VANILLA for row in rows):
        return None
    live = [row for row in rows if row["status"] != Status.RETIRED] or rows
    most = max(live, key=lambda row: sum(row[name] is not None for name in FIGURES))
    if all(most[name] is None for name in FIGURES):
        return None
    its = {name: most[PREFIX + name] for name in MEASURED}
    its |= {name: most[column] for name, column in OTHER_NAMES.items()}
    shared = {name: most[name] for name in SHARED}
    named = {"method": VANILLA, "method_params": None, "status": Status.OK}
    return {**dict.fromkeys(most), **its, **shared, **named, "folder": most["folder"]}


def _lacks(group: Sequence[Row]) -> str:
    """The figures that none of a board's rows has: quality, speed or both; empty if both exist."""
    figures = {"quality": ("value",), "latency": ("lat_ratio", "tpot_ratio"),
               "memory": ("mem_ratio", "kv_held_ratio")}  # fmt: skip
    missing = [
        figure
        for figure, names in figures.items()
        if all(finite(row[name]) is None for row in group for name in names)
    ]
    return "" if set(missing) <= {"memory"} else f"{' and '.join(missing)} not measured"


def _title(group: Sequence[Row], several: Collection[str]) -> str:
    """The columns that the rows of a board share. Columns that are the same on all boards are left
    out; `several` are those that differ."""
    row = group[0]
    weights = {name: row[name] for name in ("weights_kind", "weights_format")}
    metric = next((r["metric"] for r in group if r["metric"]), None)
    n = row["n_samples_planned"]
    parts = [
        row["task"] or "no task",
        f"{row['length']:,} tokens" if row["length"] is not None else None,
        metric,
        f"seed {row['seed']}" if row["seed"] else None,
        NOT_RANKED if any(map(vanilla_at_chance, group)) else None,
        f"{labelled(row['model'], weights)}, {row['weights_kind']} weights",
        f"{row['data_source']} rows, " + ("all of them" if n is None else f"n = {n:,}"),
        f"{row['device']} {row['dtype']}",
        counted(row["threads"], "thread") if row["device"] == "cpu" and row["threads"] else None,
        f"batch {row['batch']}" if row["batch"] not in (None, 1) else None,
        *row_facts.input_words(row),
        row["measure"] if "measure" in several else None,
        f"{processor(row)}, host {short_host(row['host_id'])}" if "host_id" in several else None,
    ]
    return " · ".join(str(part) for part in parts if part)


def _place(entry: BoardEntry) -> tuple[Any, ...]:
    """Sort key: by value, oracles after the others; rows without a value last, by method."""
    row = entry.row
    value = finite(row["value"])
    sign = -1 if row["higher_is_better"] is False else 1
    better = -math.inf if value is None else sign * value
    return (
        row["status"] != Status.OK,
        entry.oracle,
        -better,
        _legend_place(row["method"]),
        entry.label,
    )


@functools.cache
def _legend_place(method: str | None) -> int:
    return looks([method or ""])[method or ""].rank


def _labels(group: Sequence[Row]) -> list[str]:
    """The method, with the parameters in which rows of the board differ, and with the beginning of
    its weights' hash if nothing else differs."""
    parameters = [json_object(row["method_params"]) for row in group]
    names = [
        plugins.method_label(row["method"], own) or "no method"
        for row, own in zip(group, parameters, strict=True)
    ]
    labels = []
    for name, own in zip(names, parameters, strict=True):
        others = [p for other, p in zip(names, parameters, strict=True) if other == name]
        differing = {n: own.get(n) for p in others for n in (*own, *p) if p.get(n) != own.get(n)}
        words = [f"{parameter}={value}" for parameter, value in sorted(differing.items())]
        labels.append(" ".join([name, *words]))
    ambiguous = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} ({(row['weights_sha256'] or 'no weights')[:8]})" if label in ambiguous else label
        for label, row in zip(labels, group, strict=True)
    ]


def _scores(row: Row) -> dict[Any, float] | None:
    """Scores of the row's samples; None where its predictions or the task's rows are missing."""
    folder = row["folder"] if row["folder"].is_dir() else row["folder"].parent
    if not row["predictions_path"] or not (folder / PREDICTIONS).is_dir():
        return None
    from bench.rows.rescore import scores

    try:
        task = json_object(row["cell"])["task"]
        # Rows can't cause an import of code that isn't of this installation.
        return scores(row, folder) if _target(task["name"]) == task["target"] else None
    except (RequestError, LookupError, TypeError, ValueError):  # a contributed row
        return None


@functools.cache
def _target(task: str) -> Any:
    return plugins.conf("task", task)["target"]
