"""The commands about this machine: bench doctor | host.

`bench doctor` examines what a run needs, and gives advice where the machine lacks something.
Imports no torch.
"""

from __future__ import annotations

import enum
import importlib.metadata
import importlib.util
import math
import os
import platform
import re
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil
from packaging.requirements import Requirement

from bench.files import cache_folder
from bench.host import gpu, host, linux
from bench.terminal import output
from bench.terminal.options import command, format_option, results_option
from methods.parts import widths

PROJECT = "longctx-bench"
LEAST_MEMORY = 4 << 30
LEAST_DISK = 2 << 30
SLICES = 150
"""Short pieces of work, of about a millisecond, whose times are compared."""
UNSTEADY_PCT = 10.0
"""More than nine tenths of the pieces take this much longer than the median: noise."""


class State(enum.StrEnum):
    OK = "ok"
    LOOK = "look"
    BAD = "bad"


class Finding(NamedTuple):
    """`about`: the subject; `found`: its state; `advice`: the remedy, empty if nothing is wrong.
    BAD: no run is possible; LOOK: runs are slower, noisier or more limited."""

    about: str
    state: State
    found: str
    advice: str = ""

    @classmethod
    def of(cls, about: str, found: str, needs_look: object, advice: str) -> Finding:
        """LOOK with the advice if something needs a look, else OK without it."""
        return cls(about, State.LOOK, found, advice) if needs_look else cls(about, State.OK, found)


@command("What a run needs of this machine, and what to do about the rest.")
@results_option()
@format_option(default="table")
def doctor(results: Path, form: str) -> int:
    """Exit code 1 if no run is possible."""
    from rich.markup import escape

    findings = examine(results.expanduser().resolve())
    lines = ((output.styled(f.state), f.about, escape(f.found), escape(f.advice)) for f in findings)
    records = (finding._asdict() for finding in findings)
    output.show(form, Finding._fields, records, ("", "", "found", "what to do"), lines)
    return int(any(finding.state == State.BAD for finding in findings))


@command("This machine, and the smallest effect it can resolve.")
@format_option(default="table")
def this_host(form: str) -> int:
    from bench.execution.supervisor import Limits, started

    print("measuring what this machine can resolve …", file=sys.stderr)
    with started("bench.host.torch_host", {}, Limits.after(120)) as running:
        torch = running.outcome()
    facts = host.fingerprint(len(os.sched_getaffinity(0)), "cpu") | torch.result
    certificate = host.certificate()
    output.show_facts(facts | certificate, form)
    found = certificate["detectable_pct"]
    smallest = f"a slow-down of {found:.1f} % and more" if found else "no slow-down here"
    pairs = f"{certificate['pairs']} pairs of short calls on one thread"
    output.remark(form, f"\n{pairs} show {smallest}.")
    return 0


# The findings of `bench doctor`.


def examine(results: Path) -> list[Finding]:
    """All findings, with rows to be stored in the folder `results`. Takes less than a second."""
    return [
        Finding("Python", State.OK, f"{platform.python_version()}, {sys.executable}"),
        _torch(), _bytecode(), _cpu(), _kernel(), _compiler(), _gpu(), _memory(), _disk(results),
        _load(), _steadiness(), _models(), _engines(),
    ]  # fmt: skip


def _torch() -> Finding:
    wanted = next((each for each in importlib.metadata.requires(PROJECT) or () if
                   each.startswith("torch")), "torch")  # fmt: skip
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", State.BAD, "not installed", f"pip install '{wanted}'")
    build, fits = _torch_build(), Requirement(wanted).specifier.contains(version, prereleases=True)
    found = f"{version} for {build or 'processors'}"
    if not fits:
        return Finding("torch", State.BAD, found, f"pip install '{wanted}'")
    advice = "there is a GPU: install torch's CUDA build"
    return Finding.of("torch", found, not build and gpu.name(), advice)


def _torch_build() -> str:
    """CUDA or ROCm with its version, from torch's files; empty for its CPU build."""
    spec = importlib.util.find_spec("torch")
    path = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = linux.text(path) if path else None
    found = re.findall(r"^(cuda|hip)\b.*=\s*'(.+)'", text or "", re.MULTILINE)
    return " ".join({"cuda": "CUDA", "hip": "ROCm"}[name] + " " + number for name, number in found)


