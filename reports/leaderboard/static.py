"""The boards as plain tables, for readers without JavaScript.

In full where there is room. Else in brief: boards of one setting (model, data, machine) stand
together under a heading, and signs and figures that say nothing are left out. So every one of 2,000
rows can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from bench.cell import BASELINE
from bench.rows import Row
from reports.leaderboard.boards import ABOUT, KINDS, Board, Entry, finite
from reports.leaderboard.pack import peak_bytes, reach, short

ENDED = {
    "oom_host": "out of memory",
    "oom_device": "out of GPU memory",
    "timeout": "out of time",
    "error": "failed",
    "unsupported": "not supported",
    "skipped": "skipped",
}
"""How a row's status is said; what is shown of each row is the same with and without JavaScript."""
HEADS = ("Rank", "Method", "Quality", "Latency", "Memory", "Output error", "n")
BRIEF_HEADS = ("Rank", "Method", "Quality", "Latency ÷ vanilla’s", "Memory ÷ vanilla’s",
               "Output error", "n, where fewer")  # fmt: skip
NONE = "–"


class _Text(NamedTuple):
    """A board's heading and rows as HTML."""

    board: Board
    head: str
    rows: list[str]


def tables(boards: Sequence[Board], most_bytes: int) -> str:
    """Plain tables of at most about `most_bytes`. Where even the brief ones take more, each
    benchmark has its first rows, and how many are left out is said."""
    for brief in (False, True):
        text = "".join(_benchmarks(_texts(boards, brief), 1.0, brief))
        if len(text.encode()) <= most_bytes:
            return text
    texts = _texts(boards, brief=True)
    share = min(1.0, most_bytes / max(1, sum(_bytes(each) for each in texts)))
    return "".join(_benchmarks(texts, share, brief=True))


def _texts(boards: Sequence[Board], brief: bool) -> list[_Text]:
    row = _brief_row if brief else _row
    texts = []
    for _, group in groupby(boards, lambda board: (board.benchmark, board.kind)):
        setting = None
        for board in sorted(group, key=lambda b: b.setting) if brief else group:
            new = brief and board.setting != setting
            setting = board.setting
            above = (
                f"<tbody><tr><th colspan=7 scope=rowgroup>{escape(short(setting))}" if new else ""
            )
            title = escape(short(board.about if brief else board.title))
            body = "<tr><th colspan=7>" if brief else "<tbody><tr><th colspan=7 scope=rowgroup>"
            head = f"{above}{body}{title}"
            texts.append(_Text(board, head, [row(entry) for entry in board.entries]))
    return texts


def _bytes(text: _Text) -> int:
    return len("".join((text.head, *text.rows)).encode())


def _benchmarks(texts: Sequence[_Text], share: float, brief: bool) -> Iterator[str]:
    for name, group in groupby(texts, lambda text: text.board.benchmark):
        shown, left = _first([*group], share)
        more = f"<p>{left:,} more rows need JavaScript.</p>\n" if left else ""
        yield f"<h2>{escape(short(name))}</h2>\n{_tables(name, shown, brief)}{more}"


def _first(texts: Sequence[_Text], share: float) -> tuple[list[_Text], int]:
    """The boards whose first rows take no more than that share of all, and the rows left out."""
    if share == 1.0:
        return [*texts], 0
    room = share * sum(_bytes(text) for text in texts)
    shown, left = [], 0
    for board, head, rows in texts:
        room -= len(head.encode())
        fitting = []
        for row in rows:
            room -= len(row.encode())
            if room >= -1:
                fitting.append(row)
        left += len(rows) - len(fitting)
        if fitting:
            shown.append(_Text(board, head, fitting))
    return shown, left


def _tables(benchmark: str, texts: Iterable[_Text], brief: bool) -> str:
    parts = []
    heads = "".join(f"<th scope=col>{name}" for name in (BRIEF_HEADS if brief else HEADS))
    for kind, group in groupby(texts, lambda text: text.board.kind):
        about = f"<p>{escape(ABOUT[kind])}</p>\n" if ABOUT[kind] else ""
        bodies = "\n".join("".join((text.head, *text.rows)) for text in group)
        parts.append(
            f"<h3>{KINDS[kind]}</h3>\n{about}<div class=scroll tabindex=0 role=region "
            f'aria-label="{escape(short(benchmark))}: {KINDS[kind]}">'
            f"<table><thead><tr>{heads}{bodies}</table></div>\n"
        )
    return "".join(parts)


def _row(entry: Entry) -> str:
    n = entry.row["n_scored"]
    cells = [_rank(entry), _label(entry), *_figures(entry.row), NONE if n is None else str(n)]
    return _line(entry.row, cells)


def _brief_row(entry: Entry) -> str:
    row = entry.row
    n = row["n_scored"]
    cells = [_rank(entry).replace("–", "-").removeprefix("-"), _label(entry)]
    cells += [_briefly(figure) for figure in _figures(row)]
    cells.append("" if n in (None, row["n_samples_planned"]) else str(n))
    cells = ["" if cell == NONE else cell for cell in cells]
    while not cells[-1]:
        cells.pop()
    return _line(row, cells)


def _briefly(figure: str) -> str:
    return figure.replace("×", "").replace("baseline", "1").replace(" ±", "±")


def _line(row: Row, cells: Sequence[str]) -> str:
    grey = " class=chance" if row["at_chance"] else ""
    return f"<tr{grey}>" + "".join(f"<td>{cell}" for cell in cells)


def _figures(row: Row) -> list[str]:
    return [_quality(row), _latency(row), _memory(row), _error(row["fid_rel_l2"])]


def _rank(entry: Entry) -> str:
    if entry.rank is None:
        return NONE
    first, last = entry.rank
    return str(first) if first == last else f"{first}–{last}"


def _label(entry: Entry) -> str:
    row, label = entry.row, escape(short(entry.label))
    if row["max_length_fit"] is not None:
        return f"{label} <b>fits {row['max_length_fit']:,} tokens</b>"
    if row["status"] == "ok":
        return label
    return f"{label} <b>{escape(ENDED.get(row['status']) or str(row['status']))}</b>"


def _quality(row: Row) -> str:
    value, wider = finite(row["value"]), reach(row)
    if value is None:
        return NONE
    parts = [f"{value:.1f}", f"±{wider:.1f}" if wider is not None else ""]
    return " ".join(filter(None, [*parts, "‡" if row["at_chance"] else ""]))


def _latency(row: Row) -> str:
    if row["method"] == BASELINE and row["lat_median_ns"]:
        return "baseline"
    if finite(row["ratio"]) is None:
        return NONE
    said = escape(row["verdict"] or "") + ("†" if row["noisy"] else "")
    return f"{_times(row['ratio'])} {said}".rstrip()


def _memory(row: Row) -> str:
    base = row["method"] == BASELINE and peak_bytes(row)
    return "baseline" if base else _times(row["mem_ratio"])


def _times(ratio: float | None) -> str:
    return NONE if finite(ratio) is None else f"×{ratio:.3f}"


def _error(error: float | None) -> str:
    if error is None or finite(error) is None:
        return NONE
    digits, _, power = f"{error:.1e}".partition("e")
    return f"{digits}e{int(power)}" if 0 < error < 0.001 else f"{error:.3g}"
