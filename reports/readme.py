"""The tables that README quotes, from the reference rows.

python -m reports.readme prints them, python -m reports.readme README.md puts them in their places:
between `<!-- NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.rows import counting
from bench.store import LIGHT, Store
from reports.leaderboard.static import ENDED
from reports.names import AT_CHANCE

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
HEAD = (
    "task",
    "method",
    "score",
    "vanilla's",
    "latency ÷ vanilla's",
    "memory ÷ vanilla's",
    "error",
)
ORDER = ("vanilla", "bigbird", "vcc", "iceformer", "fourier")
Row = Mapping[str, Any]


def table(folder: Path = REFERENCE) -> str:
    """The quickstart's cells as Markdown; the newest row of each."""
    found = {}
    for row in Store(folder).rows().to_pylist():
        if "experiment=quickstart" in (row["command"] or "") and row["status"] == "ok":
            found[row["task"], row["method"]] = row
    tasks = dict.fromkeys(task for task, _ in found)
    rows = [found[t, m] for t in tasks for m in ORDER if (t, m) in found and m != "vanilla"]
    lines = [" | ".join(HEAD), " | ".join("---" for _ in HEAD), *map(" | ".join, map(_cells, rows))]
    table = "\n".join(f"| {line} |" for line in lines)
    if any(row["at_chance"] for row in rows):
        table += f"\n\n{AT_CHANCE} not clearly above what one constant answer gets."
    return table


def frontier(folder: Path = REFERENCE) -> str:
    """The frontier's cells as Markdown, a line for each method and a column for each length: its
    latency and memory against vanilla's, or how the cell ended. A line above says what was read
    where; empty without such rows."""
    rows = counting(Store(folder).rows(LIGHT).to_pylist())
    rows = [row for row in rows if "experiment=frontier" in (row["command"] or "")]
    return "\n\n".join(
        _frontier([row for row in rows if row["model"] == model])
        for model in dict.fromkeys(row["model"] for row in rows)
    )


def _frontier(rows: list[Row]) -> str:
    first = rows[0]
    known = {(row["method"], row["length"]): row for row in rows}
    lengths = sorted({length for _, length in known})
    told = f"`{first['model']}`, {first['device']} {first['dtype']}, {first['threads']} threads, "
    head = ["method", *(f"{length:,} tokens" for length in lengths)]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for method in sorted({m for m, _ in known}, key=lambda m: (m != "vanilla", m)):
        found = [known.get((method, length)) for length in lengths]
        lines.append(" | ".join([method, *map(_reached, found)]))
    table = "\n".join(f"| {line} |" for line in lines)
    return f"{told}latency and peak memory ÷ vanilla's:\n\n{table}"


def _reached(row: Row | None) -> str:
    if row is None:
        return ""
    if row["status"] == "skipped":
        return "not measured"
    if row["status"] != "ok":
        return ENDED[row["status"]]
    alone = f"{row['lat_median_ns'] / 1e6:,.0f} ms"
    memory = f"×{row['mem_ratio']:.2f}" if row["mem_ratio"] is not None else "–"
    if row["method"] == "vanilla":
        return alone
    if row["ratio"] is None:
        return f"{alone}, vanilla {ENDED.get(row['baseline_status'], 'not measured')}"
    return f"×{row['ratio']:.2f} {row['verdict']}, memory {memory}"


def host(folder: Path = REFERENCE) -> str:
    """The machine of the rows, in words."""
    rows = Store(folder).rows(["cpu_model", "virt", "threads", "torch"]).to_pylist()
    told = {(r["cpu_model"], r["virt"], r["threads"], r["torch"]) for r in rows}
    return "; ".join(
        f"{cpu}, {virt}, {threads} threads, torch {torch}" for cpu, virt, threads, torch in told
    )


def _cells(row: Row) -> Iterator[str]:
    yield row["task"]
    yield row["method"]
    chance = f" {AT_CHANCE}" if row["at_chance"] else ""
    yield _within(row["value"], row["ci_lo"], row["ci_hi"], 1) + chance
    yield f"{row['base_value']:.1f}"
    ratio = _within(row["ratio"], row["ratio_ci_lo"], row["ratio_ci_hi"], 3)
    yield f"×{ratio} {row['verdict']}"
    yield f"×{row['mem_ratio']:.2f}"
    yield "–" if row["fid_rel_l2"] is None else f"{row['fid_rel_l2']:.3g}"


def _within(value: float, lo: float, hi: float, digits: int) -> str:
    return f"{value:.{digits}f} ({lo:.{digits}f} … {hi:.{digits}f})"


BLOCKS: dict[str, Callable[[], str]] = {"quickstart": table, "frontier": frontier}
"""Name of a place in README → what stands there."""


def filled(text: str) -> str:
    """README with its tables as the reference rows are."""
    for name, make in BLOCKS.items():
        block = f"<!-- {name} -->\n{make()}\n<!-- end of {name} -->"
        place = rf"<!-- {name} -->\n.*?<!-- end of {name} -->"
        text = re.sub(place, lambda _, block=block: block, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def main(arguments: list[str]) -> None:
    for name in arguments:
        path = Path(name)
        path.write_text(filled(path.read_text()))
    if not arguments:
        print("\n\n".join(make() for make in BLOCKS.values()))


if __name__ == "__main__":
    main(sys.argv[1:])
