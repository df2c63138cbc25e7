"""Measurements that aren't cells: bench recall | spectrum. Each writes one CSV for the figures into
the folder `studies` next to the rows. No torch here: children measure."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from bench.errors import RunError
from bench.status import Status
from bench.terminal import output
from bench.terminal.options import (
    ONE_OR_MORE,
    PATH,
    OneOf,
    command,
    format_option,
    request_words,
    results_option,
)

FOLDER = "studies"
CELL_COLUMNS = ("model", "weights_kind", "weights_sha256", "task", "dataset_sha256", "length")
RECALL = (
    "created_utc", "command", "host_id", "cpu_model", "threads", "data", "metric", "keys",
    "queries", "dims", "k", "search", "parameters", "build_ns", "query_ns", "total_ns",
    "total_min_ns", "total_max_ns", "recall", "repeats", "note",
)  # fmt: skip
STUDIED = ("search", "parameters", "build_ns", "query_ns", "total_ns", "recall", "note")
SPECTRUM = (
    "created_utc", "command", "host_id", "model", "weights_kind", "weights_sha256", "task",
    "dataset_sha256", "length", "rows", "tokens_mean", "layer", "frequency", "power",
)  # fmt: skip


def _count(name: str, default: int, about: str) -> Callable[[Any], Any]:
    return click.option(
        f"--{name}", type=ONE_OR_MORE, default=default, metavar="N", help=f"{about} ({default})."
    )


@command(
    "Recall of k-NN searches against their time: ours, exact top-k, and those of faiss, hnswlib, "
    "annoy and scann that are installed.",
    "bench recall --keys 4000 --queries 500\n"
    "bench recall --data fashion-mnist --keys 60000 --queries 10000   # the paper's",
)
@_count("keys", 20_000, "Keys to search")
@_count("queries", 1_000, "Queries to ask, all at once")
@_count("dims", 64, "Size of the drawn vectors")
@_count("k", 10, "Neighbours wanted")
@_count("repeats", 3, "Runs of which the median counts")
@click.option("--seed", type=int, default=0, metavar="N", help="Of the drawn vectors (0).")
@click.option("--data", type=PATH, help=".npz of keys and queries, or a folder of Fashion-MNIST.")
@click.option(
    "--metric", type=OneOf(["ip", "l2"]), help="Inner product, or Euclid's distance (images)."
)
@click.option("--threads", type=int, metavar="N", help="All of them where it isn't given.")
@results_option()
@format_option(default="table")
def recall(data: Path | None, results: Path, form: str, **request: Any) -> int:
    """IceFormer's Figure 3."""
    request["threads"] = request["threads"] or len(os.sched_getaffinity(0))
    request["data"] = str(data.expanduser().resolve()) if data else None
    result = _measured("recall", "knn_recall", request, request["threads"])
    rows = result.pop("rows")
    named = {
        "command": _command(),
        "data": data.name if data else "clusters",
    }
    records = [{**row, "parameters": json.dumps(row["parameters"])} for row in rows]
    path = _written("recall", RECALL, results, {**request, **result, **named}, records)
    lines = (
        (row["search"], " ".join(f"{n}={v}" for n, v in row["parameters"].items()),
         f"{row['total_ns'] / 1e6:,.1f}" if "total_ns" in row else "–",
         f"{row['recall']:.3f}" if "recall" in row else "–", row.get("note", ""))
        for row in rows
    )  # fmt: skip
    heads, left = ("search", "parameters", "ms", "recall", ""), ("search", "parameters", "")
    output.show(form, STUDIED, rows, heads, lines, left=left)
    output.remark(form, f"{path}; bench plot iceformer_3 draws it")
    return 0


@command(
    "Power spectrum of a model's hidden states, layer by layer. MODEL: a name of bench ls models, "
    "a folder, or ORG/NAME of the hub. The words are those of bench run.",
    "bench spectrum embedded\nbench spectrum /path/to/checkpoint task=qmsum length=4096 n=32",
)
@click.argument("model")
@request_words()
@results_option()
def spectrum(model: str, words: Sequence[str], results: Path) -> int:
    """Fourier's Figure 1."""
    from bench.request import compose
    from bench.request.cell import Cell

    defaults = {"task": "narrativeqa", "length": "1024", "n": "16", "measure": "quality"}
    given = dict(word.partition("=")[::2] for word in words)
    overrides = [f"{name}={value}" for name, value in (defaults | given).items()]
    cell = Cell.of(compose.compose([f"model={model}", "method=vanilla", *overrides]))
    result = _measured("spectrum", "spectrum", {"cell": cell.to_json()}, cell.threads)
    shared = {
        "threads": cell.threads,
        "command": _command(),
        **{name: cell.columns[name] for name in CELL_COLUMNS},
        "rows": result["rows"],
        "tokens_mean": result["tokens_mean"],
    }
    rows = [
        {"layer": layer, "frequency": (i + 0.5) / len(powers) / 2, "power": power}
        for layer, powers in enumerate(result["power"])
        for i, power in enumerate(powers)
    ]
    path = _written("spectrum", SPECTRUM, results, shared, rows)
    print(
        f"{path}: {len(result['power']) - 1} layers, {result['rows']} rows; "
        "bench plot fourier_1 draws it"
    )
    return 0


def _command() -> str:
    return shlex.join(["bench", *sys.argv[1:]])


def _measured(name: str, module: str, request: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The result of a module of tools.studies. Raises RequestError, RunError."""
    from bench.execution import cell_run
    from bench.execution.supervisor import Limits, started
    from bench.terminal import run_progress

    environment = {"OMP_NUM_THREADS": str(threads), **cell_run.CHILD_ENVIRONMENT}
    limits, study = Limits.after(3600.0, environment=environment), f"tools.studies.{module}"
    with (
        run_progress.progress(f"bench {name}") as progress,
        started(study, request, limits, progress=progress) as running,
    ):
        outcome = running.outcome()
    if outcome.status != Status.OK:
        raise RunError(f"{name} ended with {outcome.status}: {outcome.detail}")
    return outcome.result


def _written(
    name: str, columns: Sequence[str], results: Path, shared: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]]
) -> Path:  # fmt: skip
    from bench.host import host
    from bench.rows.shards import unique_name, utc_now, write_whole

    created = {"created_utc": utc_now().isoformat(timespec="seconds")}
    facts = {**host.fingerprint(shared["threads"], "cpu"), **shared, **created}
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**facts, **row} for row in rows)
    path = results / FOLDER / unique_name(name, ".csv")
    write_whole(path, text.getvalue().encode())
    return path
