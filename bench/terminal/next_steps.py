"""The last line of a run: what one would do next with what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bench.request.schema import BASELINE
from bench.status import Status


def after_row(row: Mapping[str, Any], overrides: Sequence[str]) -> str:
    """After one cell: a sweep of the same request, its comparison, the page; empty where the cell
    failed, whose reason is what to see to."""
    if row["status"] != Status.OK:
        return ""
    left_out = ("method=", "engine=", "length=", "force=", "experiment=")
    words = [word for word in overrides if not word.startswith(left_out)]
    if row["method"] == BASELINE:
        other = shlex.join(["bench", "run", "method=NAME", f"length={row['length']}", *words])
        return f"next: bench ls methods; then {other}"
    lengths = f"{row['length']},{2 * row['length']}"
    sweep = [
        "bench",
        "run",
        "-m",
        f"method={BASELINE},{row['method']}",
        f"length={lengths}",
        *words,
    ]
    return f"next: {shlex.join(sweep)}; then {_after(row['method'], words)}"


def after_sweep(methods: Sequence[str], overrides: Sequence[str]) -> str:
    """After a sweep that measured rows of these methods; empty where there are none."""
    others = [method for method in methods if method != BASELINE]
    return f"next: {_after(others[0] if others else BASELINE, overrides)}" if methods else ""


def _after(method: str, overrides: Sequence[str]) -> str:
    """The comparison with vanilla, where the method isn't vanilla itself, and the leaderboard."""
    results = [word for word in overrides if word.startswith("results=")]
    commands = [["bench", "leaderboard", *results]]
    if method != BASELINE:
        both = [f"method={BASELINE}", f"method={method}"]
        commands.insert(0, ["bench", "compare", *both, *results])
    return "; ".join(map(shlex.join, commands))
