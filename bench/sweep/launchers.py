"""Hydra's launchers: whether one can be used here, and whether it runs timed cells alone."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from typing import Any

from bench.errors import RequestError
from bench.request import plugins

BASIC, JOBLIB, SLURM, SUBMITIT_LOCAL = "basic", "joblib", "submitit_slurm", "submitit_local"
EXTRAS = {
    JOBLIB: ("hydra_plugins.hydra_joblib_launcher", "joblib"),
    SLURM: ("hydra_plugins.hydra_submitit_launcher", "slurm"),
    SUBMITIT_LOCAL: ("hydra_plugins.hydra_submitit_launcher", "slurm"),
}
"""Hydra's launcher → the package that it comes from, and the extra that installs it."""


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
    """Hydra's name of the launcher that a choice of conf/launcher stands for."""
    for entry in plugins.conf("launcher", name).get("defaults", []):
        if isinstance(entry, Mapping) and "override /hydra/launcher" in entry:
            return str(entry["override /hydra/launcher"])
    return BASIC


def check_gpus(engine: str, launcher: Mapping[str, Any], device: Mapping[str, Any]) -> None:
    """Raises RequestError when cells need a GPU and Slurm's jobs don't request one. `launcher` is
    Hydra's node of the launcher."""
    options = ("gpus_per_node", "gpus_per_task", "gres", "cpus_per_gpu", "mem_per_gpu")
    if engine != SLURM or device["kind"] != "cuda" or any(launcher.get(name) for name in options):
        return
    more = launcher.get("additional_parameters") or {}
    if not any("gpu" in f"{name} {value}" for name, value in more.items()):
        raise RequestError(
            f"device={device['name']} needs a GPU of the cluster: hydra.launcher.gpus_per_node=1"
        )


def check_timed(engine: str, launcher: Mapping[str, Any], n_timed: int) -> str | None:
    """A warning when timed cells may share a machine, or None. Raises RequestError when they would.
    `n_timed` is how many cells of the sweep are timed."""
    if not n_timed:
        return None
    reason = f"{n_timed} of these cells are timed, and timings of cells that run together are wrong"
    if engine == JOBLIB and launcher.get("n_jobs") != 1:
        raise RequestError(f"{reason}: add measure=quality, or use launcher=local")
    if engine == SUBMITIT_LOCAL:
        raise RequestError(f"{reason}: submitit_local has no limit; use launcher=local")
    more = launcher.get("additional_parameters") or {}
    if engine == SLURM and more.get("exclusive", True) is False:
        return f"{reason}: without exclusive they may share a node; each row names what ran there"
    return None


def slurm_overrides(launcher: Mapping[str, Any], name: str, timed: bool) -> list[str]:
    """What a sweep adds to Hydra's Slurm launcher: its name in the queue, and exclusive nodes for
    timed cells unless the request says otherwise."""
    overrides = [f"hydra.launcher.name={name}"]
    if timed and "exclusive" not in (launcher.get("additional_parameters") or {}):
        overrides.append("+hydra.launcher.additional_parameters.exclusive=true")
    return overrides
