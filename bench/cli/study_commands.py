"""Measurements that are no cells: bench recall | spectrum. Each writes one CSV into the folder
`studies` beside the rows, which the figures read. No torch here: children measure."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import RequestError, RunError
from bench.status import Status
from bench.terminal.arguments import add_json, add_results, parser_for

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


def recall(arguments: Sequence[str]) -> int:
    """IceFormer's Figure 3."""
    parser = parser_for(
        "recall",
        "recall of k-NN searches against their time: ours, exact top-k, and those of faiss, "
        "hnswlib, annoy and scann that are installed",
        "bench recall --keys 4000 --queries 500\n"
        "bench recall --data fashion-mnist --keys 60000 --queries 10000   # the paper's",
    )
    for name, default, meaning in (
        ("keys", 20_000, "keys to search"),
        ("queries", 1_000, "queries to ask, all at once"),
        ("dims", 64, "size of the drawn vectors"),
        ("k", 10, "neighbours wanted"),
        ("repeats", 3, "the median of so many runs counts"),
        ("seed", 0, "of the drawn vectors"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} ({default})"
        )
    parser.add_argument("--data", type=Path, metavar="PATH",
                        help=".npz of keys and queries, or a folder of Fashion-MNIST")  # fmt: skip
    parser.add_argument("--metric", choices=("ip", "l2"),
                        help="inner product, or Euclid's distance (images)")  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="(all)")
    add_results(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    for name in ("keys", "queries", "dims", "k", "repeats"):
        if getattr(options, name) < 1:
            raise RequestError(f"--{name} {getattr(options, name)} is not accepted: 1 or more")
    options.threads = options.threads or len(os.sched_getaffinity(0))
    request = {
        name: value for name, value in vars(options).items() if name not in ("results", "format")
    }
    request["data"] = str(options.data.expanduser().resolve()) if options.data else None
    result = _measured("recall", "knn_recall", request, options.threads)
    rows = result.pop("rows")
    shared = {
        **request, **result,
        "command": " ".join(["bench recall", *arguments]),
        "data": options.data.name if options.data else "clusters",
    }  # fmt: skip
    records = [{**row, "parameters": json.dumps(row["parameters"])} for row in rows]
    path = _written("recall", RECALL, options.results, shared, records)
    from bench.terminal import text_table

    lines = [
        (row["search"], " ".join(f"{n}={v}" for n, v in row["parameters"].items()),
         f"{row['total_ns'] / 1e6:,.1f}" if "total_ns" in row else "–",
         f"{row['recall']:.3f}" if "recall" in row else "–", row.get("note", ""))
        for row in rows
    ]  # fmt: skip
    if text_table.tabular(options.format):
        text_table.write(options.format, STUDIED, rows)
        return 0
    names = ("search", "parameters", "ms", "recall", "")
    text_table.draw("", names, lines, ("search", "parameters", ""))
    print(f"{path}; bench plot iceformer_3 draws it")
    return 0


def spectrum(arguments: Sequence[str]) -> int:
    """Fourier's Figure 1."""
    parser = parser_for(
        "spectrum",
        "power spectrum of a model's hidden states, layer by layer",
        "bench spectrum embedded\nbench spectrum /path/to/checkpoint task=qmsum length=4096 n=32",
    )
    parser.add_argument("model", help="a name of bench ls models, a folder, or ORG/NAME of the hub")
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="as of bench run")
    add_results(parser)
    options = parser.parse_intermixed_args(arguments)
    from bench.request import compose
    from bench.request.cell import Cell

    defaults = {"task": "narrativeqa", "length": "1024", "n": "16", "measure": "quality"}
    given = dict(word.partition("=")[::2] for word in options.words)
    words = [f"{name}={value}" for name, value in (defaults | given).items()]
    cell = Cell.of(compose.compose([f"model={options.model}", "method=vanilla", *words]))
    result = _measured("spectrum", "spectrum", {"cell": cell.to_json()}, cell.threads)
    shared = {
        "threads": cell.threads,
        "command": " ".join(["bench spectrum", *arguments]),
        **{name: cell.columns[name] for name in CELL_COLUMNS},
        "rows": result["rows"],
        "tokens_mean": result["tokens_mean"],
    }
    rows = [
        {"layer": layer, "frequency": (i + 0.5) / len(powers) / 2, "power": power}
        for layer, powers in enumerate(result["power"])
        for i, power in enumerate(powers)
    ]
    path = _written("spectrum", SPECTRUM, options.results, shared, rows)
    print(
        f"{path}: {len(result['power']) - 1} layers, {result['rows']} rows; "
        "bench plot fourier_1 draws it"
    )
    return 0


def _measured(name: str, module: str, request: Mapping[str, Any], threads: int) -> dict[str, Any]:
    """The result of a module of tools.studies. Raises RequestError, RunError."""
    from bench.execution import cell_run
    from bench.execution.supervisor import supervise
    from bench.terminal import run_progress

    with run_progress.progress(f"bench {name}") as progress:
        outcome = supervise(
            f"tools.studies.{module}",
            request,
            deadline_s=3600.0,
            environment={"OMP_NUM_THREADS": str(threads), **cell_run.CHILD_ENVIRONMENT},
            progress=progress,
        )
    if outcome.status != Status.OK:
        raise RunError(f"{name} ended with {outcome.status}: {outcome.detail}")
    return outcome.result


def _written(
    name: str,
    columns: Sequence[str],
    results: Path,
    shared: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
) -> Path:
    from bench.host import host
    from bench.store.shards import unique_name, utc_now, write_whole

    created = {"created_utc": utc_now().isoformat(timespec="seconds")}
    facts = {**host.fingerprint(shared["threads"], "cpu"), **shared, **created}
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**facts, **row} for row in rows)
    path = results / FOLDER / unique_name(name, ".csv")
    write_whole(path, text.getvalue().encode())
    return path
