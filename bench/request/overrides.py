"""Overrides such as 'method=vcc', read and checked before Hydra composes because Hydra's messages
contain no nearest name; short names of parameters, and the names that other harnesses use.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError, unknown
from bench.request import kv_budget, plugins, protocol, schema
from bench.request.schema import NAMES

GROUPS = ("method", "task", "model", "device", "data", "launcher", "recipe", "experiment",
          "scale")  # fmt: skip
PATHS = ("model", "model.path", "data.dir", "results", "events", "checkpoints")
"""Keys whose values are files or folders."""
ONE_PATH = ("results", "events", "checkpoints")
"""Those of one path that may not exist yet: a comma in it is a part of it."""
OPEN = ("recipe.trained_with.", "model.config.")
"""Beginnings of keys that a YAML needn't have."""
NO_CONFIG = (
    "model.config.NAME=VALUE, or model.config={NAME: VALUE}, sets the size of a model whose "
    "weights are random, such as model=random-lra"
)


def parse(overrides: Sequence[str]) -> list[Any]:
    """Hydra's own reading of overrides. Raises RequestError."""
    return [_parsed(override) for override in overrides]


def _parsed(override: str) -> Any:
    """A value that Hydra's grammar can't read, such as ~/ä, and a path that is one or exists, such
    as /a,b, are taken as they are written."""
    from hydra.errors import HydraException

    key, given, value = override.partition("=")
    is_path = key in PATHS and value != "" and os.path.exists(os.path.expanduser(value))
    is_path |= key in ONE_PATH and "," in value and value[0] not in "'\""
    texts = [override, quoted(key, value)] if given else [override]
    for text in reversed(texts) if is_path else texts:
        with contextlib.suppress(HydraException):
            return _read(text)
    raise RequestError(f"can't read '{override}': a request is made of NAME=VALUE")


@functools.cache
def _read(override: str) -> Any:
    """Raises HydraException."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)


def quoted(key: str, value: str) -> str:
    """The override that sets a key to a text with any characters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return f"{key}={QuotedString(value, Quote.single).with_quotes()}"


def check_overrides(overrides: Sequence[str], methods: Sequence[str] | None = None) -> list[str]:
    """The overrides, with a checkpoint given as `model=` in the form that Hydra takes. `methods`
    are those of a request whose overrides name none: by default those of conf/config.yaml. Raises
    RequestError with the nearest name for a choice or a key that doesn't exist."""
    parsed = parse(as_parameters([kv_budget.as_parameter(override) for override in overrides]))
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


def hydra_overrides(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra takes them."""
    return [word for override in overrides for word in _hydra_words(override)]


def _hydra_words(override: str) -> list[str]:
    """An override as Hydra takes it: `task=NAME:MEMBER` is the YAML of NAME and what it leaves
    open, and a key that a YAML needn't have is added."""
    key, _, value = override.partition("=")
    if f"{key}.".startswith(OPEN):
        return [f"++{override}"]
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
    content = plugins.conf("experiment", name)
    if (value := content.get(kv_budget.NAME)) is not None:
        raise RequestError(
            f"experiment={name}: budget={value} is not accepted: {kv_budget.ACCEPTED}"
        )
    for entry in content.get("defaults", []):
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
            raise unknown("name", head, {*schema.NAMES, *GROUPS})
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


# Short names of parameters: `press=NAME`, `press.compression_ratio=0.5` and `press.window_size=8`
# of method=kvpress; `attn=NAME` and `attn.module=PACKAGE` of method=hf.

PARAMETERS = {
    "press": "press",
    "press.compression_ratio": "compression_ratio",
    "attn": "attn",
    "attn.module": "module",
}
"""Short name → the method's parameter."""
OPTIONS = "press."
"""Other names that begin so are arguments of a press, which are in the parameter `options`."""


def as_parameters(overrides: Sequence[str]) -> list[str]:
    """The overrides with the method's parameters under their own names. Raises RequestError."""
    others, options = [], []
    for override in overrides:
        key, equals, value = override.partition("=")
        if key in PARAMETERS:
            others.append(f"method.{PARAMETERS[key]}{equals}{value}")
        elif key.startswith(OPTIONS):
            options.append(f"{key.removeprefix(OPTIONS)}={value}")
        elif key.startswith("attn."):
            raise unknown("name", key, PARAMETERS)
        else:
            others.append(override)
    return [*others, *([f"method.options='{', '.join(options)}'"] if options else [])]


# What other harnesses, lm-eval before all, call the names of a request.

OTHER_NAMES = {
    "tasks": "task", "limit": "n", "num_samples": "n", "models": "model", "model_args": "model",
    "model_name_or_path": "model", "pretrained": "model", "methods": "method",
    "batch_size": "batch", "max_length": "length", "max_seq_length": "length",
    "output_path": "results", "output_dir": "results", "num_threads": "threads",
    "data_dir": "data.dir", "split": "data.split", "torch_dtype": "dtype",
}  # fmt: skip
"""Name elsewhere → name here."""


def our_name(given: str) -> str | None:
    """The name of a request that a word such as `--tasks`, `limit` or `--data-dir` stands for."""
    name = given.lstrip("-").partition("=")[0].replace("-", "_")
    own = name if name in NAMES else None
    return OTHER_NAMES.get(name, own)


def not_a_word(given: str) -> RequestError:
    """The error for an argument of a request that isn't NAME=VALUE with a name of ours."""
    name = our_name(given)
    accepted = f"write {name}=…" if name else "a request is made of NAME=VALUE"
    return RequestError(f"can't read '{given}': {accepted}; see bench run --help")
