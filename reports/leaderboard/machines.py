"""A machine in a line: what a reader has to know before any figure of time."""

from __future__ import annotations

from collections.abc import Iterable

from bench.host.host import short_host
from bench.units import counted
from reports.rows import Row

MOST = 4


def machine(row: Row) -> str:
    """The processor or GPU, and the software below the methods, as the row has it."""
    cores = row["cores_phys"]
    facts = (
        row["gpu_name"],
        row["cpu_model"] or "unknown processor",
        cores and counted(cores, "core"),
        row["virt"] if row["virt"] != "none" else None,
        row["os_kernel"] and f"Linux {row['os_kernel']}",
        row["torch"] and f"torch {row['torch']}",
    )
    return ", ".join(str(fact) for fact in facts if fact)


def machines(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """(short id, machine) of the MOST machines with most rows, as their newest rows have it."""
    by_host: dict[str, list[Row]] = {}
    for row in rows:
        by_host.setdefault(short_host(row["host_id"]), []).append(row)
    largest = sorted(by_host.items(), key=lambda item: -len(item[1]))[:MOST]
    return [
        (name, machine(max(its, key=lambda row: row["created_utc"] or ""))) for name, its in largest
    ]
