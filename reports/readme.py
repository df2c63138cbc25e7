"""The table that README quotes, from the reference rows: `python -m reports.readme`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.store import Store

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
    return "\n".join(f"| {line} |" for line in lines)


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
    yield _within(row["value"], row["ci_lo"], row["ci_hi"], 1)
    yield f"{row['base_value']:.1f}"
    ratio = _within(row["ratio"], row["ratio_ci_lo"], row["ratio_ci_hi"], 3)
    yield f"×{ratio} {row['verdict']}"
    yield f"×{row['mem_ratio']:.2f}"
    yield "–" if row["fid_rel_l2"] is None else f"{row['fid_rel_l2']:.3g}"


def _within(value: float, lo: float, hi: float, digits: int) -> str:
    return f"{value:.{digits}f} ({lo:.{digits}f} … {hi:.{digits}f})"


if __name__ == "__main__":
    print(table())
