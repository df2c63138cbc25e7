"""Finds and loads tasks of the optional package lm_eval (lm-evaluation-harness) by name.

Its YAMLs are searched for a name as text, since the package's index takes ten times as long. Only
`online` loads use the network.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import importlib.util
import io
import json
import logging
import random
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.base import DataError, FetchError
from tasks.loading.sources import first_line

PACKAGE, EXTRA = "lm_eval", "lm-eval"
PREFIX = "lm_eval:"
"""Before the name of one of its tasks, in a request."""
MODEL = "longctx-bench"
"""What a method is called as a model of lm_eval."""
NEW_TOKENS = 256
"""lm_eval's limit for a task that gives none."""
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names of the limit in a task's generation_kwargs; the first one counts."""
SEEDS = {"python": 0, "numpy": 1234, "few-shot": 1234}
"""Those of `lm_eval run` where it is given none."""
_DECLARED = re.compile(rb"^(?:task|group):[ \t]*[\"']?([^\"'\s#\[{]+)", re.MULTILINE)


def missing() -> str:
    """One line with the missing package and how to install it; "" if it is installed."""
    if importlib.util.find_spec(PACKAGE):
        return ""
    return (
        f"lm-evaluation-harness is not installed: pip install 'longctx-bench[{EXTRA}]', in a "
        f"checkout: pip install -e '.[{EXTRA}]'"
    )


def version() -> tuple[int, ...]:
    """The package's version, such as (0, 4, 13); () if it isn't installed."""
    try:
        return tuple(map(int, re.findall(r"\d+", importlib.metadata.version(PACKAGE))[:3]))
    except importlib.metadata.PackageNotFoundError:
        return ()


@dataclass(frozen=True)
class Origin:
    """The settings that determine a loaded task of lm_eval: its name, a folder of YAMLs in addition
    to the package's, the number of examples before a question (None: the task's own), and for tasks
    that generate their rows a tokenizer and the length in tokens."""

    name: str
    folder: str | None = None
    num_fewshot: int | None = None
    tokenizer: str | None = None
    length: int = 0


@functools.cache
def config_of(name: str, folder: str | None) -> Mapping[str, Any]:
    """The YAML of a task with its includes; `path` is its file. Functions are given by name. Raises
    DataError for an unknown name, with the nearest one."""
    if problem := missing():
        raise DataError(f"{PREFIX}{name}: {problem}")
    from lm_eval.tasks._yaml_loader import load_yaml

    for path in _files(name, folder):
        try:
            config: dict[str, Any] = load_yaml(path, resolve_func=False)
        except Exception as error:  # the loader may raise any exception for a YAML
            raise DataError(f"{path}: {first_line(error)}") from None
        if name in (config.get("task"), config.get("group")):
            return {**config, "path": str(path)}
    names = {found for root in _roots(folder) for found in _index(root)}
    near = difflib.get_close_matches(name, names, 1, 0.5)
    hint = f" Did you mean {PREFIX}{near[0]}?" if near else ""
    raise DataError(
        f"unknown task '{PREFIX}{name}'.{hint} `bench lm_eval ls tasks` lists all"
        + (f"; the YAMLs in {folder} were read, too" if folder else "")
    )


def load(origin: Origin, online: bool = False) -> Any:
    """The task of lm_eval with its documents. Raises DataError for a task that doesn't exist, has
    no data here, or doesn't ask for a generated answer."""
    return _loaded(origin, online)


@functools.lru_cache(maxsize=8)
def _loaded(origin: Origin, online: bool) -> Any:
    config = config_of(origin.name, origin.folder)
    if reason := refusal(config):
        raise DataError(f"{PREFIX}{origin.name} {reason}")
    from lm_eval.tasks import TaskManager

    metadata = {"max_seq_lengths": [origin.length], "tokenizer": _tokenizer(origin.tokenizer)}
    own = "custom_dataset" in config
    if own and not origin.tokenizer:
        raise DataError(
            f"{PREFIX}{origin.name} generates its rows for a tokenizer: task.tokenizer=FOLDER"
        )
    manager = TaskManager(include_defaults=False, metadata=metadata if own else None)
    try:
        with quiet(), _seeded(), contextlib.nullcontext() if online else _offline():
            (task,) = manager.load(config["path"])["tasks"].values()
    except ModuleNotFoundError as error:
        needs = f"needs the package {error.name}: pip install {error.name}"
        raise DataError(f"{PREFIX}{origin.name} {needs}") from None
    except Exception as error:  # from the loader of its data, or the task's code
        about = f"{PREFIX}{origin.name}: can't load its data: {first_line(error)}"
        path = str(config.get("dataset_path") or "")
        got = f"; `bench fetch {PREFIX}{origin.name}` gets {path} from the hub" if path else ""
        if online:
            raise FetchError(about) from None
        raise DataError(about + ("" if Path(path).exists() else got)) from None
    own_shots = task.get_config("num_fewshot")
    if origin.num_fewshot and own_shots == 0:
        raise DataError(
            f"{PREFIX}{origin.name} takes no examples: its YAML has num_fewshot: 0; given: "
            f"task.num_fewshot={origin.num_fewshot}"
        )
    if origin.num_fewshot is not None or own_shots is None:
        task.set_config("num_fewshot", origin.num_fewshot or 0)
    return task


