"""Keeps the large blocks that torch frees, by their size: kept_blocks.cpp, compiled at first use.

glibc's malloc can keep them too, but can't reuse a block for a request of the same number of
aligned bytes."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from bench import files
from bench.files import replacing
from methods.parts import widths

SOURCE = Path(__file__).with_suffix(".cpp")
FLAGS = ("-std=c++20", "-O2", "-shared", "-fPIC", "-Wl,--no-as-needed")


def library() -> Path | None:
    """The compiled library; None if there is no compiler or it fails. Imports no torch."""
    command, torch = widths.compiler(), find_spec("torch")
    if isinstance(command, str) or torch is None or torch.origin is None:
        return None
    ingredients = [SOURCE.read_text(), *command, *FLAGS, version("torch")]
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]
    path, package = files.cache_folder() / f"kept-blocks-{digest}.so", Path(torch.origin).parent
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            subprocess.run(
                [*command, *FLAGS, f"-I{package / 'include'}", str(SOURCE), "-o", str(unfinished),
                 f"-L{package / 'lib'}", "-lc10"],
                check=True, capture_output=True, timeout=300,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return path


def keep(large_bytes: int) -> None:
    """In this process, keep blocks of `large_bytes` and more that torch frees. Raises OSError
    if there is no library or it can't be loaded."""
    import torch  # noqa: F401 - the library needs libc10.so, which torch loads

    keep_blocks = ctypes.CDLL(str(library())).keep_blocks
    keep_blocks.argtypes, keep_blocks.restype = [ctypes.c_size_t], None
    keep_blocks(large_bytes)
