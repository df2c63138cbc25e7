"""The tables of docs/results.md over stored rows, and the sentences that summarise them."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bench.rows.comparison import Comparison
from bench.rows.row_facts import (
    ENGINE_ONLY,
    comparison,
    comparison_text,
    engine_only,
    has_toy_weights,
    labelled,
    training_text,
    vanilla_at_chance,
)
from bench.status import QualityComparison, Status, Verdict
from bench.units import counted, score_digits
from reports import ratios
from reports.grids import Grid, Listing, chosen, tokens
from reports.intervals import Measured, interval
from reports.looks import VANILLA, looks
from reports.oracles import marked
from reports.rendering import TextGrid
from reports.rows import Row
from reports.wording import AT_CHANCE, ENDED, NONE, own_engine, signed, tokens_read, vectors

NOT_SKIPPED = tuple(status for status in Status if status != Status.SKIPPED)
COMPARED: dict[str, Any] = {
    "experiment": "quickstart",
    "status": Status.OK,
    "method": lambda method: method != VANILLA,
}


def recommending(rows: Iterable[Row]) -> list[Row]:
    """The rows for recommendations: those without toy weights, if there are any."""
    listed = list(rows)
    return [row for row in listed if not has_toy_weights(row)] or listed


def host(row: Row) -> str:
    """A row's machine and software. Processors of one name may differ in their widest vectors."""
    widest = f" ({name})" if (name := vectors(row)) else ""
    return (
        f"{row['cpu_model']}{widest}, {row['virt']}, {counted(row['threads'], 'thread')}, "
        f"torch {row['torch']}"
    )


def neighbours(rows: Iterable[Row]) -> str:
    """A sentence about other processes on the machine while the rows were measured; empty if none
    of the rows is noisy."""
    most = max((row["others_pct"] or 0.0 for row in rows if row["noisy"]), default=0.0)
    return f"Other processes took up to {most:.0f} % of the cores meanwhile." if most else ""


def _method(row: Row) -> str:
    return labelled(marked(row["method"], row), row)


def number(value: float | None, digits: int, before: str = "") -> str:
    """A number with a sign such as × before it; NONE without a value."""
    return NONE if value is None else f"{before}{value:.{digits}f}"


def _score(row: Row) -> str:
    """A score with its interval."""
    if row["value"] is None:
        return NONE
    return interval(Measured(row["value"], row["ci_lo"], row["ci_hi"]), is_ratio=False)


def score_or_end(row: Row) -> str:
    """A score without its interval, or how the cell ended."""
    if row["status"] != Status.OK:
        return ENDED.get(str(row["status"]), str(row["status"]))
    return number(row["value"], score_digits(row["higher_is_better"]))


# --- quickstart: every method on every task ----------------------------------------------------


def _latency(row: Row) -> str:
    latency = Comparison.of(row, "lat")
    if latency.ratio is None:
        return NONE
    ratio = Measured(latency.ratio, latency.ratio_ci_lo, latency.ratio_ci_hi)
    words = (interval(ratio, is_ratio=True), latency.verdict, engine_only(row))
    return ratios.emphasised(row, " ".join(filter(None, words)))


QUICKSTART = Listing(
    where=COMPARED,
    one_host=True,
    columns={
        "task": "{task}",
        "tokens read": tokens_read,
        "method": _method,
        "n": "{n_scored}",
        "score": lambda row: _score(row) + f" {AT_CHANCE}" * bool(row["at_chance"]),
        "vanilla's score": lambda row: number(row["base_value"], 1),
        "scores of": lambda row: comparison_text(row) or NONE,
        "latency ÷ vanilla's": _latency,
        "÷ exact, same engine": ratios.to_same_engine,
        "kernel": ratios.kernel,
        "memory ÷ vanilla's": lambda row: number(row["mem_ratio"], 2, "×"),
        "output error": lambda row: (
            NONE if row["fid_rel_l2"] is None else f"{row['fid_rel_l2']:.3g}"
        ),
    },
    order=("task",),
    numbers=frozenset({1, 3, 4, 5, 7, 10, 11}),
)


def findings(rows: Sequence[Row]) -> list[str]:
    """For each method except oracles, its verdicts and the range of its ratios and scores."""
    rows = recommending(row for row in rows if not row.get("oracle"))
    methods = looks(str(row["method"]) for row in rows)
    return [_finding(name, [row for row in rows if row["method"] == name]) for name in methods]


