"""The HTML of the page: one file with everything inlined, and a policy that allows nothing else.

Everything that comes from rows passes `escape`, or reaches the page as data that its script shows
as text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from reports.leaderboard.boards import ABOUT, KINDS, Board
from reports.leaderboard.pack import data, packed
from reports.leaderboard.static import ENDED, tables

ASSETS = Path(__file__).parent / "assets"
GOAL_BYTES = 298_000
"""Size of a page of 2,000 rows, its script and all."""
STATIC_BYTES = 60_000
"""What tables readable without JavaScript may take at least."""


def page(boards: Sequence[Board], summary: str) -> str:
    """The page as text. `summary` is one line about its rows."""
    style = _tight((ASSETS / "page.css").read_text())
    script = _tight("\n".join(part.read_text() for part in sorted(ASSETS.glob("*.js"))))
    html = (ASSETS / "page.html").read_text()
    content, how = packed({**data(boards), "ended": ENDED, "kinds": KINDS, "about": ABOUT})
    rest = sum(len(text.encode()) for text in (html, style, script, content))
    static = tables(boards, max(STATIC_BYTES, GOAL_BYTES - rest))
    policy = (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src {_source(style)}; script-src {_source(script)}"
    )
    return Template(html).substitute(
        policy=policy, style=style, script=script, data=content, how=how,
        summary=escape(summary), static=static,
    )  # fmt: skip


def _tight(text: str) -> str:
    """Without comments of a line and indents; no text of ours goes over several lines."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
