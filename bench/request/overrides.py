"""Overrides such as 'method=vcc', read and checked before Hydra composes because Hydra's messages
contain no nearest name."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown
from bench.models import stored
from bench.request import plugins, schema, weights

GROUPS = ("method", "task", "model", "device", "data", "launcher", "recipe", "experiment",
          "scale")  # fmt: skip
PATHS = ("model", "model.path", "data.dir", "results", "events", "checkpoints")
"""Keys whose values are files or folders."""
ONE_PATH = ("results", "events", "checkpoints")
"""Keys of a single path that may not exist yet: a comma in it is a part of the path."""
OPEN = ("recipe.trained_with.", "model.config.")
"""Prefixes of keys that a YAML needn't have."""
NO_CONFIG = (
    "model.config.NAME=VALUE, or model.config={NAME: VALUE}, sets the size of a model whose "
    "weights are random, such as model=random-lra"
)


def parse(overrides: Sequence[str]) -> list[Any]:
    """Overrides as parsed by Hydra. Values that its grammar can't read, such as ~/ä, and paths that
    exist or are the only one, such as /a,b, are used as written. Raises RequestError."""
    from hydra.errors import HydraException

    parsed = []
    for override in overrides:
        key, given, value = override.partition("=")
        is_path = key in PATHS and value != "" and os.path.exists(os.path.expanduser(value))
        is_path |= key in ONE_PATH and "," in value and value[0] not in "'\""
        texts = [override, quoted(key, value)] if given else [override]
        for text in reversed(texts) if is_path else texts:
            with contextlib.suppress(HydraException):
                parsed.append(_parsed(text))
                break
        else:
            raise RequestError(f"can't read '{override}': a request is made of NAME=VALUE")
    return parsed


@functools.cache
def _parsed(override: str) -> Any:
    """Raises HydraException."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)


def quoted(key: str, value: str) -> str:
    """The override that sets a key to a text with any characters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return f"{key}={QuotedString(value, Quote.single).with_quotes()}"


def check_overrides(overrides: Sequence[str], methods: Sequence[str] | None = None) -> list[str]:
    """The overrides, with a checkpoint given as `model=` in the form that Hydra takes. `methods`
    are used if the overrides name none: by default those of conf/config.yaml. Raises RequestError
    with the nearest name for a choice or a key that doesn't exist."""
    parsed = parse(as_parameters(overrides))
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
        values = value.list if override.is_choice_sweep() else [value]
        if group == "model.config" and not all(isinstance(each, dict) for each in values):
            raise RequestError(NO_CONFIG)
        choices = [str(each) for each in values]
        if group in PATHS and "" in choices:
            named = "a name (bench ls models), a checkpoint's folder or ORG/NAME of the hub"
            takes = named if group == "model" else "a file or folder"
            raise RequestError(f"{line} is not accepted: it takes {takes}")
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
        result.append(line)
    keys = [override.key_or_group for override in parsed]
    _check_keys(keys, methods)
    _check_scale(parsed)
    if "data.dir" in keys and "data" not in keys:
        result.append("data=local")
    elif "data" not in keys:
        tasks = [o.input_line.split(",") for o in parsed if o.key_or_group == "task"]
        # Tasks of another package have no embedded rows.
        if tasks and all(":" in name for names in tasks for name in names):
            result.append("data=hub")
    if not {"task", "recipe", "experiment"} & set(keys):
        if _for_decoders(methods) and not any(key.startswith(("model", "engine")) for key in keys):
            result.append(f"model={plugins.conf('', 'config')['default_decoder']}")
        result += _task_overrides(result, keys)
    return result


def _for_decoders(methods: Iterable[str]) -> bool:
    """Whether methods other than vanilla are given, and all of them are for decoders alone."""
    names = [name for name in methods if name != schema.BASELINE]
    facts = (plugins.conf("method", name).get("facts", {}) for name in names)
    return bool(names) and all(fact.get("families") == ["decoder"] for fact in facts)


