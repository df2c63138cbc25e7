"""From overrides such as 'method=vcc' to a composed and checked request, with errors a person can
act on. Names are checked before Hydra composes, because Hydra's messages give no nearest name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown
from bench.host import gpu
from bench.request import (
    kept,
    kv_budget,
    limits,
    parameters,
    parts,
    plugins,
    protocol,
    questions,
    schema,
    short_names,
)
from bench.request.other_names import OTHER_NAMES, not_a_word

GROUPS = ("method", "task", "model", "device", "data", "launcher", "recipe", "experiment",
          "scale")  # fmt: skip
PATHS = ("model", "model.path", "data.dir", "results", "events", "checkpoints")
"""Keys whose values are files or folders."""
RESOLVED = ("by_task", "default_task", "adapted_with", "longest")
"""Keys of a model that `resolve` applies and removes."""
BY_TASK = ("n_by_task", "method_by_task", "task_by_answers")
"""Keys of a request that do not outlast its resolution."""
FROM_REQUEST = {"include_path": ("data", "dir"), "tokenizer": ("model", "path")}
"""Parameters of a task → the part of the request that they are where it gives none."""


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The request that Hydra composes from overrides: bench.request.schema.Config as a plain dict.
    Raises RequestError, also for an experiment that is a sweep."""
    ingredients = _ingredients(overrides)
    request = kept.read("request", ingredients) if ingredients else None
    if request is None:
        request = _composed(overrides)
        if ingredients:
            kept.write("request", ingredients, request)
    return resolve(request, overrides)


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
    """Of files that stay as they are while their times and sizes do."""
    content = (part for file, *_ in stamps for part in (str(file).encode(), file.read_bytes()))
    return kept.digest(b"\0".join(content))


def _is_looked_into(key: str, value: str) -> bool:
    """Results and events are only written to; a word with a comma in it is read by whether it
    exists."""
    if key in ("results", "events"):
        return "," in value
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
    words = [word for override in overrides for word in _member_overrides(override)]
    try:
        with initialize_config_dir(str(plugins.CONF), version_base="1.3"):
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
    except (HydraException, OmegaConfBaseException) as error:
        if wrong := re.match(r"Could not override '([^']+)'", str(error)):
            raise _unknown_key(wrong[1], overrides) from error
        lines = [line.strip() for line in str(error).splitlines()
                 if line.strip() and line != "Config search path:"]  # fmt: skip
        cause = str(error.__cause__ or "").strip().splitlines()
        text = "; ".join([*lines[:2], *(line for line in cause[:1] if line not in lines)])
        raise RequestError(text) from error


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


def parse(overrides: Sequence[str]) -> list[Any]:
    """Hydra's own reading of overrides. Raises RequestError."""
    return [_parsed(override) for override in overrides]


def _parsed(override: str) -> Any:
    """A value that Hydra's grammar can't read, such as ~/ä, and a path that exists, such as /a,b,
    are taken as they are written."""
    from hydra.errors import HydraException

    key, given, value = override.partition("=")
    exists = key in PATHS and value and os.path.exists(os.path.expanduser(value))
    texts = [override, quoted(key, value)] if given else [override]
    for text in reversed(texts) if exists else texts:
        with contextlib.suppress(HydraException):
            return _read(text)
    raise RequestError(f"can't read '{override}': a request is made of NAME=VALUE")


@functools.cache
def _read(override: str) -> Any:
    """Raises HydraException."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)


def quoted(key: str, value: str) -> str:
    """The override that sets a key to this text, whatever characters it has."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return f"{key}={QuotedString(value, Quote.single).with_quotes()}"


