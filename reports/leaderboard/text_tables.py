"""The boards as text, for readers without JavaScript: what templates/text_tables.html.j2 renders.

Two thousand rows have to be readable in a page of 300 kB. So boards of one setting (model, data,
machine) share a heading, signs stand in the column's head, and what wasn't measured is left empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from bench.status import QualityComparison, Status
from bench.store.engine import engine_only, own_engine
from bench.store.longest_input import longest_input
from bench.store.quality_arms import comparison
from bench.store.quality_verdict import faster_as_good
from reports.leaderboard.boards import ABOUT, KINDS, Board, BoardEntry, finite
from reports.leaderboard.page_data import peak_bytes, reach, short
from reports.looks import VANILLA
from reports.ratios import emphasised, rounded
from reports.rendering import Strong, render
from reports.rows import Row
from reports.wording import AT_CHANCE, ENDED, OWN_WEIGHTS

HEADS = ("Rank", "Method", "Quality", "Latency ÷ vanilla’s", "Memory ÷ vanilla’s")
DECODED = ("Time per token ÷ vanilla’s", "Whole answer ÷ vanilla’s", "KV held ÷ vanilla’s",
           "KV read per token ÷ vanilla’s")  # fmt: skip
"""Heads of tables in which a row was decoded."""
LAST = ("Output error", "n, where fewer")
TINY = 0.001


def text_tables(boards: Sequence[Board], most_bytes: int) -> Markup:
    """Tables of at most about `most_bytes`. Where all rows take more, each board has its first
    ones, and each benchmark says how many are left out."""
    text = _rendered(boards, 1.0)
    size = len(text.encode())
    if size > most_bytes:
        text = _rendered(boards, 0.95 * most_bytes / size)
    return Markup(text)


def _rendered(boards: Sequence[Board], share: float) -> str:
    benchmarks = [
        _benchmark(name, list(group), share)
        for name, group in groupby(boards, lambda board: board.benchmark)
    ]
    return render("text_tables.html.j2", benchmarks=benchmarks)


def _benchmark(name: str, boards: Sequence[Board], share: float) -> dict[str, Any]:
    kinds = [_kind(kind, list(group), share) for kind, group in groupby(boards, lambda b: b.kind)]
    left = sum(len(b.entries) - int(len(b.entries) * share) for b in boards)
    return {"name": short(name), "kinds": kinds, "left": left}


def _kind(kind: str, boards: Sequence[Board], share: float) -> dict[str, Any]:
    decoded = any(entry.row["new_tokens"] for board in boards for entry in board.entries)
    heads = (*HEADS, *(DECODED if decoded else ()), *LAST)
    by_setting = groupby(sorted(boards, key=lambda b: b.setting), lambda board: board.setting)
    settings = [
        {"title": short(setting), "boards": [_board(board, share, decoded) for board in group]}
        for setting, group in by_setting
    ]
    return {"title": KINDS[kind], "about": ABOUT[kind], "heads": heads, "settings": settings}


def _board(board: Board, share: float, decoded: bool) -> dict[str, Any]:
    shown = board.entries[: int(len(board.entries) * share)]
    entries = [board.baseline, *shown] if board.baseline and shown else shown
    title = " – ".join(filter(None, (board.about, board.lacks)))
    return {"title": short(title), "rows": [_row(entry, decoded) for entry in entries]}


def _row(entry: BoardEntry, decoded: bool) -> dict[str, Any]:
    row, rank, n = entry.row, entry.rank, entry.row["n_scored"]
    cells = [
        _quality(row),
        _latency(row),
        "1" if row["method"] == VANILLA and peak_bytes(row) else _ratio(row["mem_ratio"]),
        *(_decoding(row) if decoded else ()),
        _error(row["fid_rel_l2"]),
        "" if n in (None, row["n_samples_planned"]) else str(n),
    ]
    while cells and not cells[-1]:
        cells.pop()
    return {
        "rank": "" if rank is None else "-".join(map(str, dict.fromkeys(rank))),
        "label": short(entry.label),
        "ending": _ending(row),
        "cells": cells,
        "at_chance": row["at_chance"],
    }


def _decoding(row: Row) -> list[str]:
    """Under DECODED."""
    if row["method"] == VANILLA:
        names = ("tpot_ns", "answer_ns", "kv_bytes_held", "kv_bytes_read_per_token")
        return ["1" if row[name] else "" for name in names]
    times = [
        Strong(text) if text and faster_as_good({**row, "verdict": verdict}) else text
        for ratio, verdict in (
            (row["tpot_ratio"], row["tpot_verdict"]),
            (row["answer_ratio"], row["answer_verdict"]),
        )
        for text in (_verdict(_ratio(ratio, row["tpot_n_pairs"]), verdict),)
    ]
    return [*times, _ratio(row["kv_held_ratio"]), _ratio(row["kv_read_ratio"])]


def _verdict(ratio: str, verdict: str | None) -> str:
    return " ".join(filter(None, (ratio, ratio and verdict)))


def _ending(row: Row) -> str:
    if longest := longest_input(row):
        return f"fits {longest}"
    status = row["status"]
    return "" if status == Status.OK else ENDED.get(status) or str(status)


def _quality(row: Row) -> str:
    value, width = finite(row["value"]), reach(row)
    if value is None:
        return ""
    sides = "" if width is None else f"±{width:.1f}"
    own = comparison(row) == QualityComparison.TRAINED_EACH
    signs = (AT_CHANCE if row["at_chance"] else "") + (OWN_WEIGHTS if own else "")
    return f"{value:.1f}{sides} {signs}".rstrip()


def _latency(row: Row) -> str:
    if row["method"] == VANILLA and row["lat_median_ns"]:
        return "1"
    if finite(row["ratio"]) is None:
        return ""
    verdict = (row["verdict"] or "") + ("†" if row["noisy"] else "")
    text = " ".join(filter(None, (_ratio(row["ratio"], row["n_pairs"]), verdict, engine_only(row))))
    if engine := own_engine(row):
        own = row["ratio_same_engine_verdict"]
        words = (_ratio(row["ratio_same_engine"]), "" if own == row["verdict"] else own, engine)
        text = f"{text}; {' '.join(filter(None, words))}"
    return emphasised(row, text)


def _ratio(ratio: float | None, pairs: int | None = None) -> str:
    return "" if ratio is None or finite(ratio) is None else rounded(ratio, pairs)


def _error(error: float | None) -> str:
    if error is None or finite(error) is None:
        return ""
    digits, _, power = f"{error:.1e}".partition("e")
    return f"{digits}e{int(power)}" if 0 < error < TINY else f"{error:.3g}"
