"""What starts the cells of a sweep: whether it can, and whether timed cells stay alone under it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from typing import Any

from bench import plugins
from bench.errors import RequestError

EXTRAS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher", "joblib"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
    "submitit_local": ("hydra_plugins.hydra_submitit_launcher", "slurm"),
}
"""Hydra's launcher → the package that it comes from, and our extra that brings it."""
SLURM = "submitit_slurm"


def check_installed(name: str) -> None:
    """Raises RequestError when a choice of conf/launcher needs a package that isn't here, or a
    program of the cluster."""
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
            "or take launcher=local"
        )


def engine_of(name: str) -> str:
    """Hydra's name of the launcher that a choice of conf/launcher stands for."""
    for entry in plugins.conf("launcher", name).get("defaults", []):
        if isinstance(entry, Mapping) and "override /hydra/launcher" in entry:
            return str(entry["override /hydra/launcher"])
    return "basic"


def check_gpus(engine: str, launcher: Mapping[str, Any], device: Mapping[str, Any]) -> None:
    """Raises RequestError when a GPU is asked for and none is asked of the cluster."""
    asked = ("gpus_per_node", "gpus_per_task", "gres", "cpus_per_gpu", "mem_per_gpu")
    more = launcher.get("additional_parameters") or {}
    if engine != SLURM or device["kind"] != "cuda" or any(launcher.get(name) for name in asked):
        return
    if not any("gpu" in f"{name} {value}" for name, value in more.items()):
        raise RequestError(
            f"device={device['name']} needs a GPU of the cluster: hydra.launcher.gpus_per_node=1"
        )


def check_alone(engine: str, launcher: Mapping[str, Any], timed: int) -> str | None:
    """A warning, or None. Raises RequestError when timed cells would run side by side here.

    `launcher` is Hydra's node of it, `timed` how many cells to run time something.
    """
    if not timed:
        return None
    told = f"{timed} of these cells are timed, and two at a time on one machine spoil each other"
    if engine == "joblib" and launcher.get("n_jobs") != 1:
        raise RequestError(f"{told}: add measure=quality, or take launcher=local")
    if engine == "submitit_local":
        raise RequestError(f"{told}: submitit_local has no limit; take launcher=local")
    if engine == SLURM and not _exclusive(launcher):
        return f"{told}: without exclusive they may share a node; each row says what ran beside it"
    return None


def slurm_overrides(launcher: Mapping[str, Any], name: str, timed: bool) -> list[str]:
    """What a sweep adds to Hydra's Slurm launcher: its name in the queue, and whole nodes for timed
    cells where the request doesn't say otherwise."""
    words = [f"hydra.launcher.name={name}"]
    if timed and "exclusive" not in (launcher.get("additional_parameters") or {}):
        words.append("+hydra.launcher.additional_parameters.exclusive=true")
    return words


def _exclusive(launcher: Mapping[str, Any]) -> bool:
    given = (launcher.get("additional_parameters") or {}).get("exclusive", True)
    return given is not False
