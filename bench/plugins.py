"""Finds methods, tasks, models and the rest: the project's conf folder, folders of plugin
packages (entry point `bench.conf`), and those in BENCH_CONF_PATH. Imports none of them."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown

ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def conf_dirs() -> tuple[Path, ...]:
    """The project's own folder first, then those of plugins."""
    found = [ROOT / "conf"]
    for entry in importlib.metadata.entry_points(group="bench.conf"):
        module, _, folder = entry.value.partition(":")
        spec = importlib.util.find_spec(module)
        if spec and spec.submodule_search_locations:
            found.append(Path(next(iter(spec.submodule_search_locations))) / (folder or "conf"))
    found += [Path(p) for p in os.environ.get("BENCH_CONF_PATH", "").split(os.pathsep) if p]
    return tuple(found)


def available(group: str) -> dict[str, Path]:
    """Name → YAML of every choice of a group; the first folder that has a name wins."""
    found: dict[str, Path] = {}
    for folder in conf_dirs():
        for path in sorted((folder / group).glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def conf(group: str, name: str) -> dict[str, Any]:
    """The YAML of one choice, as written. Raises RequestError with the nearest name."""
    import yaml

    choices = available(group)
    if name not in choices:
        raise unknown(group, name, choices)
    return yaml.safe_load(choices[name].read_text()) or {}


def about(path: Path) -> str:
    """What a YAML says of itself: its leading comment, package directives left out."""
    lines = []
    for line in path.read_text().splitlines():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def load(target: str) -> Any:
    """The object behind 'package.module:Name'."""
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise RequestError(f"can't load '{target}': {error}") from error


def build(conf: dict[str, Any]) -> Any:
    """The dataclass that a method's or a task's configuration describes."""
    kind = load(conf["target"])
    fields = kind.__dataclass_fields__
    given = {k: v for k, v in conf.items() if k != "target" and (k != "name" or k in fields)}
    for key in given:
        if key not in fields:
            raise unknown(f"parameter of {conf['name']}", key, fields)
    return kind(**given)


def code_sha256(targets: Iterable[str]) -> str:
    """sha256 of the source files behind module names or targets, without importing them."""
    digest = hashlib.sha256()
    for name in sorted({target.partition(":")[0] for target in targets}):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise RequestError(f"no module '{name}'")
        digest.update(name.encode() + b"\0" + Path(spec.origin).read_bytes() + b"\0")
    return digest.hexdigest()