def check_overrides(overrides: Sequence[str], methods: Sequence[str] | None = None) -> list[str]:
    """The overrides, with a checkpoint given as `model=` in the form that Hydra takes. `methods`
    are those of a request whose overrides name none: by default those of conf/config.yaml. Raises
    RequestError with the nearest name for a choice or a key that doesn't exist."""
    parsed = parse(
        short_names.as_parameters([kv_budget.as_parameter(override) for override in overrides])
    )
    result: list[str] = []
    if methods is None:
        # The methods of an experiment are known once it is composed.
        in_experiment = any(override.key_or_group == "experiment" for override in parsed)
        defaults = plugins.conf("", "config")["defaults"]
        methods = [] if in_experiment else [each["method"] for each in defaults if "method" in each]
    for override in parsed:
        group, line = override.key_or_group, override.input_line or ""
        if override.is_delete() or "glob(" in line:
            result.append(line)
            continue
        value = override.value()
        choices = [str(each) for each in (value.list if override.is_choice_sweep() else [value])]
        if group == "model":
            result += _model_overrides(choices)
            continue
        if group in GROUPS:
            for choice in choices:
                plugins.conf(group, choice)
                if group == "experiment":
                    _check_experiment(choice)
        if group == "method":
            methods = choices
        # A mapping that a recipe may leave out: Hydra would refuse its keys as unknown.
        is_open = group.startswith("recipe.trained_with") and not line.startswith("+")
        result.append(f"++{line}" if is_open else line)
    keys = [override.key_or_group for override in parsed]
    _check_keys(keys, methods)
    _check_scale(parsed)
    if "data.dir" in keys and "data" not in keys:
        result.append("data=local")
    elif "data" not in keys and _all_members(parsed):
        result.append("data=hub")
    if not {"task", "recipe", "experiment"} & set(keys):
        result += _task_overrides(result, keys)
    return result


