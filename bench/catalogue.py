"""The commands about methods, tasks, models and this machine: bench ls | fetch | check | new |
score | export | host."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import plugins
from bench.commands import parser_for
from bench.errors import RequestError, RunError, unknown
from bench.train_cli import train
from tasks.base import Data, DataError, FetchError


def ls(arguments: Sequence[str]) -> int:
    """Names and what their YAML says of them; tasks alone as a table, by benchmark."""
    from bench.config import GROUPS

    plurals = {group if group == "data" else f"{group}s": group for group in GROUPS}
    parser = parser_for("ls", "list methods, tasks and models, or one of: " + ", ".join(plurals))
    parser.add_argument("group", nargs="?")
    chosen = parser.parse_args(arguments).group
    if chosen and chosen not in plurals and chosen not in GROUPS:
        raise unknown("list", chosen, plurals)
    if chosen in ("task", "tasks"):
        from bench import task_table

        print(task_table.table(plugins.available("task")))
        return 0
    groups = [plurals.get(chosen, chosen)] if chosen else ["method", "task", "model"]
    for group in groups:
        choices = plugins.available(group)
        if len(groups) > 1:
            print(f"{group}:")
        width = max(map(len, choices), default=0)
        for name, path in choices.items():
            print(f"  {name:<{width}}  {plugins.about(path).partition('. ')[0].rstrip('.')}")
    return 0


def fetch(arguments: Sequence[str]) -> int:
    """The only command that touches the network."""
    parser = parser_for("fetch", "get a task's data or a model from the hub")
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--split", help="another split than the one that is scored")
    parser.add_argument("--model", action="append", default=[], metavar="NAME or ORG/NAME")
    parser.add_argument("--probe", action="store_true", help="fetch nothing: ask what the hub has")
    options = parser.parse_args(arguments)
    if not options.tasks and not options.model and not options.probe:
        raise RequestError("fetch needs a TASK or --model ORG/NAME; bench ls tasks lists tasks")
    names = options.tasks or (plugins.available("task") if options.probe else [])
    tasks = [plugins.build(plugins.conf("task", name)) for name in names]
    if options.probe:
        from tasks.probe import probe, table

        findings = [finding for task in tasks for finding in probe(task)]
        print(table(findings))
        return 1 if any(finding.problem for finding in findings) else 0
    for task in tasks:
        from tasks import sources

        print(f"{task.name}: {_data(sources.fetch, task, split=options.split)}")
    for name in options.model:
        print(f"{name}: {_fetch_model(name)}")
    return 0


def _fetch_model(name: str) -> str:
    from huggingface_hub import snapshot_download

    from tasks import sources

    known = plugins.available("model")
    repo = plugins.conf("model", name)["path"] if name in known else name
    wanted = ["*.json", "*.safetensors", "*.model", "*.txt"]
    try:
        return str(snapshot_download(repo, allow_patterns=wanted))
    except Exception as error:  # the library lets errors of its HTTP client through
        kind = RequestError if sources.not_there(error) else RunError
        raise kind(f"can't fetch {repo}: {sources.first_line(error)}") from error


def check(arguments: Sequence[str]) -> int:
    """Exit code 1 when the contract is broken somewhere."""
    parser = parser_for(
        "check",
        "does a method or a task keep its contract?",
        "bench check task=qmsum\nbench check task=all\nbench check method=vcc method.k=8",
    )
    parser.add_argument("words", nargs="+", metavar="method=NAME|task=NAME")
    words = parser.parse_args(arguments).words
    if not words[0].startswith("task="):
        from bench.conformance.__main__ import main

        return main(words)
    failed = 0
    if words == ["task=all"]:
        words = [f"task={name}" for name in plugins.available("task")]
    for word in words:
        group, _, name = word.partition("=")
        if group != "task":
            raise RequestError(f"can't read '{word}'; accepted beside task=NAME: task=NAME")
        failures = _check_task(plugins.conf("task", name))
        for failure in failures:
            print(f"{word}: {failure}")
        print(f"{word}: {f'{len(failures)} failures' if failures else 'keeps its contract'}")
        failed += bool(failures)
    return 1 if failed else 0


def _check_task(conf: dict[str, Any]) -> list[str]:
    from transformers import AutoTokenizer

    from tasks.check import check as check_task

    tokenizer = AutoTokenizer.from_pretrained(plugins.ROOT / "bench/models/embedded/t5")
    return check_task(plugins.build(conf), tokenizer)


def new(arguments: Sequence[str]) -> int:
    """Writes the files; refuses to write over one."""
    parser = parser_for("new", "begin a method or a task")
    parser.add_argument("kind", choices=("method", "task"))
    parser.add_argument("name")
    from tasks.template import SHAPE, SHAPES, task_yaml

    shapes = ", ".join(SHAPES)
    parser.add_argument("--shape", help=f"of a task's rows: {shapes}; {SHAPE} where none is given")
    options = parser.parse_args(arguments)
    try:
        if options.kind == "method":
            from bench.scaffold import new_method

            files = new_method(options.name)
        else:
            text = task_yaml(options.name, options.shape or SHAPE)
            files = {plugins.ROOT / "conf" / "task" / f"{options.name}.yaml": text}
    except ValueError as error:
        raise RequestError(str(error)) from error
    for path in files:
        if path.exists():
            raise RequestError(f"{path} is there already")
    for path, text in files.items():
        path.write_text(text)
        print(path.relative_to(plugins.ROOT))
    return 0


def score(arguments: Sequence[str]) -> int:
    """Official figures of anyone's predictions."""
    parser = parser_for(
        "score",
        "score a file of predictions: .jsonl of {id, prediction}, .json or a submission .csv; "
        "or .jsonl of {prediction, reference}, which needs no data",
        "bench score qmsum predictions.jsonl --data-dir /data\nbench score qmsum pairs.jsonl",
    )
    parser.add_argument("task")
    parser.add_argument("file", type=Path)
    _source(parser)
    options = parser.parse_args(arguments)
    from tasks import submission

    task = plugins.build(plugins.conf("task", options.task))
    from bench import stats

    given, references = _data(submission.paired, task, _chosen(options), options.file)
    figures, each = task.score(given, references), task.score_each(given, references)
    estimate = stats.bootstrap_mean(each, seed=0)
    for name, figure in figures.items():
        print(f"{name:<24} {figure}")
    print(f"{'standard error':<24} {estimate.stderr:.4f}")
    print(f"{'95 % interval':<24} {estimate.lo:.4f} … {estimate.hi:.4f}")
    print(f"{'rows scored':<24} {len(each)}")
    return 0