def _bytecode() -> Finding:
    spec = importlib.util.find_spec("torch")
    if spec and spec.cached and Path(spec.cached).is_file():
        return Finding("bytecode", State.OK, "of what is installed is there")
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return Finding("bytecode", State.OK, "is written at the first run")
    advice = "each process compiles torch anew, some 5 s: tools/setup, or python -m compileall"
    return Finding("bytecode", State.LOOK, "none, and PYTHONDONTWRITEBYTECODE is set", advice)


def _cpu() -> Finding:
    facts = host.fingerprint(1, "cpu")
    usable, quota = len(linux.usable_cpus()), linux.cpu_quota() or math.inf
    held = f", a quota of {quota:g}" if quota < usable else f", {facts['virt']}"
    found = f"{facts['cpu_model']}, {usable} of {os.cpu_count()} cores{held}"
    threads = max(1, int(min(quota, usable)))
    advice = f"threads={threads}: more are held back by the control group"
    return Finding.of("processor", found, quota < usable, advice)


def _kernel() -> Finding:
    try:
        width = widths.chosen()
    except ValueError as error:
        return Finding("native kernels", State.BAD, str(error), f"unset {widths.VARIABLE}")
    if isinstance(width, str):
        return Finding("native kernels", State.LOOK, width, "methods run on torch, slower")
    extras = f" with {', '.join(width.extras)}" if width.extras else ""
    return Finding("native kernels", State.OK, f"for {width.name}{extras}")


def _compiler() -> Finding:
    found = widths.compiler()
    name = found if isinstance(found, str) else shutil.which(found[0]) or found[0]
    advice = "without it methods run on torch: apt install g++"
    return Finding.of("compiler", name, isinstance(found, str), advice)


def _engines() -> Finding:
    found, missing = [], []
    for package, extra in (("xllamacpp", "llama-cpp"), ("openvino-genai", "openvino")):
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(extra)
    more = [f"pip install 'longctx-bench[{','.join(missing)}]' adds more"] if missing else []
    return Finding("engines", State.OK, "; ".join([", ".join(found) or "none", *more]))


def _gpu() -> Finding:
    if name := gpu.name():
        memory = (gpu.memory_bytes() or 0) / 2**30
        return Finding("GPU", State.OK, f"{name}, {memory:.0f} GiB, driver {gpu.driver()}")
    return Finding("GPU", State.OK, "none: device=cpu")


def _memory() -> Finding:
    free, total = host.available_memory(), psutil.virtual_memory().total
    found = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    advice = "long inputs end for lack of memory, which becomes a row: stop other programs"
    return Finding.of("memory", found, free < LEAST_MEMORY, advice)


def _disk(results: Path) -> Finding:
    folder = next(each for each in (results, *results.parents) if each.exists())
    free = shutil.disk_usage(folder).free
    if not os.access(folder, os.W_OK):
        return Finding("disk", State.BAD, f"{results} can't be written", "give results=FOLDER")
    advice = "trained weights need some GiB: checkpoints=FOLDER"
    found = f"{free / 2**30:.1f} GiB free for {results}"
    return Finding.of("disk", found, free < LEAST_DISK, advice)


def _load() -> Finding:
    facts = host.fingerprint(len(linux.usable_cpus()), "cpu", host.counters())
    if facts["noisy"]:
        return Finding("other work", State.LOOK, facts["noise_reason"], "intervals get wider")
    governor = facts["governor"]
    found = f"load {facts['load1'] or 0:.1f}" + (f", governor {governor}" if governor else "")
    advice = "clocks vary: cpupower frequency-set -g performance"
    varies = governor not in (None, "performance")
    return Finding.of("other work", found, varies, advice)


def _steadiness() -> Finding:
    """Variation of the time of the same short work: its 90th percentile over its median."""
    times = []
    for _ in range(SLICES):
        began = time.perf_counter_ns()
        sum(range(30_000))
        times.append(time.perf_counter_ns() - began)
    excess = 100 * (statistics.quantiles(times, n=10)[-1] / statistics.median(times) - 1)
    found = f"one of ten short calls takes {excess:.0f} % longer, or more"
    advice = "bench host shows the smallest difference that this machine detects"
    return Finding.of("steadiness", found, excess > UNSTEADY_PCT, advice)


def _models() -> Finding:
    base = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(base) / "hub")
    configs = (cache_folder() / "models").glob("[!.]*/config.json")
    folders = [*hub.glob("models--*"), *(config.parent for config in configs)]
    names = sorted({each.name.removeprefix("models--").replace("--", "/") for each in folders})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    found = f"{', '.join(names[:3])}{more}" if names else "none of the hub"
    return Finding("cached models", State.OK, f"the shipped ones, {found}")
