"""From overrides such as 'method=vcc' to a composed request, with errors a person can act on."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints
from warnings import catch_warnings, filterwarnings

from bench.errors import RequestError, unknown
from bench.models import auto
from bench.request import kept, parameters, plugins, schema
from bench.request.overrides import (
    NO_CONFIG,
    ONE_PATH,
    PATHS,
    check_overrides,
    hydra_overrides,
    parse,
)
from methods.parts.parameters import described

RESOLVED = ("by_task", "default_task", "adapted_with", "longest")
"""Keys of a model that `resolve` applies and removes."""
NUMBERS = ("length", "n", "batch", "threads", "seed", "new_tokens", "turns", "deadline_s")
BY_TASK = ("n_by_task", "method_by_task", "task_by_answers")
"""Keys of a request that do not outlast its resolution."""
FROM_REQUEST = {"include_path": ("data", "dir"), "tokenizer": ("model", "path")}
"""Parameters of a task → the part of the request that they are where it gives none."""


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The request that Hydra composes from overrides: bench.request.schema.Config as a plain dict.
    Plain values are put into what the other words compose: Hydra takes half a second, and that is
    kept. Raises RequestError, also for an experiment that is a sweep."""
    plain = _plain_values(overrides)
    words = [override for override in overrides if override.partition("=")[0] not in plain]
    ingredients = _ingredients(words)
    request = kept.read("request", ingredients) if ingredients else None
    if request is None:
        request = _composed(words)
        if ingredients:
            kept.write("request", ingredients, request)
    return resolve({**request, **plain}, overrides)


def _plain_values(overrides: Sequence[str]) -> dict[str, Any]:
    """Key → value of the overrides that set a whole number or a folder on which no other part of a
    request depends."""
    plain: dict[str, Any] = {}
    others = set()
    for key, _, value in (override.partition("=") for override in overrides):
        if key in NUMBERS and re.fullmatch("0|[1-9][0-9]{0,17}", value):
            plain[key] = int(value)
        elif key == "results" and re.fullmatch(r"[\w.-]*(/[\w.-]*)+", value, re.ASCII):
            plain[key] = value
        else:
            others.add(key)
    return {key: value for key, value in plain.items() if key not in others}


def _composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The unresolved request of one cell."""
    checked = check_overrides(overrides)
    for override in parse(checked):
        if override.is_sweep_override():
            key, line = override.key_or_group, override.input_line
            comma = f"; one value with a comma in it is quoted: {key}=\"'…'\"" if "." in key else ""
            raise RequestError(f"{line}: several values are a sweep: add -m{comma}")
    request, hydra = compose_with_hydra(checked)
    if hydra["sweeper"]["params"]:
        name = hydra["runtime"]["choices"].get("experiment")
        raise RequestError(f"experiment={name} is a sweep: bench run -m, or bench plan")
    return request


def _ingredients(overrides: Sequence[str]) -> list[str]:
    """All that a request is composed from: its words, the YAML files, Hydra and this code. Empty
    where a word names a file or folder, which is looked into."""
    given = [(key, value) for key, _, value in (each.partition("=") for each in overrides)]
    if any(key in PATHS and _is_looked_into(key, value) for key, value in given):
        return []
    files = sorted(Path(__file__).parent.glob("*.py"))
    for folder in plugins.conf_dirs():
        files += sorted(folder.glob("**/*.yaml"))
    stamps = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return [*overrides, importlib.metadata.version("hydra-core"), _content_digest(stamps)]


@functools.lru_cache(maxsize=1)
def _content_digest(stamps: tuple[tuple[Path, int, int], ...]) -> str:
    """Digest of files, which count as unchanged while their times and sizes are the same."""
    content = (part for file, *_ in stamps for part in (str(file).encode(), file.read_bytes()))
    return kept.digest(b"\0".join(content))


def _is_looked_into(key: str, value: str) -> bool:
    """Whether a path is read to compose the request; paths that are only written to are not."""
    if key in ONE_PATH:
        return False
    return key != "model" or "/" in value or os.path.exists(value)


def compose_with_hydra(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The unresolved request of checked overrides, and Hydra's own settings: launcher, sweeper and
    the choices of groups. Raises RequestError."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    schema.register()
    GlobalHydra.instance().clear()
    words = hydra_overrides(overrides)
    try:
        with initialize_config_dir(str(plugins.CONF), version_base="1.3"), catch_warnings():
            # Hydra's launcher plugins, where they are installed, have schemas of these names.
            filterwarnings("ignore", r"\s*.*validated against ConfigStore", UserWarning)
            config = hydra_compose("config", overrides=words, return_hydra_config=True)
        hydra = {
            name: OmegaConf.to_container(config.hydra[name], resolve=True)
            for name in ("launcher", "sweeper", "runtime")
        }
        request = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        return to_dict(request), hydra
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise RequestError(f"{getattr(mark, 'name', '')}{plugins.yaml_problem(error)}") from error
    except (AssertionError, AttributeError) as error:  # OmegaConf's, for a field of no mapping
        if not any(override.startswith("model.config") for override in overrides):
            raise
        raise RequestError(f"{NO_CONFIG}; this model has its checkpoint's size") from error
    except (HydraException, OmegaConfBaseException) as error:
        if wrong := re.match(r"Could not override '([^']+)'", str(error)):
            raise _unknown_key(wrong[1], overrides) from error
        if wrongly_typed := _wrong_type(error.__cause__, overrides):
            raise wrongly_typed from error
        lines = [line.strip() for line in str(error).splitlines()
                 if line.strip() and line != "Config search path:"]  # fmt: skip
        cause = str(error.__cause__ or "").strip().splitlines()
        text = "; ".join([*lines[:2], *(line for line in cause[:1] if line not in lines)])
        raise RequestError(text) from error


def _wrong_type(cause: BaseException | None, overrides: Sequence[str]) -> RequestError | None:
    """The error for a value that isn't of its field's type, of a field of the request itself."""
    key = getattr(cause, "full_key", None)
    given = next((o.partition("=")[2] for o in overrides if o.partition("=")[0] == key), None)
    hint = get_type_hints(schema.Config).get(str(key))
    if given is None or hint is None:
        return None
    return RequestError(f"{key}={given} is not accepted: it takes {described(hint)}")


def _unknown_key(key: str, overrides: Sequence[str]) -> RequestError:
    """The error for a dotted key that isn't in the request: its neighbours are."""
    others = [override for override in overrides if override.partition("=")[0] != key]
    node, _ = compose_with_hydra(others)
    *parents, name = key.split(".")
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            return RequestError(f"unknown parameter '{key}': there is no {parent} to have it")
        node = node[parent]
    of = " ".join(dict.fromkeys((*parents, str(node.get("name", parents[-1])))))
    return unknown(f"parameter of {of}", name, node.keys() - {"name", "target"})


