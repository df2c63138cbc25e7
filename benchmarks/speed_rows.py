"""What benchmarks.speed measures, as rows of a store: `bench results --results results/speed`.

They are no cells. `protocol` says how they were measured, the task is the part of a model that ran,
and the model is where its inputs come from: nothing ranks them, and no request runs them again.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import statistics
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.host import host
from bench.request import plugins
from bench.status import Status
from bench.store.store import Store
from methods.base import Method

PROTOCOL = "CPU time of one thread, arms in turn in one process"


@dataclass(frozen=True)
class Part:
    """What a group of arms runs: of which model, on how many tokens."""

    name: str
    model: str
    n: int
    heads: int | None = None
    weights: str = "random"


@dataclass
class Rows:
    """Rows that aren't stored yet. `facts`: columns that all have."""

    folder: Path
    facts: dict[str, Any]
    waiting: list[dict[str, Any]] = field(default_factory=list)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    def add(self, part: Part, method: Method, **columns: Any) -> None:
        name, parameters = type(method).__name__, dataclasses.asdict(method)
        parameters = {key: value for key, value in parameters.items() if _is_plain(value)}
        identity = {"part": dataclasses.astuple(part), "method": name, "parameters": parameters}
        key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self.waiting.append(
            {
                "cell_key": key,
                "run_id": self.run_id,
                "protocol": PROTOCOL,
                "measure": "speed",
                "method": _names().get(name, name),
                "method_params": parameters,
                "task": part.name,
                "model": part.model,
                "weights_kind": part.weights,
                "data_source": "embedded",
                "length": part.n,
                "batch": 1,
                "dtype": "float32",
                "device": "cpu",
                "threads": 1,
                "seed": 0,
                **columns,
            }
        )

    def measured(self, part: Part, method: Method, cpu: list[float], base: list[float],
                 **columns: Any) -> None:  # fmt: skip
        """cpu, base: CPU seconds of the arm and of vanilla in the same rounds."""
        own_ns, base_ns = ([round(s * 1e9) for s in seconds] for seconds in (cpu, base))
        self.add(
            part,
            method,
            status=Status.OK,
            lat_samples_ns=own_ns,
            base_samples_ns=base_ns,
            lat_median_ns=round(statistics.median(own_ns)),
            base_median_ns=round(statistics.median(base_ns)),
            ratio=statistics.median(a / b for a, b in zip(cpu, base, strict=True)),
            n_pairs=len(cpu),
            **columns,
        )

    def skipped(self, part: Part, method: Method, reason: str) -> None:
        self.add(part, method, status=Status.SKIPPED, status_detail=reason)

    def store(self) -> None:
        """Raises StoreError."""
        machine = host.fingerprint(1, "cpu")
        Store(self.folder).append(machine | self.facts | row for row in self.waiting)
        self.waiting.clear()


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


@functools.cache
def _names() -> dict[str, str]:
    """Class → name of each method."""
    targets = {name: plugins.conf("method", name)["target"] for name in plugins.available("method")}
    return {target.partition(":")[2]: name for name, target in targets.items()}
