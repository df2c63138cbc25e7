"""The commands about methods, tasks, models and this machine: bench fetch | check | new | score |
export | host."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench.cli import scaffold
from bench.errors import RequestError, RunError
from bench.files import check_own, record_own
from bench.request import plugins
from bench.request.cell import task_of
from bench.request.schema import SOURCES
from bench.terminal import text_table
from bench.terminal.options import PATH, OneOf, command, format_option, request_words
from tasks.base import Data, DataError, FetchError, Task
from tasks.template import DEFAULT_SHAPE, SHAPES, task_files

TOKENIZER = "bench/models/embedded/t5"
"""What tasks are checked with."""


@command("Get a task's data or a model from the hub.")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--split", help="Another split than the one that is scored.")
@click.option("--model", "models", multiple=True, metavar="NAME or ORG/NAME")
@click.option("--probe", is_flag=True, help="Fetch nothing: ask what the hub has.")
@click.option("--revision", help="A commit or branch of the hub, in place of the task's.")
@click.option("--length", type=int, help="In tokens, for files that are named after it.")
def fetch(
    tasks: Sequence[str], split: str | None, models: Sequence[str], probe: bool,
    revision: str | None, length: int | None
) -> int:  # fmt: skip
    """The only command that touches the network."""
    if not (tasks or models or probe):
        raise RequestError("fetch needs a TASK or --model ORG/NAME; bench ls tasks lists tasks")
    names = tasks or (plugins.available("task") if probe else [])
    chosen = [_at(_task(name), revision, length) for name in names]
    if probe:
        from tasks.loading import hub_probe

        checks = [hub_check for task in chosen for hub_check in hub_probe.probe(task)]
        print(hub_probe.table(checks))
        return int(any(hub_check.problem for hub_check in checks))
    from tasks.loading import hub

    for task in chosen:
        own = getattr(task, "fetch", None) or functools.partial(hub.fetch, task)
        print(f"{task.name}: {_data(own, split=split)}")
    for name in models:
        print(f"{name}: {_fetch_model(name)}")
    return 0


def _at(task: Any, revision: str | None, length: int | None) -> Any:
    """The task with the revision and length that `bench fetch` was given."""
    if revision and getattr(task, "hub", None):
        task = replace(task, hub={**task.hub, "revision": revision, "unverified": False})
    return replace(task, length=length) if length else task


def _fetch_model(name: str) -> str:
    from huggingface_hub import snapshot_download

    from tasks.loading.hub import is_missing
    from tasks.loading.sources import first_line

    repo = plugins.conf("model", name)["path"] if name in plugins.available("model") else name
    try:
        return snapshot_download(
            repo, allow_patterns=["*.json", "*.safetensors", "*.model", "*.txt"]
        )
    except Exception as error:  # the library lets errors of its HTTP client through
        kind = RequestError if is_missing(error) else RunError
        raise kind(f"can't fetch {repo}: {first_line(error)}") from error


@command(
    "Does a method or a task keep its contract?",
    "bench check task=qmsum\nbench check task=all\n"
    "bench check task=qmsum data=local data.dir=/data\nbench check method=vcc method.k=8",
)
@request_words("method=NAME|task=NAME", required=True)
@format_option(default="table")
def check(words: Sequence[str], form: str) -> int:
    """Exit code 1 when the contract is broken somewhere."""
    is_json = text_table.tabular(form)
    if not words[0].startswith("task="):
        from bench.conformance.__main__ import FamilyCheck, checked, main

        if not is_json:
            return main(list(words))
        checks = [each._asdict() for each in checked(words)]
        text_table.write(form, FamilyCheck._fields, checks)
        return int(any(each["failures"] for each in checks))
    if list(words) == ["task=all"]:
        words = [f"task={name}" for name in plugins.available("task")]
    options = [word.partition("=")[::2] for word in words]
    accepted = ("task", "data", "data.dir", "data.split")
    if stray := [word for word in words if word.partition("=")[0] not in accepted]:
        raise RequestError(f"can't read '{stray[0]}'; accepted: {'=…, '.join(accepted)}=…")
    source = dict(options)
    folder = source.get("data.dir")
    from transformers import AutoTokenizer

    from tasks.check import check as check_task

    records = []
    tokenizer = AutoTokenizer.from_pretrained(plugins.ROOT / TOKENIZER)
    for name in (value for option, value in options if option == "task"):
        data = _source(source.get("data"), folder, source.get("data.split"), name)
        report = check_task(_task(name, folder), tokenizer, data)
        records.append({"task": name, **vars(report)})
        if is_json:
            continue
        not_checked = [f"not checked: {missing}" for missing in report.not_checked]
        for line in (*report.failures, *not_checked):
            print(f"task={name}: {line}")
        n = len(report.failures)
        verdict = f"{n} failures" if n else "keeps its contract"
        if report.load_s is not None:
            verdict += f" (embedded rows loaded in {report.load_s:.1f} s)"
        print(f"task={name}: {verdict}")
    if is_json:
        text_table.write(form, list(records[0]), records)
    return int(any(record["failures"] for record in records))


@command(
    "Write the files of a new method (code, YAML and a test) or task, to change from there.",
    "bench new method sliding_window\nbench new task minutes --shape summaries\n"
    "BENCH_CONF_PATH=DIR bench new task quiz --shape prompts    # into DIR, not the checkout",
)
@click.argument("kind", type=OneOf(["method", "task"]), metavar="KIND")
@click.argument("name")
@click.option("--shape", type=OneOf([*SHAPES]), default=DEFAULT_SHAPE,
              help=f"Of a task's rows ({DEFAULT_SHAPE}).")  # fmt: skip
def new(kind: str, name: str, shape: str) -> int:
    try:
        is_method = kind == "method"
        files = scaffold.new_method(name) if is_method else task_files(name, shape)
    except ValueError as error:
        raise RequestError(str(error)) from error
    root, own = plugins.ROOT, os.environ.get(plugins.CONF_PATH, "").split(os.pathsep)[0]
    if own or not plugins.IS_CHECKOUT:
        root, files = Path.cwd(), scaffold.as_modules(files, name, own or "conf")
        conf = own or "$PWD/conf"
        print(f"They are found with PYTHONPATH=$PWD BENCH_CONF_PATH={conf}", file=sys.stderr)
    for path in files:
        if (root / path).exists():
            raise RequestError(f"{path} is there already")
    try:
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            print(path)
    except OSError as error:
        raise RequestError(f"can't write {root / path}: {error.strerror}") from error
    print(f"Read {kind}s/base.py; then: bench check {kind}={name}", file=sys.stderr)
    return 0


def _submission_options(function: Any) -> Any:
    source = click.option("--data", type=OneOf(SOURCES))
    folder = click.option(
        "--data-dir", type=PATH, metavar="DIR", help="A local folder of the data."
    )
    return source(folder(click.option("--split")(function)))


@command(
    "Score a file of predictions, .jsonl, .json, .csv or .parquet, in the layouts that "
    "docs/tasks.md lists: with ids of rows, or with right answers, which needs no data.",
    "bench score qmsum predictions.jsonl --data-dir /data\nbench score qmsum pairs.jsonl",
)
@click.argument("name", metavar="TASK")
@click.argument("file", type=PATH)
@click.option("--skip-unanswerable", is_flag=True, help="Leave out rows without a right answer.")
@_submission_options
@format_option(default="table")
def score(
    name: str, file: Path, skip_unanswerable: bool, data: str | None, data_dir: Path | None,
    split: str | None, form: str
) -> int:  # fmt: skip
    from bench.rows.scoring import documents, scored
    from bench.statistics import scores
    from tasks.loading import submission

    task, skip = _task(name, data_dir), skip_unanswerable
    source = _source(data, data_dir, split, name)
    given, references, rows, n_unanswerable = _data(
        submission.paired, task, source, file, skip_unanswerable=skip
    )
    figures, each = scored(task, given, references)
    estimate = scores.mean(each, documents(rows) if rows else None)
    interval = {"standard_error": estimate.stderr, "ci_lo": estimate.lo, "ci_hi": estimate.hi}
    counts = {"n_scored": len(each)} | ({"n_unanswerable": n_unanswerable} if skip else {})
    _facts({**figures, **interval, **counts}, form)
    return 0


@command(
    "Write a task's predictions into the official submission file, .csv (all tasks of a benchmark) "
    "or .json; rows are exported by bench export rows.",
    "bench export qmsum predictions.jsonl submission.csv --data hub --split test",
)
@click.argument("name", metavar="TASK")
@click.argument("file", type=PATH)
@click.argument("into", type=PATH)
@_submission_options
def export(
    name: str, file: Path, into: Path, data: str | None, data_dir: Path | None, split: str | None
) -> int:
    from tasks.loading import submission

    task: Any = _task(name, data_dir)
    predictions = _data(submission.read_predictions, file, task)
    ids = _data(task.ids, _source(data, data_dir, split, name))
    if is_json := into.suffix == ".json":  # a .csv keeps the tasks that it holds
        check_own(into)
    missing = _data(submission.export, task, predictions, ids, into)
    if is_json:
        record_own(into)
    print(f"{into}: {len(predictions)} predictions of {task.name}")
    if missing:
        print(f"still missing: {', '.join(missing)}")
    return 0


@command("This machine, and the smallest effect it can resolve.")
@format_option(default="table")
def host(form: str) -> int:
    from bench.execution.supervisor import supervise
    from bench.host import host as machine

    print("measuring what this machine can resolve …", file=sys.stderr)
    torch = supervise("bench.host.torch_host", {}, deadline_s=120)
    facts = machine.fingerprint(len(os.sched_getaffinity(0)), "cpu") | torch.result
    certificate = machine.certificate()
    _facts(facts | certificate, form)
    if text_table.tabular(form):
        return 0
    found = certificate["detectable_pct"]
    smallest = f"a slow-down of {found:.1f} % and more" if found else "no slow-down here"
    print(f"\n{certificate['pairs']} pairs of short calls on one thread show {smallest}.")
    return 0


def _facts(facts: Mapping[str, Any], form: str) -> None:
    """One line for each fact; for a program one record."""
    if text_table.tabular(form):
        text_table.write(form, list(facts), [facts])
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}} {_readable(name, value)}")


def _readable(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name.endswith("_bytes"):
        return f"{value / (1 << 30):.1f} GiB"
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _task(name: str, folder: str | Path | None = None) -> Task:
    """The task of this name, with what it takes of a request's data."""
    conf = plugins.conf("task", name)
    if folder and "include_path" in conf:
        conf["include_path"] = str(folder)
    if "tokenizer" in conf:
        conf["tokenizer"] = TOKENIZER
    return task_of(conf)


def _source(data: str | None, folder: str | Path | None, split: str | None, name: str = "") -> Data:
    """Of a task of another package the hub's, as it has no embedded rows."""
    path = Path(folder).expanduser().resolve() if folder else None
    return Data(data or ("local" if path else "hub" if ":" in name else "embedded"), path, split)


def _data(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The function's answer; what is wrong with data is a wrong request."""
    try:
        return function(*given, **named)
    except FetchError as error:
        raise RunError(str(error)) from error
    except DataError as error:
        raise RequestError(str(error)) from error
