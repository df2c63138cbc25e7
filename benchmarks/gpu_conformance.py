"""Checks every method in every family on a GPU, in each dtype, several cases at once, and writes a
line of JSON for each as soon as it is known. A part of `make gpu`, which starts it again if CUDA
didn't survive an error.

    python -m benchmarks.gpu_conformance --device cuda --out results/gpu --seconds 120
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.conformance import families
from bench.conformance.on_device import DTYPES, check_on_device
from bench.conformance.subject import LONG, MIXED
from bench.host import linux
from bench.request import code_hash, plugins
from bench.request.schema import BASELINE
from benchmarks.gpu_pieces import CHECKS, CUDA_LOST
from benchmarks.gpu_summary import checks
from methods.base import Method, refusal

FIRST = ("decoder", "t5")
"""The families whose checks differ most: causal with a KV cache, and with a position bias."""
FAMILIES = families()
MOST_JOBS = 8
"""Processes at the same time. Each uses two cores and has its own CUDA context."""


class Case(NamedTuple):
    method: str
    family: str
    dtype: str


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--share", type=int, default=1, help="every so many cases alone")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"gpu: torch {torch.__version__} sees no CUDA GPU", file=sys.stderr)
        return 2
    name = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    known = {key(line) for line in checks(options.out)}
    lines = [
        line for case in cases()[:: options.share] if key(line := named(case, name)) not in known
    ]
    work = partial(checked, options.device, options.out / CHECKS, end)
    try:
        if (jobs := min(MOST_JOBS, len(linux.usable_cpus()) // 2)) < 2:
            for line in lines:
                work(line)
        else:
            spawned = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(jobs, spawned) as pool:
                list(pool.map(work, lines))
    except BrokenProcessPool:
        return CUDA_LOST
    return 0


def cases() -> list[Case]:
    """float32 before half precision, and the families of FIRST before the others."""
    names = sorted(plugins.usable("method"))
    others = [name for name in FAMILIES if name not in FIRST]
    return [
        Case(method, family, dtype)
        for group in (FIRST, others)
        for dtype in DTYPES
        for family in group
        for method in names
    ]


def named(case: Case, device: str) -> dict[str, Any]:
    """The columns that identify a line."""
    return {**case._asdict(), "device": device, "code": code_of(case)}


def checked(device: str, path: Path, end: float, line: dict[str, Any]) -> None:
    """Adds the columns of the checks, the method's own reason or its failures, and appends the
    line. Does nothing after `end`, and ends the process if CUDA didn't survive."""
    if (began := time.monotonic()) > end:
        return
    torch.set_num_threads(1)  # tiny models
    torch.backends.cudnn.allow_tf32 = False
    reason, failures = None, []
    try:
        method: Method = plugins.build(plugins.conf("method", line["method"]))
        family = FAMILIES[line["family"]].tiny(method)
        reason = refusal(method, family.workload(LONG, len(MIXED)))
        failures = [] if reason else check_on_device(method, family, device, line["dtype"])
    except Exception as error:
        failures = [f"{type(error).__name__}: {error}"]
    seconds = round(time.monotonic() - began, 3)
    line = {**line, "unsupported": reason, "failures": failures, "seconds": seconds}
    with open(path, "a") as file:
        print(json.dumps(line), file=file, flush=True)
    print(*(line[name] for name in Case._fields), reason or failures or "ok", flush=True)
    if any("CUDA error" in failure for failure in failures):
        os._exit(CUDA_LOST)


def code_of(case: Case) -> str:
    """A hash of the code of the method, of vanilla, of the family and of the checks."""
    confs = [plugins.conf("method", name) for name in (case.method, BASELINE)]
    targets = [target for conf in confs for target in plugins.targets(conf)]
    others = (FAMILIES[case.family].__module__, "bench.conformance.on_device")
    return code_hash.code_sha256(*targets, *others)[:12]


def key(line: dict[str, Any]) -> tuple[str, ...]:
    return tuple(line[name] for name in (*Case._fields, "device", "code"))


if __name__ == "__main__":
    sys.exit(main())
