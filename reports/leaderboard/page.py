"""The HTML of the page: one file with everything inlined, and a policy that allows nothing else.

Everything that comes from rows passes `escape`, or reaches the page as data that its script shows
as text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template

from bench.cell import BASELINE
from bench.rows import Row
from reports.leaderboard.boards import ABOUT, KINDS, Board, Entry, finite
from reports.leaderboard.pack import data, packed, peak_bytes, reach, short

ASSETS = Path(__file__).parent / "assets"
GOAL_BYTES = 290_000
"""Size of a page of 2,000 rows, its script and all."""
STATIC_BYTES = 60_000
"""What tables readable without JavaScript may take at least."""
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


def page(boards: Sequence[Board], summary: str) -> str:
    """The page as text. `summary` is one line about its rows."""
    style = (ASSETS / "page.css").read_text()
    script = "\n".join(part.read_text() for part in sorted(ASSETS.glob("*.js")))
    content, how = packed({**data(boards), "ended": ENDED, "kinds": KINDS, "about": ABOUT})
    rest = sum(len(text.encode()) for text in (style, script, content))
    static = _static(boards, max(STATIC_BYTES, GOAL_BYTES - rest))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_source(style)}; script-src {_source(script)}"
    )
    return Template((ASSETS / "page.html").read_text()).substitute(
        policy=policy, style=style, script=script, data=content, how=how,
        summary=escape(summary), static=static,
    )  # fmt: skip


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _static(boards: Sequence[Board], most_bytes: int) -> str:
    """The boards as plain tables, of each benchmark its first rows, so that all of them together
    take at most about `most_bytes`; how many are left out is said."""
    texts = [(board, _head(board), [_row(entry) for entry in board.entries]) for board in boards]
    whole = sum(len((head + "".join(rows)).encode()) for _, head, rows in texts)
    share = min(1.0, most_bytes / max(1, whole))
    parts = []
    for name, group in groupby(texts, lambda text: text[0].benchmark):
        shown, left = _first([*group], share)
        more = f"<p>{left:,} more rows need JavaScript.</p>\n" if left else ""
        parts.append(f"<h2>{escape(short(name))}</h2>\n{_tables(name, shown)}{more}")
    return "".join(parts)


def _first(
    texts: Sequence[tuple[Board, str, list[str]]], share: float
) -> tuple[list[tuple[Board, str]], int]:
    """The boards whose first rows take no more than that share of all, and the rows left out."""
    sizes = [len(row.encode()) for _, head, rows in texts for row in (head, *rows)]
    room = share * sum(sizes)
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
            shown.append((board, "".join((head, *fitting, "\n"))))
    return shown, left


def _tables(benchmark: str, texts: Iterable[tuple[Board, str]]) -> str:
    parts = []
    heads = "".join(f"<th scope=col>{name}" for name in HEADS)
    for kind, group in groupby(texts, lambda text: text[0].kind):
        about = f"<p>{escape(ABOUT[kind])}</p>\n" if ABOUT[kind] else ""
        bodies = "".join(text for _, text in group)
        parts.append(
            f"<h3>{KINDS[kind]}</h3>\n{about}<div class=scroll tabindex=0 role=region "
            f'aria-label="{escape(short(benchmark))}: {KINDS[kind]}">'
            f"<table><thead><tr>{heads}{bodies}</table></div>\n"
        )
    return "".join(parts)


def _head(board: Board) -> str:
    return f"<tbody><tr><th colspan=7 scope=rowgroup>{escape(short(board.title))}"


def _row(entry: Entry) -> str:
    row = entry.row
    n = row["n_scored"] if row["n_scored"] is not None else "–"
    cells = [_rank(entry), escape(short(entry.label)) + _ending(row), _quality(row),
             _latency(row), _memory(row), _error(row["fid_rel_l2"]), n]  # fmt: skip
    return "<tr>" + "".join(f"<td>{cell}" for cell in cells)


def _rank(entry: Entry) -> str:
    if entry.rank is None:
        return "–"
    first, last = entry.rank
    return str(first) if first == last else f"{first}–{last}"


def _ending(row: Row) -> str:
    if row["max_length_fit"] is not None:
        return f" <b>fits {row['max_length_fit']:,} tokens</b>"
    if row["status"] == "ok":
        return ""
    return f" <b>{escape(ENDED.get(row['status']) or str(row['status']))}</b>"


def _quality(row: Row) -> str:
    value, wider = finite(row["value"]), reach(row)
    if value is None:
        return "–"
    return f"{value:.1f}" if wider is None else f"{value:.1f} ±{wider:.1f}"


def _latency(row: Row) -> str:
    if row["method"] == BASELINE and row["lat_median_ns"]:
        return "baseline"
    if finite(row["ratio"]) is None:
        return "–"
    said = escape(row["verdict"] or "") + ("†" if row["noisy"] else "")
    return f"{_times(row['ratio'])} {said}".rstrip()


def _memory(row: Row) -> str:
    base = row["method"] == BASELINE and peak_bytes(row)
    return "baseline" if base else _times(row["mem_ratio"])


def _times(ratio: float | None) -> str:
    return "–" if finite(ratio) is None else f"×{ratio:.3f}"


def _error(error: float | None) -> str:
    if error is None or finite(error) is None:
        return "–"
    digits, _, power = f"{error:.1e}".partition("e")
    return f"{digits}e{int(power)}" if 0 < error < 0.001 else f"{error:.3g}"
