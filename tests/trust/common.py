"""Runs `bench run` in a separate process, like a user, on a tiny model."""

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

REQUEST = ["length=256", "n=2", "threads=1"]


def environment(conf: Path, **more: str) -> dict[str, str]:
    """This process's environment with the methods of a conf folder added."""
    return {**os.environ, "BENCH_CONF_PATH": str(conf), **more}


def command(model: Path, results: Path, *overrides: str) -> list[str]:
    """The command line of `bench run`; `overrides` replace values of REQUEST."""
    values = {word.partition("=")[0]: word for word in [*REQUEST, *overrides] if word != "-m"}
    flags = ["-m"] if "-m" in overrides else []
    request = [f"model={model}", f"results={results}", *values.values()]
    return [sys.executable, "-m", "bench", "run", *flags, *request]


def bench_run(
    conf: Path, model: Path, results: Path, *overrides: str, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(model, results, *overrides),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(conf, **more),
    )
