"""Facts for the reader of a page: machines, families of models, and the papers of methods."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from bench.errors import RequestError
from bench.host.host import short_host
from bench.request import plugins
from bench.units import counted
from reports.rows import Row, created, grouped, json_object
from reports.wording import vectors

ARXIV = re.compile(r"\d{4}\.\d{4,5}")


FAMILIES = {
    "decoder": ("decoder",),
    "encoder–decoder": ("t5", "longt5", "bart", "led"),
    "encoder": ("bert", "lra", "heads", "hub_heads"),
}
"""Kind of model → the modules of `bench.models` with its families, in the order of the page."""
OTHER_FAMILY = "other"


def family(row: Row) -> str:
    """The kind of the row's model, a key of FAMILIES or OTHER_FAMILY: from its cell, else from the
    model of this name in this installation."""
    try:
        target = json_object(row["cell"])["model"]["family"]
    except (LookupError, TypeError):
        target = _configured_family(row["model"])
    module = str(target).partition(":")[0].rpartition(".")[2]
    return next((kind for kind, names in FAMILIES.items() if module in names), OTHER_FAMILY)


@functools.lru_cache(maxsize=1024)
def _configured_family(model: str | None) -> str:
    known = plugins.available("model")
    return str(plugins.conf("model", model)["family"]) if model in known else ""


def processor(row: Row) -> str:
    """The GPU, or the CPU with its widest vectors."""
    if row["gpu_name"] and row["device"] != "cpu":
        return str(row["gpu_name"])
    name = " ".join((row["cpu_model"] or "unknown processor").replace("(R)", "").split())
    return " · ".join(filter(None, (name.replace(" Processor", ""), vectors(row))))


def machine(row: Row) -> str:
    """The row's processor or GPU, and the software below the methods."""
    cores = row["cores_phys"]
    facts = (
        row["gpu_name"],
        row["cpu_model"] or "unknown processor",
        vectors(row),
        cores and counted(cores, "core"),
        row["virt"] if row["virt"] != "none" else None,
        row["os_kernel"] and f"Linux {row['os_kernel']}",
        row["torch"] and f"torch {row['torch']}",
    )
    return ", ".join(str(fact) for fact in facts if fact)


def machines(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """(short id, machine) of each machine from its newest row, machines with the most rows
    first."""
    by_host = grouped(rows, lambda row: short_host(row["host_id"]))
    largest = sorted(by_host.items(), key=lambda item: -len(item[1]))
    return [(name, machine(max(its, key=created))) for name, its in largest]


def papers(methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """Method → `kind`, `year` and the number of its `paper` on arXiv, empty if there is none. Only
    for methods of this installation, so that rows can't add links."""
    found = {}
    for method in sorted(methods):
        try:
            facts = plugins.method_facts(plugins.conf("method", method))
        except RequestError:
            continue
        if not ARXIV.fullmatch(facts["paper"]):
            facts["paper"] = ""
        found[method] = {name: facts[name] for name in ("kind", "year", "paper")}
    return found
