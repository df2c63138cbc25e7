"""The board of a pretrained decoder's KV caches: their quality alone, by what they keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from bench.rows.row_facts import labelled
from bench.status import QualityVerdict, Status
from bench.units import counted
from reports.grids import Grid
from reports.looks import VANILLA, without_setting
from reports.oracles import marked
from reports.rendering import TextGrid
from reports.result_tables import NOT_SKIPPED, score_or_end
from reports.rows import Row, json_object
from reports.wording import NONE

FLOAT32 = "float32"
"""The number format that titles leave out."""


def _board_title(row: Row) -> str:
    after = ", the question read after the cache was compressed" if row["question"] else ""
    rows = counted(row["n_scored"] or 0, "row")
    model = labelled(row["model"], row)
    dtype = "" if row["dtype"] == FLOAT32 else f", {row['dtype']}"
    return f"{row['task']}, {model}, {row['length']:,} tokens, {rows}{dtype}{after}"


def _board_cell(row: Row) -> str:
    """A score, with a mark unless it is lower than vanilla's by its verdict."""
    kept = row["status"] == Status.OK and row["quality_verdict"] != QualityVerdict.LOWER
    return f"{score_or_end(row)} ✓" if kept else score_or_end(row)


def kept_share(row: Mapping[str, Any]) -> str:
    """The share of the cache that a row's method keeps, the head of its column; a dash for methods
    that keep everything."""
    given = json_object(row["method_params"])
    if row["method"] == VANILLA:
        return "all in 32 bits" if row.get("dtype", FLOAT32) == FLOAT32 else "all in 16 bits"
    if given.get("eviction") == "none":  # an engine that keeps all entries
        return NONE
    budget = given.get("budget", given.get("share"))
    if isinstance(budget, str):  # bytes
        return f"keeps {budget}"
    if (removed := given.get("compression_ratio")) is not None:
        budget = 1 - removed
    if budget is not None:
        return f"keeps {Fraction(budget).limit_denominator(64)}"
    if "keys" in given:  # a format of ggml, such as q4_0
        return "4 or 8 bits"
    if "bits" not in given:
        return NONE
    return "4 or 8 bits" if given["bits"] >= 4 else "2 bits"


class _Board(Grid):
    """A line for each method; oracles are marked."""

    def table(self, rows: Sequence[Row]) -> TextGrid:
        names = (marked(without_setting(row["method"]), row) for row in rows)
        both = zip(names, rows, strict=True)
        named = [row | {"method": name, "setting": kept_share(row)} for name, row in both]
        return super().table(named)


BOARD = _Board(
    title=_board_title,
    where={"experiment": "kv_board", "status": NOT_SKIPPED},
    each=("model", "length", "task", "question", "dtype"),
    column="setting",
    cell=_board_cell,
)


def board_findings(tables: Iterable[tuple[TextGrid, Sequence[Row]]]) -> Iterator[str]:
    """For each table of the board, its methods whose score isn't lower than vanilla's, by setting;
    oracles are left out."""
    for grid, rows in tables:
        kept: dict[str, list[str]] = {}
        for row in rows:
            done = row["status"] == Status.OK and row["method"] != VANILLA
            if done and not row.get("oracle") and row["quality_verdict"] != QualityVerdict.LOWER:
                kept.setdefault(kept_share(row), []).append(without_setting(row["method"]))
        found = "; ".join(f"{setting}: {', '.join(kept[setting])}" for setting in sorted(kept))
        yield f"{grid.caption}. Not worse than vanilla: {found or 'none'}."