def _task_overrides(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The task of a request that names a model but no task: one that this model can answer."""
    chosen = {o.key_or_group: o.value() for o in parse(overrides) if not o.is_sweep_override()}
    if "model" not in chosen:
        return []
    given = {"path": chosen["model.path"]} if "model.path" in chosen else {}
    model = {**plugins.conf("model", chosen["model"]), **given}
    words = weights.task_for(model, plugins.conf("", "config")["task_by_answers"])
    return [word for word in words if word.partition("=")[0] not in keys]


def hydra_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides in the form that Hydra takes: `task=NAME:MEMBER` becomes the YAML of NAME and the
    member that it leaves open, and keys that a YAML needn't have are added."""
    words = []
    for override in overrides:
        key, _, value = override.partition("=")
        stem, _, member = value.strip("'\"").partition(":")
        if f"{key}.".startswith(OPEN):
            words.append(f"++{override}")
        elif key == "task" and member:
            name = quoted("task.name", f"{stem}:{member}")
            words += [f"task={stem}", name, quoted("task.member", member)]
        else:
            words.append(override)
    return words


def _check_scale(parsed: Sequence[Any]) -> None:
    """Checks that the request has an experiment with this scale. Raises RequestError."""
    choices = {o.key_or_group: str(o.value()) for o in parsed if not o.is_sweep_override()}
    scale, experiment = choices.get("scale"), choices.get("experiment")
    if scale in (None, "None", "null"):
        return
    accepted = plugins.available(f"scale/{scale}")
    if experiment not in accepted:
        given = f"experiment={experiment} has no" if experiment else "no experiment is given with"
        raise RequestError(f"{given} scale={scale}; accepted with it: {', '.join(accepted)}")


def _check_experiment(name: str) -> None:
    """Checks that an experiment's choices exist: Hydra's own message wouldn't name the file."""
    content = plugins.conf("experiment", name)
    if (value := content.get(BUDGET)) is not None:
        raise RequestError(f"experiment={name}: budget={value} is not accepted: {BUDGET_ACCEPTED}")
    for entry in content.get("defaults", []):
        for key, choice in entry.items() if isinstance(entry, dict) else ():
            group = key.removeprefix("override ").lstrip("/")
            if group in GROUPS:
                try:
                    plugins.conf(group, str(choice))
                except RequestError as error:
                    raise RequestError(f"experiment={name}: {error}") from error


def _model_overrides(choices: Sequence[str]) -> list[str]:
    """Overrides for a model, which is a name of the group, or a checkpoint's folder or hub id."""
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
    is_here = Path(choice).expanduser().exists()
    if not is_here and "/" not in choice:
        accepted = [*names, "a checkpoint folder", "a GGUF file", "ORG/NAME of the hub"]
        raise unknown("model", choice, accepted)
    words = ["model=checkpoint", quoted("model.path", choice)]
    if choice.endswith(stored.GGUF):
        return [*words, quoted("model.name", Path(choice).stem), "model.weights=pretrained"]
    return [*words, quoted("model.name", Path(choice).name)]


def _check_keys(keys: Sequence[str], methods: Sequence[str]) -> None:
    fields = list(schema.Config.__dataclass_fields__)
    for key in keys:
        head = key.lstrip("+").partition(".")[0]
        if head in schema.OTHER_NAMES:
            raise schema.not_a_word(head)
        if head not in (*fields, *GROUPS, "hydra"):
            raise unknown("name", head, {*schema.NAMES, *GROUPS} - {*schema.BY_TASK})
        if head == "recipe" != key and not {"recipe", "experiment"} & set(keys):
            raise RequestError(f"{key}: no recipe is chosen; give recipe=NAME (bench ls recipes)")
        check_parameter(key, methods)


def check_parameter(key: str, methods: Collection[str]) -> None:
    """Raises RequestError for a key method.NAME when none of the methods has that parameter. In a
    sweep the value applies to the methods that have it: bench.sweep.grid."""
    head, _, name = key.lstrip("+").partition(".")
    accepted = [plugins.conf("method", method) for method in methods]
    if head != "method" or not name or not accepted:
        return
    names = {name for each in accepted for name in each} - set(plugins.NOT_PARAMETERS)
    if name.split(".")[0] not in names and not any("defaults" in each for each in accepted):
        if name == BUDGET:
            having = [each for each, conf in plugins.usable("method").items() if BUDGET in conf]
            raise RequestError(
                f"method={','.join(methods)} has no budget: a KV cache of all keys and values; "
                f"methods with one: {', '.join(sorted(having)) or 'none'}"
            )
        raise unknown(f"parameter of {', '.join(methods)}", name, names)


# Short names of parameters: `budget=0.25`, the size of a method's KV cache; `press=NAME`,
# `press.compression_ratio=0.5` and `press.window_size=8` of method=kvpress; `attn=NAME` and
# `attn.module=PACKAGE` of method=hf.

BUDGET = "budget"
BUDGET_ACCEPTED = (
    "the budget of a KV cache is such as 0.25 (of the prompt's tokens), 512 (entries of each KV "
    "head and layer) or 64MiB (of the whole model); the time of a sweep is time=30m"
)
BUDGET_VALUE = re.compile(r"(\d+\.?\d*|\.\d+)(e-?\d+)?([KMG]iB)?")
ENGINE = "engine"
"""`engine=NAME` is `method=NAME` of an engine (bench.engines)."""
PARAMETERS = {
    "base_url": "base_url",
    "press": "press",
    "press.compression_ratio": "compression_ratio",
    "attn": "attn",
    "attn.module": "module",
}
"""Short name → the method's parameter."""
OPTIONS = "press."
"""Other names with this prefix are arguments of a press, stored in the parameter `options`."""


def as_parameters(overrides: Sequence[str]) -> list[str]:
    """The overrides with short names replaced by the method's parameters. Raises RequestError, also
    for a `budget=` of another meaning, such as the time of a sweep."""
    others, options = [], []
    for override in overrides:
        key, equals, value = override.partition("=")
        if key.lstrip("+") == BUDGET:
            if not all(BUDGET_VALUE.fullmatch(each.strip(" '\"")) for each in value.split(",")):
                raise RequestError(f"{override} is not accepted: {BUDGET_ACCEPTED}")
            others.append(f"method.{BUDGET}={value}")
        elif key == ENGINE:
            engines = [name for name in plugins.available("method") if plugins.is_engine(name)]
            for name in value.split(","):
                if name not in engines:
                    raise unknown(ENGINE, name, engines)
            if method := next((each for each in overrides if each.startswith("method=")), ""):
                raise RequestError(
                    f"{method} {override}: an engine takes a method's place; give one of the two, "
                    f"or compare both by method={method.partition('=')[2]},{value}"
                )
            others.append(f"method={value}")
        elif key.startswith(f"{ENGINE}."):
            others.append(f"method.{key.partition('.')[2]}={value}")
        elif key in PARAMETERS:
            others.append(f"method.{PARAMETERS[key]}{equals}{value}")
        elif key.startswith(OPTIONS):
            options.append(f"{key.removeprefix(OPTIONS)}={value}")
        elif key.startswith("attn."):
            raise unknown("name", key, PARAMETERS)
        else:
            others.append(override)
    return [*others, *([f"method.options='{', '.join(options)}'"] if options else [])]


# The arguments of a request that a shell may complete.


def completions(given: Sequence[str], word: str) -> list[str]:
    """The completions NAME= or NAME=VALUE of `word`, after the arguments `given`: names of a
    request, also parameters of the methods that it names, or, after a comma, another value."""
    name, equals, value = word.partition("=")
    with contextlib.suppress(RequestError):
        if not equals:
            chosen = dict(word.split("=", 1) for word in given if "=" in word)
            fields = {*schema.NAMES, *GROUPS, "data.dir"} - {*schema.BY_TASK}
            for method in chosen.get("method", "").split(","):
                with contextlib.suppress(RequestError):
                    parameters = plugins.conf("method", method).keys() - {*plugins.NOT_PARAMETERS}
                    fields |= {f"method.{key}" for key in parameters}
            found = {f"{name}=" for name in fields if name not in chosen}
        elif name in PATHS and ("/" in value or name not in GROUPS):
            found = {f"{name}={path}" for path in _paths(value)}
        else:
            choices = plugins.available(name) if name in GROUPS else schema.CHOICES.get(name, ())
            before, comma, _ = value.rpartition(",")
            others = (each for each in choices if each not in before.split(","))
            found = {f"{name}={before}{comma}{each}" for each in others}
        return sorted(each for each in found if each.startswith(word))
    return []


def _paths(value: str) -> Iterable[str]:
    folder, _, _ = value.rpartition("/")
    start = Path(os.path.expanduser(folder or ("/" if value.startswith("/") else ".")))
    if start.is_dir():
        for path in start.iterdir():
            prefix = f"{folder}/" if "/" in value else ""
            yield f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
