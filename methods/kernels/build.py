"""Builds the native source with the machine's compiler, at its first use, and loads it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("attention.cpp")
FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fopenmp")
BASE, BF16, VNNI = 1, 2, 4  # what `features` in the source says of the CPU


@functools.cache
def load() -> ctypes.CDLL | str:
    """The library, or in words why there is none. It needs OpenMP by the name of torch's own
    runtime, and torch is loaded by now: so both share one pool of threads."""
    import torch  # noqa: F401

    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"it is for x86-64, and this is {platform.machine()}"
    compiler = os.environ.get("CXX", "")
    found = [name for name in ([compiler] if compiler else ["g++", "c++", "clang++"])]
    command = next((shlex.split(c) for c in found if shutil.which(shlex.split(c)[0])), None)
    if command is None:
        return f"no compiler ({' or '.join(found)} is not in PATH)"
    try:
        library = ctypes.CDLL(str(_built(command)))
    except (OSError, subprocess.SubprocessError) as error:
        return f"it can't be built or loaded: {_line(error)}"
    features = library.features()
    if not features & BASE:
        return "this CPU has no AVX-512"
    return library


def folder() -> Path:
    """Where builds are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "longctx-bench"


def _built(command: list[str]) -> Path:
    """The library of this source, compiler and flags. Several processes may build it at once: each
    writes a file of its own, and the last to end replaces the others' whole."""
    sources = sorted(SOURCE.parent.glob("*.h"))
    what = [
        *(path.read_text() for path in (SOURCE, *sources)),
        *command,
        *FLAGS,
        platform.platform(),
    ]
    path = folder() / f"attention-{hashlib.sha256(chr(0).join(what).encode()).hexdigest()[:16]}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    print("kernels: compiling attention.cpp (once, a few seconds) …", end="", file=sys.stderr)
    start = time.monotonic()
    descriptor, unfinished = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(descriptor)
    try:
        subprocess.run(
            [*command, *FLAGS, str(SOURCE), "-o", unfinished],
            check=True,
            capture_output=True,
            text=True,
            timeout=300,
        )
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)
        print(f" {time.monotonic() - start:.1f} s", file=sys.stderr)
    return path


def _line(error: Exception) -> str:
    """What the compiler said first, or the error's first line."""
    said = getattr(error, "stderr", None) or str(error)
    lines = [line for line in said.splitlines() if "error" in line] or said.splitlines()
    return lines[0] if lines else type(error).__name__
