"""The table of KV caches in docs/results.md: what a decoder's score, time and bytes become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bench.status import Status, Verdict
from bench.store.quality_verdict import vanilla_at_chance
from reports import ratios
from reports.looks import VANILLA, looks
from reports.rendering import TextGrid
from reports.rows import Row
from reports.wording import ENDED, tokens_read

HEAD = ("tokens read", "method", "score", "time per token ÷ vanilla's", "first token ÷ vanilla's",
        "KV held ÷ vanilla's", "KV read ÷ vanilla's", "first choice equal")  # fmt: skip
KEPT_POINTS = 5.0
"""A score that is at most so far below vanilla's counts as kept in the sentences."""


def grid(rows: Iterable[Row]) -> TextGrid | None:
    """A line for each length and method with its budget, vanilla first; None without rows."""
    found = [row for row in rows if row["status"] != Status.SKIPPED]
    order = list(looks(str(row["method"]) for row in found))
    found.sort(key=lambda row: (row["length"], order.index(str(row["method"]))))
    lines = [_line(row) for row in found]
    return TextGrid("", HEAD, lines, frozenset({0, 2, 5, 6, 7})) if lines else None


def _line(row: Row) -> Sequence[str]:
    length, method = tokens_read(row), str(row["method"])
    if row["status"] != Status.OK:
        return (length, method, ENDED.get(str(row["status"]), str(row["status"])), *[""] * 5)
    value = row["value"]
    score = ratios.NONE if value is None else f"{value:.1f}"
    if method == VANILLA:
        tpot, held, read = (
            ratios.NONE if row[name] is None else text.format(row[name] / unit)
            for name, unit, text in (
                ("tpot_ns", 1e6, "{:.2f} ms"),
                ("kv_bytes_held", 1 << 20, "{:.1f} MiB"),
                ("kv_bytes_read_per_token", 1 << 20, "{:.1f} MiB"),
            )
        )
        first = f"{row['lat_median_ns'] / 1e6:,.0f} ms" if row["lat_median_ns"] else ratios.NONE
        return length, method, score, tpot, first, held, read, ""
    agree = row["decode_top1_agree"]
    return (
        length,
        method,
        score,
        _ratio(row["tpot_ratio"], row["tpot_verdict"]),
        _ratio(row["ratio"], row["verdict"]),
        _ratio(row["kv_held_ratio"]),
        _ratio(row["kv_read_ratio"]),
        ratios.NONE if agree is None else f"{100 * agree:.0f} %",
    )


def _ratio(value: float | None, verdict: str | None = None) -> str:
    return ratios.NONE if value is None else " ".join(filter(None, (f"×{value:.2f}", verdict)))


def findings(rows: Iterable[Row]) -> Iterator[str]:
    """For each length, which caches keep vanilla's score, hold less, and decode faster. Nothing of
    rows where vanilla's score is at chance."""
    done = [
        row for row in rows
        if row["status"] == Status.OK and row["method"] != VANILLA and not vanilla_at_chance(row)
    ]  # fmt: skip
    for length in sorted({row["length"] for row in done}):
        some = [row for row in done if row["length"] == length]
        kept = [
            row for row in some
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