def to_dict(config: Any) -> dict[str, Any]:
    """A composed configuration as nested dicts. Raises RequestError on a missing value."""
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue

    try:
        content = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = str(error).split(": ")[-1].splitlines()[0]
        raise RequestError(f"a value is missing: {key}=…") from error
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def resolve(request: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A composed request with everything applied that depends on several of its parts: a model that
    stands in for another on some tasks, the parameters that a method's adapted weights were trained
    with or that a recipe trains it with, the longest input of a model, an experiment's number of
    rows and parameters of methods for a task. What the overrides give stays as given. Raises
    RequestError."""
    keys = {override.lstrip("+").partition("=")[0] for override in overrides}
    task = request["task"]["name"]
    model = _model_for(request["model"], task)
    n_by_task = {} if "n" in keys else request.get("n_by_task") or {}
    if any(f"{key}.".startswith("model.config.") for key in keys):
        _check_config(model)
    longest = model.get("longest")
    recipe = dict(request["recipe"]) if request.get("recipe") else None
    by_method = model.get("adapted_with") if recipe is None else recipe.pop("trained_with", None)
    trained_with = {}
    if request.get("protocol") not in ("swap", "zero-shot"):
        trained_with = (by_method or {}).get(request["method"]["name"], {})
    method = plugins.undescribed(request["method"])
    for_task = (request.get("method_by_task") or {}).get(task, {})
    given = {key: value for key, value in for_task.items() if key in method} | trained_with
    method |= {key: value for key, value in given.items() if f"method.{key}" not in keys}
    method = parameters.resolved(method)
    own = dict(request["task"])
    for name, (part, key) in FROM_REQUEST.items():
        if name in own and own[name] is None:
            own[name] = request[part].get(key)
    return {
        **{k: v for k, v in request.items() if k not in BY_TASK},
        "n": n_by_task.get(task, request["n"]),
        "recipe": recipe,
        "model": {key: value for key, value in model.items() if key not in RESOLVED},
        "method": parameters.checked("method", method),
        "task": parameters.checked("task", own),
        "length": min(request["length"], longest) if longest else request["length"],
        "experiment": _experiment(overrides),
    }


def _experiment(overrides: Sequence[str]) -> str | None:
    """The name of the experiment among the overrides."""
    names = [value for key, _, value in (each.partition("=") for each in overrides)
             if key == "experiment"]  # fmt: skip
    return names[-1] if names else None


def _check_config(model: Mapping[str, Any]) -> None:
    """Raises RequestError for a field that the model's architecture lacks, or a value that it
    refuses."""
    from bench.models.checkpoints import check_config, merged_config

    if model["weights"] != "random":
        raise RequestError(f"{NO_CONFIG}; this model has its checkpoint's size")
    if model["config"] is None:
        raise RequestError(NO_CONFIG)
    folder, given = plugins.ROOT / model["path"], dict(model["config"])
    try:
        plugins.load(auto.resolve(model["family"], folder, given))  # registers its architecture
        check_config(merged_config(folder, given), given)
    except ValueError as error:
        raise RequestError(str(error)) from error


def _model_for(model: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """The model that stands in on a task. A model that the request changed is returned
    unchanged."""
    name = (model.get("by_task") or {}).get(task)
    written = plugins.conf("model", model["name"]) if name else {}
    if not name or any(model.get(key) != value for key, value in written.items()):
        return model
    return {"revision": None, "adapted": {}, "config": None, **plugins.conf("model", name)}
