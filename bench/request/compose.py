"""Makes a composed request from overrides such as 'method=vcc', with helpful errors; and the
command from a cell."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints
from warnings import catch_warnings, filterwarnings

from bench.errors import RequestError, unknown
from bench.files import digest, keep, read_kept
from bench.models import auto
from bench.request import parameters, plugins, schema, weights
from bench.request.cell import Cell, task_of
from bench.request.overrides import (
    BUDGET,
    NO_CONFIG,
    ONE_PATH,
    PATHS,
    as_parameters,
    check_overrides,
    hydra_overrides,
    parse,
    quoted,
)
from methods.parts.parameters import described

RESOLVED = ("by_task", "default_task", "adapted_with", "longest", "licence", "package")
"""Keys of a model that `resolve` applies and removes."""
NUMBERS = ("length", "n", "batch", "threads", "seed", "new_tokens", "turns", "deadline_s")


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """The request that Hydra composes from overrides: bench.request.schema.Config as a plain dict.
    Hydra takes half a second, so the composition without plain values is cached, and these are put
    into it. Raises RequestError, also for an experiment that is a sweep."""
    plain, words = _without_plain(overrides)
    request = _cached("request", words, lambda: _single(words))
    return resolve({**request, **plain}, overrides)


def kept_or_composed(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `compose_with_hydra`, whose results are cached without plain values."""
    plain, words = _without_plain(overrides)
    request, hydra = _cached("grid", words, lambda: list(compose_with_hydra(words)))
    return {**request, **plain}, hydra


def _single(words: Sequence[str]) -> dict[str, Any]:
    """The unresolved request of one cell. Raises RequestError."""
    checked = check_overrides(words)
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


def _cached(kind: str, words: Sequence[str], make: Callable[[], Any]) -> Any:
    """The value of `make`, which depends on these arguments and on the configuration."""
    ingredients = _ingredients(words)
    if ingredients and (kept := read_kept(kind, ingredients)):
        return kept
    made = make()
    if ingredients:
        keep(kind, ingredients, made)
    return made


