"""The process of an engine that this project starts: `python -m bench.engines.MODULE SETTINGS`.

Its first line on stdout is JSON: the data for the session, or an `error`. The process ends when its
stdin is closed, or when the process that started it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.errors import RequestError, RunError
from bench.host import linux

INSTALL = "pip install 'longctx-bench[{extra}]'"


class EngineProcess:
    """A started engine; `ready` is its first line."""

    def __init__(self, module: str, threads: int, **settings: Any) -> None:
        """Raises RequestError for a model or settings that the engine refuses."""
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (an unread pipe would fill up)
        content = json.dumps(settings | {"threads": threads, "parent": os.getpid()})
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"bench.engines.{module}", content],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_PROC_BIND": "false"},
        )  # fmt: skip
        self.ready = self.read()
        if error := self.ready.get("error"):
            self.close()
            raise RequestError(str(error))

    def read(self) -> dict[str, Any]:
        """The next line. Raises RunError if the process ends without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return dict(json.loads(line))
        code = self.process.wait()
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        raise RunError(f"the engine's process ended with {code}: {lines[-1] if lines else ''}")

    def write(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def peak_bytes(self) -> int | None:
        line = linux.line(Path(f"/proc/{self.process.pid}/status"), "VmHWM:")
        return int(line.split()[1]) * 1024 if line else None

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.log):
            if stream is not None:
                stream.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def prepared(settings: Mapping[str, Any]) -> None:
    """In the engine's process, before its library is imported: end with the process that started
    it, and run on one core for each thread."""
    linux.die_with_parent(settings["parent"])
    os.sched_setaffinity(0, linux.spread_cpus(settings["threads"]))


def send(**message: Any) -> None:
    """In the engine's process: write a line."""
    print(json.dumps(message), flush=True)


def check_installed(package: str, extra: str) -> None:
    """Raises RequestError if the package isn't installed, before a process is started."""
    if find_spec(package) is None:
        raise RequestError(
            f"this engine takes the package {package}: {INSTALL.format(extra=extra)}"
        )