def export(arguments: Sequence[str]) -> int:
    """The official submission file, checked by the official rules."""
    parser = parser_for(
        "export",
        "write a task's predictions into the official submission file",
        "bench export qmsum predictions.jsonl submission.csv --data hub --split test",
    )
    parser.add_argument("task")
    parser.add_argument("file", type=Path)
    parser.add_argument("into", type=Path, help=".csv (all tasks of a benchmark) or .json")
    _source(parser)
    options = parser.parse_args(arguments)
    from tasks import submission

    task = plugins.build(plugins.conf("task", options.task))
    predictions = _data(submission.read_predictions, options.file, getattr(task, "member", None))
    ids = _data(task.ids, _chosen(options))
    missing = _data(submission.export, task, predictions, ids, options.into)
    print(f"{options.into}: {len(predictions)} predictions of {task.name}")
    if missing:
        print(f"still missing: {', '.join(missing)}")
    return 0


def host(arguments: Sequence[str]) -> int:
    """Fingerprint and certificate."""
    parser_for("host", "this machine, and the smallest effect it can resolve").parse_args(arguments)
    from bench import host as machine
    from bench.supervisor import supervise

    print("measuring what this machine can resolve …", file=sys.stderr)
    torch = supervise("bench.children.machine", {}, deadline_s=120)
    facts = machine.fingerprint(len(os.sched_getaffinity(0)), "cpu") | torch.result
    certificate = machine.certificate()
    for name, value in (facts | certificate).items():
        print(f"{name:<18} {_readable(name, value)}")
    found = certificate["detectable_pct"]
    print(
        f"\n{certificate['pairs']} pairs of short calls on one thread show "
        + (f"a slow-down of {found:.1f} % and more." if found else "no slow-down here.")
    )
    return 0


def _readable(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name.endswith("_bytes"):
        return f"{value / (1 << 30):.1f} GiB"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", choices=("embedded", "local", "hub"))
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="a local folder of the data")
    parser.add_argument("--split")


def _chosen(options: argparse.Namespace) -> Data:
    source = options.data or ("local" if options.data_dir else "embedded")
    return Data(source, options.data_dir, options.split)


def _data(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The function's answer; what is wrong with data is a wrong request."""
    try:
        return function(*given, **named)
    except FetchError as error:
        raise RunError(str(error)) from error
    except DataError as error:
        raise RequestError(str(error)) from error


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "ls": (ls, "list methods, tasks, models, …"),
    "train": (train, "train a method's weights, or find them"),
    "fetch": (fetch, "get a task's data or a model from the hub"),
    "check": (check, "does a method or a task keep its contract?"),
    "new": (new, "begin a method or a task"),
    "score": (score, "score anyone's predictions"),
    "export": (export, "write the official submission file"),
    "host": (host, "this machine, and the smallest effect it can resolve"),
}