def _finding(method: str, rows: Sequence[Row]) -> str:
    verdicts = Counter(row["lat_verdict"] for row in rows)
    counts = ", ".join(
        f"{verdict} on {verdicts[verdict]}" for verdict in Verdict if verdicts[verdict]
    )
    only = sum(bool(engine_only(row)) for row in rows)
    parts = [
        f"{ENGINE_ONLY}, or perhaps, on {only}" if only else "",
        _range("latency", [row["lat_ratio"] for row in rows if row["lat_ratio"] is not None]),
        _range("peak memory", [row["mem_ratio"] for row in rows if row["mem_ratio"] is not None]),
        *_score_ranges(rows),
    ]
    name = labelled(method, rows[0])
    return f"{name}, {counted(len(rows), 'task')}: {counts}; {', '.join(filter(None, parts))}."


def _range(name: str, found: Sequence[float]) -> str:
    return f"{name} ×{min(found):.2f} to ×{max(found):.2f}" if found else ""


def _score_ranges(rows: Sequence[Row]) -> Iterator[str]:
    """The range of the differences from vanilla's score, separately for the same weights and for
    weights trained for each arm."""
    both = [row for row in rows if None not in (row["value"], row["base_value"])]
    for compared in sorted({comparison_text(row) for row in both}):
        some = [r["value"] - r["base_value"] for r in both if comparison_text(r) == compared]
        points = f"{signed(min(some))} to {signed(max(some))} points"
        yield f"score {points} ({compared}, {counted(len(some), 'task')})"


def trainings(rows: Iterable[Row]) -> list[str]:
    """The trainings of weights that were trained for each arm, as far as rows record them."""
    own = [row for row in rows if comparison(row) == QualityComparison.TRAINED_EACH]
    arms = [(row["model"], row["method"], row["training"]) for row in own]
    arms += [(row["model"], VANILLA, row["base_training"]) for row in own]
    return [
        f"{model}, {method}: {training_text(training)}"
        for model, method, training in sorted(dict.fromkeys(arms), key=str)
        if training
    ]


# --- frontier: every method at every length ----------------------------------------------------


def _frontier_cell(row: Row) -> str:
    """Latency and memory against vanilla's, or how the cell ended."""
    if row["status"] == Status.SKIPPED:
        return "not measured"
    if row["status"] != Status.OK:
        return ENDED[str(row["status"])]
    alone = milliseconds(row["lat_median_ns"] or 0)
    if row["method"] == VANILLA:
        return alone
    if row["lat_ratio"] is None:
        return f"{alone}, vanilla {ENDED.get(str(row['baseline_status']), 'not measured')}"
    engine = own_engine(row)
    own = f" ({ratios.to_same_engine(row, 2)} on {engine})" if engine else ""
    return f"{ratios.to_vanilla(row, 2)}{own}, memory {number(row['mem_ratio'], 2, '×')}"


def milliseconds(ns: float) -> str:
    return f"{ns / 1e6:,.0f} ms"


class _Frontier(Grid):
    """A grid without columns for lengths at which every row was skipped. Vanilla without a row at a
    length was timed next to the methods: its cell is the median of those times."""

    def table(self, rows: Sequence[Row]) -> TextGrid:
        measured = [*chosen(rows, {"status": NOT_SKIPPED})]
        lengths = {row["length"] for row in measured}
        skipped = [row for row in rows if row["length"] in lengths]
        vanilla = [
            {**row, "method": VANILLA, "status": Status.OK, "lat_median_ns": time}
            for row in measured
            if (time := _timed_beside(chosen(measured, {"length": row["length"]}))) is not None
        ]
        return super().table([*skipped, *vanilla, *measured])


def _timed_beside(rows: Iterable[Row]) -> float | None:
    times = [row["lat_base_median_ns"] for row in rows if row["lat_base_median_ns"]]
    return statistics.median(times) if times else None


FRONTIER = _Frontier(
    title=lambda row: (
        f"{labelled(row['model'], row)}, {row['device']} {row['dtype']}, "
        f"{counted(row['threads'], 'thread')}"
    ),
    where={"experiment": "frontier"},
    each=("model",),
    one_host=True,
    column="length",
    head=tokens,
    cell=_frontier_cell,
)

# --- Engines next to this project's decoder ----------------------------------------------------

