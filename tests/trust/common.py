"""What the trust tests share: a request on the tiny model, run as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

WORDS = ["length=256", "n=2", "threads=1"]


def environment(conf: Path, **more: str) -> dict[str, str]:
    """This process's environment, with the methods of a conf folder known."""
    return {**os.environ, "BENCH_CONF_PATH": str(conf), **more}


def command(model: Path, results: Path, *words: str) -> list[str]:
    """`bench run` as a list; later words win over the tiny request's own."""
    given = {word.partition("=")[0]: word for word in [*WORDS, *words] if word != "-m"}
    flags = ["-m"] if "-m" in words else []
    request = [f"model={model}", f"results={results}", *given.values()]
    return [sys.executable, "-m", "bench", "run", *flags, *request]


def bench_run(
    conf: Path, model: Path, results: Path, *words: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(model, results, *words),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(conf, **more),
    )
