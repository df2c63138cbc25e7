"""The common part of all children: read the request, limit memory, report progress, write one
result. A child is `python -m bench.execution.worker MODULE PARENT DESCRIPTOR …`, or is forked from
the fork server. Imports no torch: the memory limit is set before anything large is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import OWN, RequestError, RunError, raised_at
from bench.files import cache_folder, replacing
from bench.host import linux
from bench.status import Status
from methods.parts import widths
from methods.parts.workload import Unsupported
from tasks.base import DataError

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4  # malloc.h
PEAK_BYTES = 65536
LARGE_BYTES = 32 << 20
"""The largest block size that malloc accepts as a threshold, unless it keeps all blocks."""
KEPT_BLOCKS = Path(__file__).with_name("kept_blocks.cpp")
SHARED_LIBRARY = ("-std=c++20", "-O2", "-shared", "-fPIC", "-Wl,--no-as-needed")


class Channels(NamedTuple):
    """Descriptors of a child: pipes for its output and its messages, a socket on which the
    supervisor sends requests while the child runs, and the request in a file in memory, which
    disappears however the processes end."""

    output: int
    messages: int
    link: int
    request: int


class Report:
    """Sends messages to the supervisor, such as the stage and its progress, these at most once a
    second, so that neither process works during timing. `link` is the descriptor of a socket on
    which the supervisor answers."""

    def __init__(self, messages: int, link: int):
        self.descriptor, self.link = messages, link
        self.stage = "load"
        self.last = 0.0
        self("load")

    def __call__(self, stage: str, done: int = 0, total: int = 0, note: str = "") -> None:
        now = time.monotonic()
        if stage == self.stage and done < total and now - self.last < 1.0 and self.last:
            return
        self.stage, self.last = stage, now
        self._send([stage, done, total, note])

    def send(self, kind: str, **message: Any) -> None:
        """Sends a message for which the supervisor has a handler."""
        self._send({"kind": kind, **message})

    def _send(self, message: object) -> None:
        content = json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError):
            while content:
                content = content[os.write(self.descriptor, content) :]


def run(module: str, channels: Channels, parent: int) -> None:
    """Run `measure` of a module on the request and write its result. This process is killed when
    `parent` ends."""
    linux.die_with_parent(parent)
    with open(channels.request, "rb") as file:
        request = json.load(file)
    if request["memory_bytes"]:
        # A larger allocation fails in this process, long before the machine runs out of memory.
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]  # a fork may have another limit
        resource.setrlimit(resource.RLIMIT_DATA, (request["memory_bytes"], most))
    report = Report(channels.messages, channels.link)
    answer: dict[str, Any]
    try:
        with linux.kept_affinity():
            measure = importlib.import_module(module).measure
        result = measure(request, report)
        answer = {"status": Status.OK, "result": result}
    except (RequestError, DataError) as error:
        answer = {"request_error": str(error)}
    except Unsupported as error:
        answer = {"status": Status.UNSUPPORTED, "detail": str(error), "stage": report.stage}
    except RunError as error:
        answer = {"status": Status.ERROR, "detail": str(error), "stage": report.stage}
    except Exception as error:
        status = memory_status(error)
        if status:
            traceback.clear_frames(error.__traceback__)  # frees the objects of the failed call
        named = f"{type(error).__name__}: {error}\n"
        named = named.replace("\n", f"{_plugin_place(error, request)}\n", 1)
        lines = [named, *traceback.format_exception(error)[-6:]]
        detail = _below_import_path("".join(lines).strip())
        answer = {"status": status or Status.ERROR, "detail": detail, "stage": report.stage}
    report.send("answer", **answer)


def _plugin_place(error: BaseException, request: Mapping[str, Any]) -> str:
    """' (FILE:LINE)' of the error in the code of a plugin's method or task; else empty."""
    cell = json.loads(request.get("cell") or "{}")
    targets = [cell[part]["target"] for part in ("method", "task") if part in cell]
    places = [raised_at(error, target) for target in targets if not target.startswith(OWN)]
    return next((f" ({os.path.basename(place)})" for place in places if place), "")


def _below_import_path(text: str) -> str:
    """A traceback with file names relative to the import path: rows go to other machines, where
    the folders of this one have no meaning."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f'File "{folder}{os.sep}', 'File "')
    return text


def memory_status(error: BaseException) -> Status | None:
    """OOM_HOST or OOM_DEVICE if the error means that memory ran out, else None."""
    torch = sys.modules.get("torch")
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())):
        return Status.OOM_DEVICE
    message = str(error).lower()
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and ("can't allocate memory" in message or "not enough memory" in message)
    ):
        return Status.OOM_HOST
    return None


def return_freed_memory() -> None:
    """Have malloc return freed pages to the kernel at once. Where peak memory is measured, pages
    kept from an earlier peak would hide the next one."""
    _mallopt({M_MMAP_THRESHOLD: PEAK_BYTES, M_TRIM_THRESHOLD: PEAK_BYTES, M_TOP_PAD: 0})


def keep_freed_memory(by_size: bool = False) -> None:
    """Keep freed pages, in malloc or, `by_size`, torch's large blocks by their size. When glibc
    returned them, fetching them again in every call made one cell 30 % slower in some processes
    than in others. Blocks of LARGE_BYTES and more that malloc keeps can take far more memory than
    the peak: glibc 2.36 reuses their holes so badly that unfused attention held 9.6 matrices of
    n × n instead of 2.7. By size they take little more. Raises OSError if blocks can't be kept by
    size."""
    where = {M_MMAP_THRESHOLD: LARGE_BYTES} if by_size else {M_MMAP_MAX: 0}
    _mallopt({**where, M_TRIM_THRESHOLD: -1})
    if by_size:
        import torch  # noqa: F401 - the library needs libc10.so, which torch loads

        keep_blocks = ctypes.CDLL(str(kept_blocks_library())).keep_blocks
        keep_blocks.argtypes, keep_blocks.restype = [ctypes.c_size_t], None
        keep_blocks(LARGE_BYTES)


def kept_blocks_library() -> Path | None:
    """kept_blocks.cpp, compiled at first use: it keeps large blocks that torch frees by their size.
    None if there is no compiler or it fails. Imports no torch.

    glibc's malloc can keep them too, but can't reuse a block for a request of the same number of
    aligned bytes."""
    command, torch = widths.compiler(), find_spec("torch")
    if isinstance(command, str) or torch is None or torch.origin is None:
        return None
    ingredients = [KEPT_BLOCKS.read_text(), *command, *SHARED_LIBRARY, version("torch")]
    digest = hashlib.sha256("\0".join(ingredients).encode()).hexdigest()[:16]
    path, package = cache_folder() / f"kept-blocks-{digest}.so", Path(torch.origin).parent
    if path.exists():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            subprocess.run(
                [*command, *SHARED_LIBRARY, f"-I{package / 'include'}", str(KEPT_BLOCKS),
                 "-o", str(unfinished), f"-L{package / 'lib'}", "-lc10"],
                check=True, capture_output=True, timeout=300,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return path


def _mallopt(options: dict[int, int]) -> None:
    for option, value in options.items():
        ctypes.CDLL("libc.so.6").mallopt(option, value)


if __name__ == "__main__":
    name, parent, *descriptors = sys.argv[1:]
    run(name, Channels(*map(int, descriptors)), int(parent))
