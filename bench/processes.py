"""A cell's pairs are timed in several processes, one after the other: the first plans who times how
many (bench.children.share), the others bring their share of the samples."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from bench.supervisor import Outcome, Progress

Child = Callable[[Mapping[str, Any], Progress | None], Outcome]

LISTS = (
    "lat_samples_ns", "base_samples_ns", "aa_first_samples_ns", "aa_second_samples_ns",
    "wall_samples_ns",
)  # fmt: skip
FAULTS = ("lat_page_faults", "base_page_faults")


def shared(child: Child, progress: Progress | None) -> Outcome:
    """The outcome of the first process with the samples of all. One that ends badly is the
    outcome of all: what was timed beside it isn't to be trusted."""
    first = child({}, progress)
    found = dict(first.result)
    shares, answer = found.pop("shares", ()), found.pop("answer", None)
    parts, wall_ns = [found], first.wall_ns
    for share in shares:
        further = child({"share": share, "answer": answer}, _pairs_alone(progress))
        wall_ns += further.wall_ns
        if further.status != "ok":
            where = f"in process {share['process'] + 1} of {len(shares) + 1}"
            return replace(further, detail=f"{further.detail or further.status}\n{where}")
        parts.append(further.result)
    return replace(first, result=joined(parts) if shares else found, wall_ns=wall_ns)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of the first part with the samples of all, and which process each pair is of."""
    columns = dict(parts[0])
    for name in LISTS:
        if columns.get(name) is not None:
            columns[name] = [sample for part in parts for sample in part[name]]
    for name in FAULTS:
        columns[name] = round(statistics.mean(part[name] for part in parts))
    columns["pair_order"] = "".join(part["pair_order"] for part in parts)
    columns["pair_process"] = [
        i for i, part in enumerate(parts) for _ in range(len(part["lat_samples_ns"]))
    ]
    return columns


def _pairs_alone(progress: Progress | None) -> Progress | None:
    """Of a further process the bar of the pairs goes on; how it gets ready is no stage of its
    own."""

    def told(stage: str, *how_far: Any) -> None:
        if progress and stage == "latency":
            progress(stage, *how_far)

    return told if progress else None
