"""Facts for the reader of a page: the machines of its rows, and the papers of its methods."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bench.errors import RequestError
from bench.host.host import short_host
from bench.request import plugins
from bench.terminal import method_table
from bench.units import counted
from reports.rows import Row

MOST = 4
ARXIV = re.compile(r"\d{4}\.\d{4,5}")


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


def papers(methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """Method → `kind`, `year` and the number of its `paper` on arXiv, empty where there is none.
    Only methods of this installation: rows bring no links."""
    found = {}
    for method in sorted(methods):
        try:
            facts = method_table.facts(plugins.conf("method", method))
        except RequestError:
            continue
        if not ARXIV.fullmatch(facts["paper"]):
            facts["paper"] = ""
        found[method] = {name: facts[name] for name in ("kind", "year", "paper")}
    return found
