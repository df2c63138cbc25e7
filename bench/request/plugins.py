"""Finds the YAML files of methods, tasks, models and the rest, and loads their targets.

They are in the project's conf folder, in those of plugin packages (entry point `bench.conf`) and in
those that BENCH_CONF_PATH lists. Any error in one of these files, or in the code that it names, is
a RequestError of one line that names the file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.errors import RequestError, errors_of, unknown
from bench.request import code_hash

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the folder in which the package is installed."""
DESCRIPTION = ("label", "facts")
"""Keys of a method's or a task's YAML for listings; they aren't part of a request."""
NOT_PARAMETERS = ("name", "target", *DESCRIPTION)
"""Keys of a method's YAML that aren't parameters."""
IS_CHECKOUT = (ROOT / "conf" / "config.yaml").is_file()
CONF = ROOT / ("conf" if IS_CHECKOUT else "bench/conf")
ENTRY_POINT = "bench.conf"
CONF_PATH = "BENCH_CONF_PATH"

REQUIRED = {
    "method": ("name", "target"),
    "task": ("name", "target", "benchmark", "version"),
    "model": ("name", "family", "path", "weights"),
    "recipe": ("name", "batch", "lr"),
    "device": ("name", "kind"),
    "data": ("source",),
}
"""Keys that a YAML of a group must have, unless it has its own Hydra `defaults`."""
MODULE = "module"
"""The parameter of a method that names a module that it runs: 'package' or 'package:name'."""
TARGETS = ("target", "family")
"""Keys whose value is a target."""


@functools.cache
def conf_dirs() -> tuple[Path, ...]:
    """The project's own folder first, then those of plugins."""
    return (CONF, *(folder for folder, problem in _plugin_dirs() if not problem))


def problems() -> list[str]:
    """One line for each entry point and each folder of BENCH_CONF_PATH that can't be used."""
    return [problem for _, problem in _plugin_dirs() if problem]


def _plugin_dirs() -> Iterator[tuple[Path, str]]:
    """The folders of plugins, each with an error message, which is empty if there is no error."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT):
        module, _, name = entry.value.partition(":")
        given = f"entry point {ENTRY_POINT}: {entry.name} = {entry.value}"
        package = code_hash.folder_of(module.strip()) if module.strip() else None
        if package is None:
            yield Path(), f"{given}: no package '{module}'; it is PACKAGE:FOLDER of YAMLs"
        else:
            folder = package / (name.strip() or "conf")
            yield folder, _folder_problem(folder, given)
    for text in filter(None, os.environ.get(CONF_PATH, "").split(os.pathsep)):
        yield Path(text), _folder_problem(Path(text), CONF_PATH)


def _folder_problem(folder: Path, given: str) -> str:
    if not folder.is_dir():
        return f"{given}: no folder {folder}"
    if not any((folder / group).is_dir() for group in [*REQUIRED, "experiment", "launcher"]):
        return f"{given}: {folder} has no folder method/, task/ or model/ of YAMLs"
    return ""


def available(group: str) -> dict[str, Path]:
    """Name → YAML of every choice of a group; the first folder that has a name wins."""
    paths: dict[str, Path] = {}
    for folder in conf_dirs():
        for path in sorted((folder / group).glob("*.yaml")):
            paths.setdefault(path.stem, path)
    return paths


def conf(group: str, name: str) -> dict[str, Any]:
    """The YAML of one choice, as written; for NAME:MEMBER that of NAME with this member. Raises
    RequestError with the nearest name, or with the error in the file."""
    choices = available(group)
    stem, _, member = name.partition(":")
    if member and stem in choices:
        content = checked(group, choices[stem])
        if content.get("member") == "":
            return {**content, "name": name, "member": member}
    if name not in choices:
        error = unknown(group, name, choices)
        raise RequestError("; ".join([str(error), *problems()]))
    return checked(group, choices[name])


def undescribed(conf: Mapping[str, Any]) -> dict[str, Any]:
    """A method's or a task's configuration without its DESCRIPTION, as in a request."""
    return {key: value for key, value in conf.items() if key not in DESCRIPTION}


def usable(group: str) -> dict[str, dict[str, Any]]:
    """Name → content of every choice of a group that can be used."""
    contents = {}
    for name, path in available(group).items():
        with contextlib.suppress(RequestError):
            contents[name] = checked(group, path)
    return contents


def checked(group: str, path: Path) -> dict[str, Any]:
    """The content of a choice's YAML, whose targets exist: they are parsed, not imported. Raises
    RequestError."""
    content = read(path)
    if "defaults" in content:
        if not isinstance(content["defaults"], list):
            raise RequestError(f"{path}:{_line(path, 'defaults')}: defaults is no list")
        return content
    for key in REQUIRED.get(group, ()):
        if content.get(key) is None:
            raise RequestError(f"{path}: no value for '{key}'")
    if group in ("method", "task") and content["name"] != path.stem:
        raise RequestError(
            f"{path}:{_line(path, 'name')}: name: {content['name']}; it is the file's: {path.stem}"
        )
    for key in TARGETS:
        if key in content:
            try:
                code_hash.check_target(content[key])
            except RequestError as error:
                raise RequestError(f"{path}:{_line(path, key)}: {key}: {error}") from error
    return content


def read(path: Path) -> dict[str, Any]:
    """The content of a YAML file. Raises RequestError with file and line unless it is a mapping of
    names to values."""
    import yaml

    # libyaml's loader, if it is available, is ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(_text(path), loader)
    except yaml.YAMLError as error:
        raise RequestError(f"{path}{yaml_problem(error)}") from error
    except (ValueError, RecursionError) as error:  # a date or a number that Python refuses
        raise RequestError(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise RequestError(f"{path}:1: a {type(content).__name__}; expected lines NAME: VALUE")
    if wrong := [key for key in content if not isinstance(key, str)]:
        raise RequestError(f"{path}:{_line(path, wrong[0])}: name {wrong[0]!r}; expected text")
    return content


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{path}:{line}: not UTF-8") from error


def yaml_problem(error: Exception) -> str:
    """':LINE: message' for an error of the YAML parser."""
    mark = getattr(error, "problem_mark", None)
    line = f":{mark.line + 1}" if mark else ""
    parts = (getattr(error, "problem", None), getattr(error, "context", None))
    return f"{line}: not YAML: {' '.join(filter(None, parts)) or str(error).splitlines()[0]}"


def _line(path: Path, key: Any) -> int:
    """Number of the line that begins with a key; 1 if no line begins with it."""
    lines = _text(path).splitlines()
    return next((i for i, line in enumerate(lines, 1) if line.startswith(f"{key}:")), 1)


def about(path: Path) -> str:
    """A YAML file's leading comment, without Hydra's package directive."""
    lines = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else ():
        if not line.startswith("#"):
            break
        if "@package" not in line:
            lines.append(line.lstrip("# "))
    return " ".join(lines)


def method_label(method: str | None, parameters: Mapping[str, Any] | str | None) -> str | None:
    """Name of a method in tables and figures: its name, or the `label` of its YAML with the
    parameters, a mapping or JSON, that make it another algorithm."""
    label: str | None = _written(method).get("label") if method else None
    if label is None:
        return method
    try:
        given = json.loads(parameters or "{}") if isinstance(parameters, str | None) else parameters
        before, after = given.get("prefill"), given.get("scorer")
        names = (f"{before['name']}+" if before else "", f"·{after['name']}" if after else "")
        return label.format_map(given).join(names)
    except (AttributeError, KeyError, TypeError, ValueError):  # an older or contributed row
        return method


def is_engine(method: str) -> bool:
    """Whether a method's YAML describes an engine (bench.engines)."""
    return bool(facts(method).get("kind") == "engine")


