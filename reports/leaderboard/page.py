"""The HTML of the page: one file with everything inlined, and a content security policy that allows
nothing else.

Text from rows is escaped by the template, or is data that the page's script shows as text.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bench.status import Status
from bench.units import finite, score_digits
from reports.leaderboard.boards import ABOUT, KINDS, Board
from reports.leaderboard.facts import machines
from reports.leaderboard.page_data import page_data, reach, short
from reports.ratios import rounded
from reports.rendering import inlined, render
from reports.rows import Row
from reports.wording import AT_CHANCE, ENDED

ASSETS = Path(__file__).parent / "assets"
COMPRESSION = 7
"""Of 9 levels: the last two take three times as long for 4 % less."""
PARTS = "[0-9]-*.js"
"""The files of the page's script, which load.js unpacks."""
PLAIN_HEAD = ("Method", "Quality", "Latency ÷ vanilla’s", "Memory ÷ vanilla’s")
"""Columns of the table for readers without JavaScript."""


def page(boards: Sequence[Board], summary: str) -> str:
    """The page as text. `summary` is one line about its rows."""
    style, style_source = inlined(_compact((ASSETS / "page.css").read_text()))
    loader, loader_source = inlined(_compact((ASSETS / "load.js").read_text()))
    code, code_source = inlined(
        _compact("\n".join(map(Path.read_text, sorted(ASSETS.glob(PARTS)))))
    )
    content = page_data(boards)
    data = Markup(packed({**content, "ended": ENDED, "kinds": KINDS, "about": ABOUT}))
    parts = {
        "style": style, "style_source": Markup(style_source), "loader": loader,
        "script_source": Markup(f"{loader_source} {code_source}"), "code": Markup(packed(code)),
        "data": data, "summary": summary,
        "machines": machines(entry.row for board in boards for entry in board.entries),
        "papers": content["papers"], "plain_head": PLAIN_HEAD,
        "plain": [(short(board.title), list(_plain_lines(board))) for board in boards],
    }  # fmt: skip
    return render("leaderboard.html.j2", **parts)


def _plain_lines(board: Board) -> Iterator[list[str]]:
    """The cells of each entry, under PLAIN_HEAD; trailing empty cells are left out."""
    for entry in (board.baseline, *board.entries):
        if entry is not None:
            row = entry.row
            cost = _cost(row["lat_ratio"], row["lat_verdict"], row["lat_n_pairs"])
            costs = (cost, _cost(row["mem_ratio"]))
            cells = [short(entry.label), _quality(row), *costs]
            while not cells[-1]:
                cells.pop()
            yield cells


def _quality(row: Row) -> str:
    """The score with its interval; for a cell without a result, its status."""
    value, width = finite(row["value"]), reach(row)
    if row["status"] != Status.OK:
        return ENDED.get(row["status"]) or str(row["status"])
    if value is None:
        return ""
    style = f".{score_digits(row['higher_is_better'])}f"
    sides = "" if width is None else f"±{width:{style}}"
    return f"{value:{style}}{sides}{AT_CHANCE if row['at_chance'] else ''}"


def _cost(ratio: float | None, verdict: str | None = None, pairs: int | None = None) -> str:
    known = finite(ratio)
    return "" if known is None else " ".join(filter(None, (rounded(known, pairs), verdict)))


def packed(content: Any) -> str:
    """The content as JSON, gzip and base64. The same content gives the same text."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), COMPRESSION, mtime=0)).decode()


def _compact(text: str) -> str:
    """A source without comment lines and indents; none of our strings spans lines."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))