PEERS = Listing(
    where={
        "model": "smollm2-135m", "measure": "decoding", "status": Status.OK,
        "tpot_median_ns": lambda median: median is not None,
    },
    each=("length", "threads", "dtype"),
    one_host=True,
    columns={
        "system": lambda row: marked(row["method"], row),
        "score": lambda row: number(row["value"], 1),
        "first token": lambda row: milliseconds(row["lat_median_ns"] or 0),
        "÷ vanilla's": lambda row: ratios.to_vanilla(row, 2),
        "each token": lambda row: f"{(row['tpot_median_ns'] or 0) / 1e6:,.1f} ms",
        "÷ vanilla's ": lambda row: (
            "×{tpot_ratio:.2f} {tpot_verdict}".format_map(row) if row["tpot_ratio"] else NONE
        ),
        "peak, MiB": lambda row: number((row["whole_peak_bytes"] or 0) / 2**20, 0),
        "peak ÷ vanilla's": lambda row: number(row["whole_peak_ratio"], 2, "×"),
    },
    order=("tpot_median_ns",),
    numbers=frozenset({1, 2, 4, 6}),
)  # fmt: skip

# --- KV caches of a decoder --------------------------------------------------------------------

KEPT_POINTS = 5.0
"""A score that is at most so far below vanilla's counts as kept in the sentences."""


def _cost(ratio: str, own: str, unit: float, text: str, verdict: str = "") -> Callable[[Row], str]:
    """A ratio to vanilla with its verdict; for vanilla its cost; empty for a failed cell."""

    def cell(row: Row) -> str:
        if row["status"] != Status.OK:
            return ""
        if row["method"] == VANILLA:
            return text.format(row[own] / unit) if row[own] else NONE
        words = (number(row[ratio], 2, "×"), row[verdict] if verdict else "")
        return NONE if row[ratio] is None else " ".join(filter(None, words))

    return cell


def _first_choice(row: Row) -> str:
    if row["status"] != Status.OK or row["method"] == VANILLA:
        return ""
    agree = row["decode_top1_agree"]
    return NONE if agree is None else f"{100 * agree:.0f} %"


KV = Listing(
    where={"experiment": "kv", "status": NOT_SKIPPED},
    one_host=True,
    columns={
        "tokens read": tokens_read,
        "method": _method,
        "score": score_or_end,
        "time per token ÷ vanilla's": _cost(
            "tpot_ratio", "tpot_median_ns", 1e6, "{:.2f} ms", "tpot_verdict"
        ),
        "first token ÷ vanilla's": _cost(
            "lat_ratio", "lat_median_ns", 1e6, "{:,.0f} ms", "lat_verdict"
        ),
        "KV held ÷ vanilla's": _cost("kv_held_ratio", "kv_bytes_held", 1 << 20, "{:.1f} MiB"),
        "KV held ÷ 16 bits": lambda row: (
            number(row["kv_ratio_16bit"], 2, "×") if row["status"] == Status.OK else ""
        ),
        "KV read ÷ vanilla's": _cost(
            "kv_read_ratio", "kv_bytes_read_per_token", 1 << 20, "{:.1f} MiB"
        ),
        "first choice equal": _first_choice,
    },
    order=("length",),
    numbers=frozenset({0, 2, 5, 6, 7, 8}),
)


def kv_findings(rows: Iterable[Row]) -> Iterator[str]:
    """For each length, the caches that keep vanilla's score, hold less, and decode faster. Rows of
    oracles, and rows for which vanilla's score is at chance, are left out."""
    done = recommending(
        row for row in rows
        if row["status"] == Status.OK and row["method"] != VANILLA and not row.get("oracle")
        and not vanilla_at_chance(row)
    )  # fmt: skip
    for length in sorted({row["length"] for row in done}):
        kept = [
            row for row in chosen(done, {"length": length})
            if row["value"] is not None and row["base_value"] is not None
            and row["value"] >= row["base_value"] - KEPT_POINTS
        ]  # fmt: skip
        smaller = [row for row in kept if (row["kv_held_ratio"] or 1.0) < 0.9]
        faster = [row for row in kept if row["tpot_verdict"] == Verdict.FASTER]
        yield (
            f"Length {length:,}: within {KEPT_POINTS:g} points of vanilla's score are "
            f"{_names(kept)}; of these, less than nine tenths of vanilla's bytes hold "
            f"{_names(smaller)}; faster for each new token are {_names(faster)}."
        )


def _names(rows: Sequence[Row]) -> str:
    return ", ".join(str(row["method"]) for row in rows) or "none"