def facts(method: str) -> Mapping[str, Any]:
    """The facts in a method's YAML; empty if there is none."""
    return _written(method).get("facts") or {}


@functools.cache
def _written(method: str) -> Mapping[str, Any]:
    """A method's YAML; empty if there is none, as for an older or contributed row."""
    return conf("method", method) if method in available("method") else {}


def load(target: str) -> Any:
    """The object behind 'package.module:Name'. Raises RequestError."""
    module, _, name = target.partition(":")
    with errors_of(f"can't load '{target}'", target):
        return getattr(importlib.import_module(module), name)


def build(conf: dict[str, Any], base: type | None = None) -> Any:
    """The dataclass, a `base`, that a method's or a task's configuration describes. Raises
    RequestError."""
    target, name = load(conf["target"]), conf.get("name", conf["target"])
    is_class = isinstance(target, type) and dataclasses.is_dataclass(target)
    if not is_class or (base and not issubclass(target, base)):
        expected = f"a dataclass on {base.__module__}.{base.__name__}" if base else "a dataclass"
        raise RequestError(f"{name}: {conf['target']} is not {expected}")
    fields = {field.name for field in dataclasses.fields(target)}
    parameters = {
        k: v for k, v in conf.items() if k != "target" and (k in fields or k not in NOT_PARAMETERS)
    }
    for parameter in parameters:
        if parameter not in fields:
            raise unknown(f"parameter of {name}", parameter, fields)
    for field in dataclasses.fields(target):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.init and field.name not in parameters:
            raise RequestError(f"{name}: no value for '{field.name}'")
    for key, value in parameters.items():
        if is_part(value):
            parameters[key] = build(dict(value), base)
    with errors_of(name, conf["target"]):
        return target(**parameters)


def is_part(value: Any) -> bool:
    """Whether a parameter is the configuration of another method (bench.request.parameters)."""
    return isinstance(value, Mapping) and "target" in value


def targets(conf: Mapping[str, Any]) -> list[str]:
    """The targets of a configuration and of its parts, and the module of another package that the
    method runs. Raises RequestError for one that isn't installed."""
    parts = [part["target"] for part in conf.values() if is_part(part)]
    module = conf.get(MODULE)
    if module and code_hash.source_file(str(module).partition(":")[0]) is None:
        raise RequestError(f"method.{MODULE}={module}: no such module is installed")
    return [conf["target"], *parts, *([str(module)] if module else [])]


# Facts about methods, from their YAML. No method is imported.

METHOD_COLUMNS = ("kind", "hooks", "families", "trains", "causal", "paper", "year")
"""Columns of a method in a listing.

kind      one of METHOD_KINDS
hooks     the replaced parts of a model: attend, mix, encode, a decoder's kv_cache; engine: all
families  the model families in which it runs, or all
trains    whether it can be trained; causal: whether it runs in a causal model

A YAML may also name a package that a method `needs`, and give its `prompt_passes`: the time in
which it reads a prompt, in forward passes of the model.
"""
METHOD_KINDS = ("exact", "sparse", "low-rank", "kernel", "pooling", "recurrent", "eviction",
                "quantised", "oracle", "engine")  # fmt: skip


def method_facts(content: Mapping[str, Any]) -> dict[str, str]:
    """METHOD_COLUMNS of a method, from its YAML; empty if the YAML has none."""
    given = content.get("facts")
    known = given if isinstance(given, dict) else {}
    return {name: _fact_text(known.get(name)) for name in METHOD_COLUMNS}


def _fact_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)
