"""The commands about methods, tasks, models and this machine: bench fetch | check | new | score |
export | host."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.cli import scaffold
from bench.errors import RequestError, RunError
from bench.files import check_own, record_own
from bench.request import plugins
from bench.request.cell import task_of
from bench.terminal import text_table
from bench.terminal.arguments import add_json, parser_for
from tasks.base import Data, DataError, FetchError, Task

TOKENIZER = "bench/models/embedded/t5"
"""What tasks are checked with."""


def fetch(arguments: Sequence[str]) -> int:
    """The only command that touches the network."""
    parser = parser_for("fetch", "get a task's data or a model from the hub")
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--split", help="another split than the one that is scored")
    parser.add_argument("--model", action="append", default=[], metavar="NAME or ORG/NAME")
    parser.add_argument("--probe", action="store_true", help="fetch nothing: ask what the hub has")
    parser.add_argument("--revision", help="a commit or branch of the hub, in place of the task's")
    parser.add_argument("--length", type=int, help="in tokens, for files that are named after it")
    options = parser.parse_args(arguments)
    if not (options.tasks or options.model or options.probe):
        raise RequestError("fetch needs a TASK or --model ORG/NAME; bench ls tasks lists tasks")
    names = options.tasks or (plugins.available("task") if options.probe else [])
    tasks = [_at(_task(name), options) for name in names]
    if options.probe:
        from tasks.loading.hub_probe import probe, table

        checks = [hub_check for task in tasks for hub_check in probe(task)]
        print(table(checks))
        return int(any(hub_check.problem for hub_check in checks))
    from tasks.loading import hub

    for task in tasks:
        own = getattr(task, "fetch", None) or functools.partial(hub.fetch, task)
        print(f"{task.name}: {_data(own, split=options.split)}")
    for name in options.model:
        print(f"{name}: {_fetch_model(name)}")
    return 0


def _at(task: Any, options: Any) -> Any:
    """The task with the revision and length that `bench fetch` was given."""
    if options.revision and getattr(task, "hub", None):
        task = replace(task, hub={**task.hub, "revision": options.revision, "unverified": False})
    return replace(task, length=options.length) if options.length else task


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


def check(arguments: Sequence[str]) -> int:
    """Exit code 1 when the contract is broken somewhere."""
    parser = parser_for(
        "check",
        "does a method or a task keep its contract?",
        "bench check task=qmsum\nbench check task=all\n"
        "bench check task=qmsum data=local data.dir=/data\nbench check method=vcc method.k=8",
    )
    parser.add_argument("words", nargs="+", metavar="method=NAME|task=NAME")
    add_json(parser)
    given = parser.parse_args(arguments)
    words, is_json = given.words, text_table.tabular(given.format)
    if not words[0].startswith("task="):
        from bench.conformance.__main__ import FamilyCheck, checked, main

        if not is_json:
            return main(words)
        checks = [each._asdict() for each in checked(words)]
        text_table.write(given.format, FamilyCheck._fields, checks)
        return int(any(each["failures"] for each in checks))
    if words == ["task=all"]:
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
        text_table.write(given.format, list(records[0]), records)
    return int(any(record["failures"] for record in records))


def new(arguments: Sequence[str]) -> int:
    """Writes files; refuses to overwrite one."""
    parser = parser_for(
        "new",
        "write the files of a new method (code, YAML and a test) or task, to change from there",
        "bench new method sliding_window\nbench new task minutes --shape summaries\n"
        "BENCH_CONF_PATH=DIR bench new task quiz --shape prompts    # into DIR, not the checkout",
    )
    parser.add_argument("kind", choices=("method", "task"))
    parser.add_argument("name")
    from tasks.template import DEFAULT_SHAPE, SHAPES, task_files

    shapes = ", ".join(SHAPES)
    parser.add_argument(
        "--shape", default=DEFAULT_SHAPE, help=f"of a task's rows: {shapes} ({DEFAULT_SHAPE})"
    )
    options = parser.parse_args(arguments)
    try:
        is_method = options.kind == "method"
        name = options.name
        files = scaffold.new_method(name) if is_method else task_files(name, options.shape)
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
    print(f"Read {options.kind}s/base.py; then: bench check {options.kind}={name}", file=sys.stderr)
    return 0


def score(arguments: Sequence[str]) -> int:
    """Official figures of anyone's predictions."""
    parser = parser_for(
        "score",
        "score a file of predictions, .jsonl, .json, .csv or .parquet, in the layouts that "
        "docs/tasks.md lists: with ids of rows, or with right answers, which needs no data",
        "bench score qmsum predictions.jsonl --data-dir /data\nbench score qmsum pairs.jsonl",
    )
    parser.add_argument("task")
    parser.add_argument("file", type=Path)
    parser.add_argument(
        "--skip-unanswerable", action="store_true", help="leave out rows without a right answer"
    )
    add_json(parser)
    options = _submission_options(parser, arguments)
    from bench.statistics import scores
    from bench.store.scoring import documents, scored
    from tasks.loading import submission

    task = options.task
    skip = options.skip_unanswerable
    given, references, rows, n_unanswerable = _data(
        submission.paired, task, options.source, options.file, skip_unanswerable=skip
    )
    figures, each = scored(task, given, references)
    estimate = scores.mean(each, documents(rows) if rows else None)
    interval = {"standard_error": estimate.stderr, "ci_lo": estimate.lo, "ci_hi": estimate.hi}
    counts = {"n_scored": len(each)} | ({"n_unanswerable": n_unanswerable} if skip else {})
    _facts({**figures, **interval, **counts}, options.format)
    return 0


def export_predictions(arguments: Sequence[str]) -> int:
    """The official submission file, checked by the official rules."""
    parser = parser_for(
        "export",
        "write a task's predictions into the official submission file; or: bench export rows",
        "bench export qmsum predictions.jsonl submission.csv --data hub --split test",
    )
    parser.add_argument("task")
    parser.add_argument("file", type=Path)
    parser.add_argument("into", type=Path, help=".csv (all tasks of a benchmark) or .json")
    options = _submission_options(parser, arguments)
    from tasks.loading import submission

    task = options.task
    predictions = _data(submission.read_predictions, options.file, task)
    ids = _data(task.ids, options.source)
    if is_json := options.into.suffix == ".json":  # a .csv keeps the tasks that it holds
        check_own(options.into)
    missing = _data(submission.export, task, predictions, ids, options.into)
    if is_json:
        record_own(options.into)
    print(f"{options.into}: {len(predictions)} predictions of {task.name}")
    if missing:
        print(f"still missing: {', '.join(missing)}")
    return 0


def host(arguments: Sequence[str]) -> int:
    """Fingerprint and certificate."""
    parser = parser_for("host", "this machine, and the smallest effect it can resolve")
    add_json(parser)
    form = parser.parse_args(arguments).format
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


def _submission_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Any:
    """The parsed arguments, with `task` built and `source` the data that was asked for."""
    parser.add_argument("--data", choices=("embedded", "local", "hub"))
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="a local folder of the data")
    parser.add_argument("--split")
    options = parser.parse_args(arguments)
    name = options.task
    options.task = _task(name, options.data_dir)
    options.source = _source(options.data, options.data_dir, options.split, name)
    return options


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