def _task_overrides(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The task of a request that names a model and no task: one that this model can answer."""
    chosen = {o.key_or_group: o.value() for o in parse(overrides) if not o.is_sweep_override()}
    if "model" not in chosen:
        return []
    given = {"path": chosen["model.path"]} if "model.path" in chosen else {}
    model = {**plugins.conf("model", chosen["model"]), **given}
    words = protocol.task_for(model, plugins.conf("", "config")["task_by_answers"])
    return [word for word in words if word.partition("=")[0] not in keys]


def _all_members(parsed: Sequence[Any]) -> bool:
    """Whether every task of a request is one of another package, which has no embedded rows."""
    given = [o for o in parsed if o.key_or_group == "task"]
    return bool(given) and all(":" in name for o in given for name in o.input_line.split(","))


def _member_overrides(override: str) -> list[str]:
    """`task=NAME:MEMBER` as Hydra takes it: the YAML of NAME, and what it leaves open."""
    key, _, value = override.partition("=")
    stem, _, member = value.strip("'\"").partition(":")
    if key != "task" or not member:
        return [override]
    name = quoted("task.name", f"{stem}:{member}")
    return [f"task={stem}", name, quoted("task.member", member)]


def _check_scale(parsed: Sequence[Any]) -> None:
    """A scale belongs to an experiment, and not every experiment has it. Raises RequestError."""
    choices = {o.key_or_group: str(o.value()) for o in parsed if not o.is_sweep_override()}
    scale, experiment = choices.get("scale"), choices.get("experiment")
    if scale in (None, "None", "null"):
        return
    accepted = plugins.available(f"scale/{scale}")
    if experiment not in accepted:
        given = f"experiment={experiment} has no" if experiment else "no experiment is given with"
        raise RequestError(f"{given} scale={scale}; accepted with it: {', '.join(accepted)}")


def _check_experiment(name: str) -> None:
    """What an experiment chooses must exist: Hydra's own message wouldn't name the file."""
    for entry in plugins.conf("experiment", name).get("defaults", []):
        for key, choice in entry.items() if isinstance(entry, dict) else ():
            group = key.removeprefix("override ").lstrip("/")
            if group in GROUPS:
                try:
                    plugins.conf(group, str(choice))
                except RequestError as error:
                    raise RequestError(f"experiment={name}: {error}") from error


def _model_overrides(choices: Sequence[str]) -> list[str]:
    """A model is a name of the group, or any checkpoint by its folder or hub id."""
    names = plugins.available("model")
    if all(choice in names for choice in choices):
        for choice in choices:
            plugins.conf("model", choice)
        return [f"model={','.join(choices)}"]
    if len(choices) > 1:
        raise RequestError(
            "a sweep over models takes names; give each checkpoint a YAML in conf/model"
        )
    choice = choices[0]
    if not Path(choice).expanduser().is_dir() and "/" not in choice:
        raise unknown("model", choice, [*names, "a checkpoint folder", "ORG/NAME of the hub"])
    name = Path(choice).name
    return ["model=checkpoint", quoted("model.path", choice), quoted("model.name", name)]


def _check_keys(keys: Sequence[str], methods: Sequence[str]) -> None:
    fields = list(schema.Config.__dataclass_fields__)
    for key in keys:
        head = key.lstrip("+").partition(".")[0]
        if head in OTHER_NAMES:
            raise not_a_word(head)
        if head not in (*fields, *GROUPS, "hydra"):
            raise unknown("name", head, {*fields, *GROUPS})
        if head == "recipe" != key and not {"recipe", "experiment"} & set(keys):
            raise RequestError(f"{key}: no recipe is chosen; give recipe=NAME (bench ls recipes)")
        check_parameter(key, methods)


def check_parameter(key: str, methods: Iterable[str]) -> None:
    """Raises RequestError for a key method.NAME when none of the methods has that parameter. In a
    sweep it reaches those that have it: bench.sweep.grid."""
    head, _, name = key.lstrip("+").partition(".")
    accepted = [plugins.conf("method", method) for method in methods]
    if head != "method" or not name or not accepted:
        return
    names = {name for each in accepted for name in each} - set(plugins.NOT_PARAMETERS)
    if name.split(".")[0] not in names and not any("defaults" in each for each in accepted):
        if name == kv_budget.NAME:
            raise kv_budget.missing(list(methods))
        raise unknown(f"parameter of {', '.join(methods)}", name, names)


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
    method = parts.resolved(method)
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
    }


def _model_for(model: Mapping[str, Any], task: str) -> Mapping[str, Any]:
    """The model that stands in on a task. A model that the request changed stays as it is."""
    name = (model.get("by_task") or {}).get(task)
    written = plugins.conf("model", model["name"]) if name else {}
    if not name or any(model.get(key) != value for key, value in written.items()):
        return model
    return {"revision": None, "adapted": {}, "config": None, **plugins.conf("model", name)}


def check_values(request: Mapping[str, Any]) -> None:
    """Checks each value of a resolved request by itself. Raises RequestError."""
    for name in ("length", "batch", "n", "threads", "deadline_s"):
        value = request[name]
        if value is not None and value < 1:
            raise RequestError(f"{name}={value} is not accepted: it must be 1 or more")
    if request["seed"] < 0:
        raise RequestError(f"seed={request['seed']} is not accepted: it must be 0 or more")
    for name, accepted in (("dtype", schema.DTYPES), ("measure", schema.MEASURES),
                           ("probe", (None, *schema.PROBES))):  # fmt: skip
        if request[name] not in accepted:
            raise unknown(name, request[name], filter(None, accepted))
    _check_new_tokens(request)
    questions.check_values(request)
    if request.get("recipe"):
        protocol.check_recipe(request["recipe"])
    if request["data"]["source"] not in schema.SOURCES:
        raise unknown("data source", request["data"]["source"], schema.SOURCES)
    if request["data"]["source"] == "local" and not request["data"].get("dir"):
        raise RequestError("data=local needs the folder: data.dir=FOLDER (DATA_DIR=FOLDER)")
    if request["data"]["source"] != "local" and request["data"].get("dir"):
        source = request["data"]["source"]
        raise RequestError(f"data.dir={request['data']['dir']} is for data=local; given: {source}")
    limits.check_size(request)


def decoded_tokens(request: Mapping[str, Any]) -> int | None:
    """How many new tokens a request decodes after each prompt; None: decoding isn't measured."""
    planned = None if request["probe"] else schema.MEASURES[request["measure"]].new_tokens
    return request.get("new_tokens") or planned


def _check_new_tokens(request: Mapping[str, Any]) -> None:
    given = request.get("new_tokens")
    if given is None:
        return
    if given < 2:
        raise RequestError(
            f"new_tokens={given} is not accepted: 2 or more, as the first one is the prefill's "
            f"({schema.VERDICT_TOKENS} for a verdict)"
        )
    timed = [name for name, plan in schema.MEASURES.items() if plan.speed]
    if request["probe"] or request["measure"] not in timed:
        name = "probe" if request["probe"] else "measure"
        chosen = f"{name}={request[name]}"
        raise RequestError(
            f"new_tokens={given}: {chosen} times no decoding; accepted with it: "
            f"measure={', '.join(timed)}"
        )


def check_device(device: Mapping[str, Any]) -> None:
    """Raises RequestError when this machine doesn't have the device."""
    if device["kind"] == "cpu":
        return
    found = gpu.name()
    if not found:
        raise RequestError(f"device={device['name']}: no CUDA GPU on this machine; accepted: cpu")
    required = device.get("require")
    # As a word: a GH200 is no H200.
    if required and not re.search(rf"\b{re.escape(required)}\b", found, re.IGNORECASE):
        raise RequestError(
            f"device={device['name']} requires an {required}; here: {found} "
            "(device=cuda takes any GPU)"
        )