def _without_plain(overrides: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Key → value of the overrides that set an integer or a folder on which no other part of a
    request depends; and the other overrides."""
    plain: dict[str, Any] = {}
    others = set()
    for key, _, value in (override.partition("=") for override in overrides):
        if key in NUMBERS and re.fullmatch("0|[1-9][0-9]{0,17}", value):
            plain[key] = int(value)
        elif key == "results" and re.fullmatch(r"[\w.-]*(/[\w.-]*)+", value, re.ASCII):
            plain[key] = value
        else:
            others.add(key)
    plain = {key: value for key, value in plain.items() if key not in others}
    return plain, [each for each in overrides if each.partition("=")[0] not in plain]


def _ingredients(overrides: Sequence[str]) -> list[str]:
    """Everything from which a request is composed: its arguments, the YAML files, Hydra and this
    code. Empty if an argument names a file or folder, since its content is read, or a launcher,
    whose settings are a package's."""
    for key, _, value in (override.partition("=") for override in overrides):
        is_read = key in PATHS and key not in ONE_PATH
        if key == "launcher" or (
            is_read and (key != "model" or "/" in value or os.path.exists(value))
        ):
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
    return digest(b"\0".join(content))


def compose_with_hydra(overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The unresolved request of checked overrides, and Hydra's own settings: launcher, sweeper and
    the choices of groups. Raises RequestError."""
    import yaml
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

    ConfigStore.instance().store(name="bench_schema", node=schema.Config)
    GlobalHydra.instance().clear()
    words = hydra_overrides(overrides)
    try:
        with initialize_config_dir(str(plugins.CONF), version_base="1.3"), catch_warnings():
            # Hydra's launcher plugins, if they are installed, have schemas of these names.
            filterwarnings("ignore", r"\s*.*validated against ConfigStore", UserWarning)
            config = hydra_compose("config", overrides=words, return_hydra_config=True)
        hydra = {
            name: OmegaConf.to_container(config.hydra[name], resolve=True)
            for name in ("launcher", "sweeper", "runtime")
        }
        names = [str(key) for key in config if key != "hydra"]
        request = OmegaConf.masked_copy(config, names)
        content: Any = OmegaConf.to_container(request, resolve=True, throw_on_missing=True)
        return content, hydra
    except MissingMandatoryValue as error:
        key = str(error).split(": ")[-1].splitlines()[0]
        raise RequestError(f"a value is missing: {key}=…") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise RequestError(f"{getattr(mark, 'name', '')}{plugins.yaml_problem(error)}") from error
    except (AssertionError, AttributeError) as error:  # OmegaConf's, if a value isn't a mapping
        if not any(override.startswith("model.config") for override in overrides):
            raise
        raise RequestError(f"{NO_CONFIG}; this model has its checkpoint's size") from error
    except (HydraException, OmegaConfBaseException) as error:
        if wrong := re.match(r"Could not override '([^']+)'", str(error)):
            raise _unknown_key(wrong[1], overrides) from error
        key = str(getattr(error.__cause__, "full_key", None))
        given = next((o.partition("=")[2] for o in overrides if o.startswith(f"{key}=")), None)
        if given is not None and (hint := get_type_hints(schema.Config).get(key)):
            wanted = f"{key}={given} is not accepted: it takes {described(hint)}"
            raise RequestError(wanted) from error
        lines = [line.strip() for line in str(error).splitlines()
                 if line.strip() and line != "Config search path:"]  # fmt: skip
        cause = str(error.__cause__ or "").strip().splitlines()
        text = "; ".join([*lines[:2], *(line for line in cause[:1] if line not in lines)])
        raise RequestError(text) from error


def _unknown_key(key: str, overrides: Sequence[str]) -> RequestError:
    """The error for a dotted key that isn't in the request although its neighbours are."""
    others = [override for override in overrides if override.partition("=")[0] != key]
    node, _ = compose_with_hydra(others)
    *parents, name = key.split(".")
    for parent in parents:
        if not isinstance(node.get(parent), dict):
            return RequestError(f"unknown parameter '{key}': there is no {parent} to have it")
        node = node[parent]
    of = " ".join(dict.fromkeys((*parents, str(node.get("name", parents[-1])))))
    return unknown(f"parameter of {of}", name, node.keys() - {"name", "target"})


def resolve(request: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A composed request after all changes that depend on several of its parts: a model that
    replaces another on some tasks, the parameters with which a method's adapted weights were
    trained or a recipe trains it, the longest input of a model, an experiment's number of rows and
    parameters of methods for a task. Values from overrides stay as given. Raises RequestError."""
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
    own = plugins.undescribed(request["task"])
    for name, (part, key) in schema.FROM_REQUEST.items():
        if name in own and own[name] is None:
            own[name] = request[part].get(key)
    experiments = [each.partition("=")[2] for each in overrides if each.startswith("experiment=")]
    return {
        **{k: v for k, v in request.items() if k not in schema.BY_TASK},
        "n": n_by_task.get(task, request["n"]),
        "recipe": recipe,
        "model": {key: value for key, value in model.items() if key not in RESOLVED},
        "method": parameters.checked("method", method),
        "task": parameters.checked("task", own),
        "length": min(request["length"], longest) if longest else request["length"],
        "experiment": experiments[-1] if experiments else None,
    }


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
    """The model that replaces this one on a task. A model that the request changed is returned
    unchanged."""
    name = (model.get("by_task") or {}).get(task)
    written = plugins.conf("model", model["name"]) if name else {}
    if not name or any(model.get(key) != value for key, value in written.items()):
        return model
    return {"revision": None, "adapted": {}, "config": None, **plugins.conf("model", name)}


# The reverse: a cell's command, the shortest `bench run …` that composes to it on any machine.

DATA, MODEL = "DATA", "MODEL"
"""Names that replace the paths of data and of a checkpoint in a command."""
SAME_NAME = ("length", "n", "batch", "dtype", "seed", "new_tokens", "question", "turns", "fill",
             "probe", "skip_unanswerable")  # fmt: skip
"""Names of a request that are also names of fields of a cell."""
PLAIN = re.compile(r"[A-Za-z][\w.-]*")
"""Text that Hydra reads unquoted."""


def command_of(cell: Cell, deadline_s: float | None = None) -> str:
    """The shortest command that composes to the cell: it contains each value that differs from
    those that its method, task, model and recipe imply, and the threads, whose default depends on
    the machine. `deadline_s` belongs to the run, not the cell; it is left out if it is the default.

    Raises RequestError for a method, task, model or recipe that no longer exists."""
    words = [f"method={cell.method['name']}", f"task={cell.task['name']}"]
    if cell.recipe:
        words.append(f"recipe={cell.recipe['name']}")
    base = compose(words)
    name, path = cell.model["name"], cell.model.get("original_path", cell.model["path"])
    checkpoint = f"model={path}"
    if (name, path) != (base["model"]["name"], base["model"]["path"]):
        words.append(f"model={name}" if name in plugins.available("model") else checkpoint)
        base = compose(words)
    if cell.device["name"] != base["device"]["name"]:
        words.append(f"device={cell.device['name']}")
    # Both change the values that other arguments imply.
    changed = []
    if cell.protocol != weights.protocol_of(base):
        changed.append(f"protocol={cell.protocol}")
    if cell.measure != base["measure"]:
        changed.append(f"measure={cell.measure}")
    if changed:
        words += changed
        base = compose(words)
    source, split = cell.data["source"], cell.data["split"]
    if source != "embedded":
        words.append(f"data={source}")
    if source == "local":
        words.append(f"data.dir={DATA}")
    if split != (getattr(task_of(cell.task), "default_split", "") or split):
        words.append(f"data.split={split}")
    implied = {**base, "new_tokens": parameters.decoded_tokens(base)}
    words += [f"{name}={_text(value)}" for name in SAME_NAME
              if (value := getattr(cell, name)) != implied[name]]  # fmt: skip
    if cell.time_s is not None:
        words.append(f"time={cell.time_s:g}s")
    if cell.prompt != parameters.prompt_form(base, cell.model, task_of(cell.task)):
        words.append(f"prompt={cell.decoder}")
    words.append(f"threads={cell.threads}")
    words += _differing_words("method", cell.method, base["method"])
    words += _differing_words("task", cell.task, base["task"])
    config = weights.sized(base["model"], base["task"]).get("config")
    words += _differing_words("model.config", cell.model.get("config"), config)
    words += _differing_words("recipe", cell.recipe, base["recipe"])
    if deadline_s not in (None, base["deadline_s"]):
        words.append(f"deadline_s={deadline_s:g}")
    if checkpoint in words and Path(path).is_absolute():
        words[words.index(checkpoint)] = f"model={MODEL}"
    return shlex.join(["bench", "run", *words])


def _differing_words(
    part: str, values: Mapping[str, Any] | None, implied: Mapping[str, Any] | None
) -> Iterator[str]:
    """An argument for each value of a part of the request that differs from the implied one."""
    for name, value in (values or {}).items():
        is_implied = (implied or {}).get(name, ...) == value
        if is_implied or name in (*plugins.NOT_PARAMETERS, *schema.FROM_REQUEST):
            continue
        key = f"{part}.{name}"
        if plugins.is_part(value):
            yield f"{key}={_method_within(name, value)}"
        elif isinstance(value, str) and not PLAIN.fullmatch(value):
            yield quoted(key, value)
        else:
            word = f"{key}={_text(value)}"
            short = word.removeprefix("method.")
            is_budget = short.startswith(f"{BUDGET}=") and as_parameters([short]) == [word]
            yield short if is_budget else word


def _method_within(part: str, conf: Mapping[str, Any]) -> str:
    """The value of `method.prefill=` or `method.scorer=`: the method's name, with its parameters if
    some differ from its defaults."""
    defaults = parameters.resolved({part: conf["name"]})[part]
    differing = {name: value for name, value in conf.items() if defaults.get(name, ...) != value}
    if not differing:
        return str(conf["name"])
    given = {"name": conf["name"], **differing}
    return f"{{{','.join(f'{name}:{_text(value)}' for name, value in given.items())}}}"


def _text(value: Any) -> str:
    """A value in the form that Hydra's grammar reads."""
    return value if isinstance(value, str) else json.dumps(value)


def events_path(request: Mapping[str, Any]) -> Path | None:
    """The path of a request's `events`, the same for every process of a sweep."""
    return Path(request["events"]).expanduser().resolve() if request["events"] else None
