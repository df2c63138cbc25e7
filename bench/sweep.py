"""`bench run -m`: every combination of the values given, through Hydra's sweeper and launcher."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench import config, plugins, schema
from bench.errors import RequestError

REASON_LETTERS = 160


@dataclass(frozen=True)
class Ended:
    """How one cell of a sweep ended: exit code, status and the first line of the reason."""

    words: str
    code: int
    status: str
    reason: str = ""


def run_sweep(overrides: Sequence[str]) -> int:
    """Run the cells one after the other; one that fails doesn't stop the rest. Returns 2 when a
    request was wrong, 1 when a run failed, else 0."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    cells: list[Ended] = []

    def one(composed: Any) -> int:
        words = " ".join(HydraConfig.get().overrides.task)
        print(f"\n[{len(cells) + 1}] {words}", flush=True)
        cells.append(run_cell(composed, words))
        return cells[-1].code

    schema.register()
    sys.argv = ["bench", "-m", *config.checked(overrides)]
    hydra.main(version_base="1.3", config_path=str(plugins.ROOT / "conf"), config_name="config")(
        one
    )()
    print(f"\n{summary(cells)}")
    return max((cell.code for cell in cells), default=0)


def run_cell(composed: Any, words: str) -> Ended:
    """Run one composed request and show its row. Whatever is wrong with it is told, not raised."""
    from bench.cli import exit_code, run_row
    from bench.shards import StoreError

    try:
        row = run_row(config.plain(composed), f"bench run {words}")
    except (RequestError, StoreError) as error:
        print(f"bench: {error}", file=sys.stderr)
        wrong = isinstance(error, RequestError)
        return Ended(words, 2 if wrong else 1, "refused" if wrong else "not stored", str(error))
    return Ended(words, exit_code(row), row["status"], row.get("status_detail") or "")


def summary(cells: Sequence[Ended]) -> str:
    """How many cells ended well, and for each other one its words, its status and why."""
    failed = [cell for cell in cells if cell.code]
    lines = [f"{len(cells)} cells: {len(cells) - len(failed)} done, {len(failed)} failed"]
    for cell in failed:
        reason = next(iter(cell.reason.splitlines()), "no reason given")
        lines.append(f"  {cell.words}: {cell.status}: {reason[:REASON_LETTERS]}")
    return "\n".join(lines)
