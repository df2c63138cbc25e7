"""Finds methods, tasks, models and the rest: the project's conf folder, folders of plugin
packages (entry point `bench.conf`), and those in BENCH_CONF_PATH. Imports none of them."""

from __future__ import annotations

import ast
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


def code_sha256(targets: Iterable[str], without: Iterable[str] = ()) -> str:
    """`_code_sha256`, computed once for the same names."""
    return _code_sha256(tuple(targets), tuple(without))


@functools.cache
def _code_sha256(targets: tuple[str, ...], without: tuple[str, ...]) -> str:
    """sha256 of the source files behind module names or targets, and of what these import from
    their own rooms; nothing is imported. `without` are modules that don't count."""
    names = [target.partition(":")[0] for target in targets]
    for name in names:
        if not _source(name)[0]:
            raise RequestError(f"no module '{name}'")
    rooms = {_room(name) for name in names}
    found: dict[str, tuple[Path, ...]] = {}
    while names:
        name = names.pop()
        if name in found or name in without or _room(name) not in rooms:
            continue
        files, imported = _source(name)
        if files:
            found[name] = files
            names += imported
    digest = hashlib.sha256()
    for name, files in sorted(found.items()):
        for file in files:
            digest.update(f"{name}/{file.name}".encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _room(name: str) -> str:
    """The part of a module's name within which imports are followed."""
    parts = name.split(".")
    return ".".join(parts[:2] if parts[0] == "bench" else parts[:1])


@functools.cache
def _source(name: str) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of a module (all of a package's) and the names that it may import."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return (), ()
    # By its path: to find the spec of a submodule is to import what it is in.
    path = Path(spec.origin or next(iter(spec.submodule_search_locations or ()), ""))
    for part in rest:
        folder = path.parent if path.name == "__init__.py" else path
        module, package = folder / f"{part}.py", folder / part / "__init__.py"
        path = next((file for file in (package, module) if file.is_file()), folder / part)
    if not path.is_file():
        return (), ()  # a folder without __init__.py, or the name of something within a module
    if path.name == "__init__.py":
        kinds = (".py", ".cpp", ".h")
        return tuple(f for f in sorted(path.parent.iterdir()) if f.suffix in kinds), ()
    imported: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            within = [f"{node.module}.{alias.name}" for alias in node.names]
            imported += [node.module, *within]
    return (path,), tuple(imported)
