"""Finds the YAML files of methods, tasks, models and the rest, and loads their targets.

They lie in the project's conf folder, in those of plugin packages (entry point `bench.conf`) and in
those that BENCH_CONF_PATH lists.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the folder that the package is installed in."""
NOT_PARAMETERS = ("name", "target", "label")
"""What a method's YAML holds besides its parameters."""
IS_CHECKOUT = (ROOT / "conf" / "config.yaml").is_file()
CONF = ROOT / ("conf" if IS_CHECKOUT else "bench/conf")


@functools.cache
def conf_dirs() -> tuple[Path, ...]:
    """The project's own folder first, then those of plugins."""
    folders = [CONF]
    for entry in importlib.metadata.entry_points(group="bench.conf"):
        module, _, folder = entry.value.partition(":")
        spec = importlib.util.find_spec(module)
        if spec and spec.submodule_search_locations:
            folders.append(Path(next(iter(spec.submodule_search_locations))) / (folder or "conf"))
    folders += [Path(p) for p in os.environ.get("BENCH_CONF_PATH", "").split(os.pathsep) if p]
    return tuple(folders)


def available(group: str) -> dict[str, Path]:
    """Name → YAML of every choice of a group; the first folder that has a name wins."""
    paths: dict[str, Path] = {}
    for folder in conf_dirs():
        for path in sorted((folder / group).glob("*.yaml")):
            paths.setdefault(path.stem, path)
    return paths


def conf(group: str, name: str) -> dict[str, Any]:
    """The YAML of one choice, as written. Raises RequestError with the nearest name."""
    import yaml

    choices = available(group)
    if name not in choices:
        raise unknown(group, name, choices)
    return yaml.safe_load(choices[name].read_text()) or {}


def about(path: Path) -> str:
    """A YAML file's leading comment, without Hydra's package directive."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def method_label(method: str | None, parameters: Mapping[str, Any] | str | None) -> str | None:
    """What tables and figures call a method: its name, or what the `label` of its YAML makes of
    the parameters, a mapping or JSON, that make it another algorithm."""
    label = _label(method) if method else None
    if label is None:
        return method
    try:
        given = json.loads(parameters or "{}") if isinstance(parameters, str | None) else parameters
        return label.format_map(given)
    except (KeyError, TypeError, ValueError):  # an older row, or a contributed one
        return method


@functools.cache
def _label(method: str) -> str | None:
    return conf("method", method).get("label") if method in available("method") else None


def load(target: str) -> Any:
    """The object behind 'package.module:Name'."""
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"can't load '{target}': {error}") from error


def build(conf: dict[str, Any]) -> Any:
    """The dataclass that a method's or a task's configuration describes."""
    target = load(conf["target"])
    fields = target.__dataclass_fields__
    parameters = {
        k: v for k, v in conf.items() if k != "target" and (k in fields or k not in NOT_PARAMETERS)
    }
    for name in parameters:
        if name not in fields:
            raise unknown(f"parameter of {conf['name']}", name, fields)
    return target(**parameters)
