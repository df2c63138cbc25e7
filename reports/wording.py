"""Words and signs that tables, figures and the leaderboard share."""

from __future__ import annotations

from bench.status import Status

AT_CHANCE = "‡"
"""Follows a score that isn't clearly above the best constant answer's."""
OWN_WEIGHTS = "§"
"""Follows a score of weights that were trained for the method, where vanilla's are others."""
ENDED: dict[str, str] = {
    Status.OOM_HOST: "out of memory",
    Status.OOM_DEVICE: "out of GPU memory",
    Status.TIMEOUT: "out of time",
    Status.ERROR: "failed",
    Status.UNSUPPORTED: "not supported",
    Status.SKIPPED: "skipped",
}
"""Status of a cell without a result → its description for readers."""
