"""Compiles the native source at its first use, for the vectors of this CPU, and loads it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from methods.parts.widths import Width, chosen, compiler

SOURCE = Path(__file__).with_name("attention.cpp")
FLAGS = ("-std=c++17", "-O2", "-ffp-contract=fast", "-shared", "-fPIC", "-fopenmp")


@functools.cache
def load() -> tuple[ctypes.CDLL, Width] | str:
    """The library and the width for which it is built, or the reason why there is none. It links
    OpenMP under the name of torch's runtime, which is loaded first, so that both share one thread
    pool."""
    import torch  # noqa: F401

    width = chosen()
    if isinstance(width, str):
        return width
    command = compiler()
    if isinstance(command, str):
        return command
    try:
        return ctypes.CDLL(str(built(command, width))), width
    except (OSError, subprocess.SubprocessError) as error:
        return f"it can't be built or loaded: {_line(error)}"


def loaded() -> tuple[ctypes.CDLL, Width]:
    """The result of `load`, which must not be a reason."""
    found = load()
    assert not isinstance(found, str)
    return found


def folder() -> Path:
    """The folder of cached builds."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "longctx-bench"


def built(command: list[str], width: Width) -> Path:
    """The library of this source, compiler and flags. Several processes may build it at once: each
    writes its own file, which then replaces the target atomically."""
    flags = (*FLAGS, *width.flags)
    sources = sorted(SOURCE.parent.glob("*.h"))
    ingredients = [
        *(path.read_text() for path in (SOURCE, *sources)),
        *command,
        *flags,
        platform.platform(),
    ]
    digest = hashlib.sha256(chr(0).join(ingredients).encode()).hexdigest()[:16]
    path = folder() / f"attention-{width.name}-{digest}.so"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    print(
        f"kernels: compiling attention.cpp for {width.name} (once, a few seconds) …",
        end="",
        file=sys.stderr,
    )
    start = time.monotonic()
    descriptor, unfinished = tempfile.mkstemp(suffix=".so", dir=path.parent)
    os.close(descriptor)
    try:
        subprocess.run(
            [*command, *flags, str(SOURCE), "-o", unfinished],
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
    """The compiler's first error, or the exception's first line."""
    output = getattr(error, "stderr", None) or str(error)
    lines = [line for line in output.splitlines() if "error" in line] or output.splitlines()
    return lines[0] if lines else type(error).__name__
