"""Launchers of sweeps: checks that a launcher can be used here, and runs timed cells alone."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from bench.errors import RequestError
from bench.request import plugins
from bench.units import counted

BASIC, JOBLIB, SLURM = "basic", "joblib", "submitit_slurm"
"""Choices of `hydra/launcher`."""
EXTRAS = {JOBLIB: ("joblib", "joblib"), SLURM: ("submitit", "slurm")}
"""Launcher → the package that it needs, and the extra that installs it."""
OF_ANY_CLUSTER = ("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb",
                  "nodes", "name", "stderr_to_stdout")  # fmt: skip
"""Parameters of submitit whose names don't begin with the cluster's name."""


def check_installed(name: str) -> None:
    """Raises RequestError when a choice of conf/launcher needs a package or a program that isn't
    installed."""
    engine = engine_of(name)
    package, extra = EXTRAS.get(engine, ("hydra", ""))
    if importlib.util.find_spec(package) is None:
        raise RequestError(
            f"launcher={name} isn't installed; pip install 'longctx-bench[{extra}]', "
            f"in a checkout: pip install -e '.[{extra}]'"
        )
    if engine == SLURM and shutil.which("sbatch") is None:
        raise RequestError(
            f"launcher={name}: no sbatch on PATH; start it on a login node of the cluster, "
            "or use launcher=local"
        )


def engine_of(name: str) -> str:
    """The choice of `hydra/launcher` in a file of conf/launcher."""
    for entry in plugins.conf("launcher", name).get("defaults", []):
        if isinstance(entry, Mapping) and "override /hydra/launcher" in entry:
            return str(entry["override /hydra/launcher"])
    return BASIC


def check(
    engine: str, launcher: Mapping[str, Any], devices: Iterable[Mapping[str, Any]], n_timed: int
) -> str | None:
    """A warning if timed cells may share a machine, or None. Raises RequestError if they certainly
    would, and if cells need a GPU and Slurm's jobs don't request one. `launcher` are its settings,
    `n_timed` is the number of timed cells in the sweep."""
    more = launcher.get("additional_parameters") or {}
    options = ("gpus_per_node", "gpus_per_task", "gres", "cpus_per_gpu", "mem_per_gpu")
    has_gpu = any(launcher.get(name) for name in options)
    has_gpu |= any("gpu" in f"{name} {value}" for name, value in more.items())
    for device in devices:
        if engine == SLURM and device["kind"] == "cuda" and not has_gpu:
            name = device["name"]
            raise RequestError(
                f"device={name} needs a GPU of the cluster: hydra.launcher.gpus_per_node=1"
            )
    reason = f"{counted(n_timed, 'timed cell')}, and times of cells that run together are wrong"
    if n_timed and engine == JOBLIB and launcher.get("n_jobs") != 1:
        raise RequestError(f"{reason}: add measure=quality, or use launcher=local")
    if n_timed and engine == SLURM and more.get("exclusive", True) is False:
        return f"{reason}: without exclusive they may share a node; each row names what ran there"
    return None


def job_parameters(launcher: Mapping[str, Any], name: str, timed: bool) -> dict[str, Any]:
    """The parameters of submitit.AutoExecutor for the settings of a launcher and a name in the
    queue. Timed cells get exclusive nodes unless the settings contain `exclusive`."""
    more = {"exclusive": True} if timed else {}
    more |= launcher.get("additional_parameters") or {}
    given = {**launcher, "name": name, "additional_parameters": more}
    return {key if key in OF_ANY_CLUSTER else f"slurm_{key}": value for key, value in given.items()}