def requests(task: Any, n: int | None) -> list[Any]:
    """lm_eval's requests for the first n documents of a loaded task (None: all), the same in each
    call."""
    task.set_fewshot_seed(SEEDS["few-shot"])
    with quiet():
        task.build_all_requests(limit=n, rank=0, world_size=1)
    return list(task.instances)


def refusal(config: Mapping[str, Any]) -> str:
    """The reason why a task isn't supported, as text to follow its name; "" if it is supported."""
    name, kind = config.get("task"), config.get("output_type", "generate_until")
    elsewhere = (
        f"bench lm_eval run --model {MODEL} --model_args pretrained=MODEL,method=METHOD "
        f"--tasks {config.get('group', name)} scores it"
    )
    if "group" in config:
        members = [one if isinstance(one, str) else one.get("task", "…")
                   for one in config.get("task") or ()]  # fmt: skip
        shown = ", ".join(map(str, members[:8])) + (", …" if len(members) > 8 else "")
        return f"is a group of tasks: choose one of {shown}; {elsewhere}"
    if "class" in config:
        return f"is a Python class of its own; {elsewhere}"
    if kind != "generate_until":
        return f"scores the likelihood of given texts ({kind}), not a generated answer; {elsewhere}"
    if config.get("unsafe_code"):
        return "runs code that the model writes, which nothing here does"
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        return "asks about images or sound; the models here read text"
    options = config.get("generation_kwargs") or {}
    if options.get("do_sample") and float(options.get("temperature") or 0):
        return "samples its answers; here the likeliest token is taken"
    if int(config.get("repeats") or 1) != 1:
        return f"asks each question {config['repeats']} times; here it is asked once"
    return ""


def new_tokens(options: Mapping[str, Any]) -> int:
    """The limit in a task's generation_kwargs."""
    return int(next((options[name] for name in LIMITS if options.get(name)), NEW_TOKENS))


def until(config: Mapping[str, Any]) -> Sequence[str]:
    """The stop strings in a task's generation_kwargs; without any, the delimiter of its
    examples."""
    given = (config.get("generation_kwargs") or {}).get("until")
    if given is None:
        given = config.get("fewshot_delimiter", "\n\n")
    return [given] if isinstance(given, str) else given


def digest_of(task: Any, prompt: str) -> dict[str, Any]:
    """The data that identify the rows of a loaded task: its documents and settings, the first
    prompt and the version of the package."""
    settings = {key: value for key, value in task.dump_config().items() if key != "metadata"}
    return {"version": version(), "prompt": prompt, "settings": settings,
            "documents": list(task.eval_docs)}  # fmt: skip


def as_json(content: Any) -> str:
    return json.dumps(content, sort_keys=True, default=str)


# --- files --------------------------------------------------------------------------------------


def _files(name: str, folder: str | None) -> Iterator[Path]:
    """YAMLs that may declare this name, the likeliest first; those of `folder` come before all
    others."""
    for root in _roots(folder):
        yield from sorted(root.rglob(f"{name}.yaml")) if re.fullmatch(r"[\w.-]+", name) else ()
        yield from _index(root).get(name, ())


def _roots(folder: str | None) -> list[Path]:
    given = [Path(folder).expanduser()] if folder else []
    spec = importlib.util.find_spec(PACKAGE)
    own = [Path(spec.origin).parent / "tasks"] if spec and spec.origin else []
    return [*given, *own]


@functools.cache
def _index(root: Path) -> Mapping[str, Sequence[Path]]:
    """The files below a folder that declare each task and group, by name."""
    found: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.yaml")):
        for name in _DECLARED.findall(path.read_bytes()):
            found.setdefault(name.decode(errors="replace"), []).append(path)
    return found


def _tokenizer(given: str | None) -> str | None:
    """The tokenizer: a folder as given or within the project, or a hub id. Raises DataError for one
    with code."""
    if not given:
        return None
    places = (Path(given).expanduser(), Path(__file__).parents[2] / given)
    folder = next((path for path in places if path.is_dir()), None)
    config = folder / "tokenizer_config.json" if folder else None
    if config and config.is_file() and "auto_map" in json.loads(config.read_text()):
        raise DataError(f"{folder}: its tokenizer comes with code of its own, which nothing runs")
    return str(folder or given)


# --- how it is run ------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Context without log lines and progress bars."""
    logger = logging.getLogger(PACKAGE)
    level, said = logger.level, io.StringIO()
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Context in which generated rows equal those of `lm_eval run` with its default seeds."""
    import numpy as np

    states = random.getstate(), np.random.get_state()
    random.seed(SEEDS["python"])
    np.random.seed(SEEDS["numpy"])
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Context in which only caches are read: no library and no code of a task uses the network."""
    import datasets
    import huggingface_hub.constants as hub

    def refuse(self: socket.socket, address: Any) -> None:
        raise OSError(f"only `bench fetch` uses the network; asked for {address}")

    switches = [(hub, "HF_HUB_OFFLINE"), (datasets.config, "HF_HUB_OFFLINE")]
    before = [getattr(module, name) for module, name in switches]
    connect, socket.socket.connect = socket.socket.connect, refuse  # type: ignore[method-assign,assignment]
    for module, name in switches:
        setattr(module, name, True)
    try:
        yield
    finally:
        socket.socket.connect = connect  # type: ignore[method-assign]
        for (module, name), value in zip(switches, before, strict=True):
            setattr(module, name, value)
