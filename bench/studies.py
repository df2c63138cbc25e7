"""Measurements that are no cells: bench recall | spectrum. Each writes one CSV into the folder
`studies` beside the rows, which the figures read. No torch here: children measure."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.commands import parser_for
from bench.errors import RequestError
from bench.rows import DEFAULT

FOLDER = "studies"
ASKED = ("model", "weights_kind", "weights_sha256", "task", "dataset_sha256", "length")
RECALL = (
    "created_utc", "command", "host_id", "cpu_model", "threads", "data", "metric", "keys",
    "queries", "dims", "k", "search", "parameters", "build_ns", "query_ns", "total_ns",
    "total_min_ns", "total_max_ns", "recall", "repeats", "note",
)  # fmt: skip
SPECTRUM = (
    "created_utc", "command", "host_id", "model", "weights_kind", "weights_sha256", "task",
    "dataset_sha256", "length", "rows", "tokens_mean", "layer", "frequency", "power",
)  # fmt: skip


def recall(arguments: Sequence[str]) -> int:
    """IceFormer's Figure 3."""
    parser = parser_for(
        "recall",
        "recall of k-NN searches against their time: ours, exact top-k, and those of faiss, "
        "hnswlib and annoy that are installed",
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
    _results(parser)
    options = parser.parse_args(arguments)
    for name in ("keys", "queries", "dims", "k", "repeats"):
        if getattr(options, name) < 1:
            raise RequestError(f"--{name} {getattr(options, name)} is not accepted: 1 or more")
    threads = options.threads or len(os.sched_getaffinity(0))
    data = str(options.data.expanduser().resolve()) if options.data else None
    request = {
        "keys": options.keys, "queries": options.queries, "dims": options.dims, "k": options.k,
        "repeats": options.repeats, "seed": options.seed, "metric": options.metric,
        "threads": threads, "data": data,
    }  # fmt: skip
    result = _measured("recall", request, threads)
    if result is None:
        return 1
    shared = {
        "command": " ".join(["bench recall", *arguments]),
        "threads": threads,
        "data": options.data.name if options.data else "clusters",
        "k": options.k,
        "repeats": options.repeats,
        **{name: result[name] for name in ("keys", "queries", "dims", "metric")},
    }
    rows = [{**row, "parameters": json.dumps(row["parameters"])} for row in result["rows"]]
    path = _written("recall", RECALL, options.results, shared, rows, threads)
    from bench import tables

    lines = [
        (row["search"], " ".join(f"{n}={v}" for n, v in json.loads(row["parameters"]).items()),
         f"{row['total_ns'] / 1e6:,.1f}" if "total_ns" in row else "–",
         f"{row['recall']:.3f}" if "recall" in row else "–", row.get("note", ""))
        for row in rows
    ]  # fmt: skip
    tables.draw(
        "", ("search", "parameters", "ms", "recall", ""), lines, ("search", "parameters", "")
    )
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
    _results(parser)
    options = parser.parse_intermixed_args(arguments)
    from bench import config
    from bench.cell import Cell

    own = {"task": "narrativeqa", "length": "1024", "n": "16", "measure": "quality"}
    given = {word.partition("=")[0] for word in options.words}
    words = [f"{name}={value}" for name, value in own.items() if name not in given]
    words += [f"model={options.model}", "method=vanilla", *options.words]
    cell = Cell.of(config.compose(words))
    result = _measured("spectrum", {"cell": cell.to_json()}, cell.threads)
    if result is None:
        return 1
    shared = {
        "command": " ".join(["bench spectrum", *arguments]),
        **{name: cell.columns[name] for name in ASKED},
        "rows": result["rows"],
        "tokens_mean": result["tokens_mean"],
    }
    rows = [
        {"layer": layer, "frequency": (i + 0.5) / len(powers) / 2, "power": power}
        for layer, powers in enumerate(result["power"])
        for i, power in enumerate(powers)
    ]
    path = _written("spectrum", SPECTRUM, options.results, shared, rows, cell.threads)
    print(
        f"{path}: {len(result['power']) - 1} layers, {result['rows']} rows; "
        "bench plot fourier_1 draws it"
    )
    return 0


def _results(parser: Any) -> None:
    parser.add_argument(
        "--results", type=Path, default=DEFAULT, metavar="DIR", help=f"folder of rows ({DEFAULT})"
    )


def _measured(name: str, request: Mapping[str, Any], threads: int) -> dict[str, Any] | None:
    """What the child brought, or None after saying how it ended. Raises RequestError."""
    from bench import runner, show
    from bench.supervisor import supervise

    with show.progress(f"bench {name}") as progress:
        outcome = supervise(
            f"bench.children.{name}",
            request,
            deadline_s=3600.0,
            environment={"OMP_NUM_THREADS": str(threads), **runner.SETTINGS},
            progress=progress,
        )
    if outcome.status == "request":
        raise RequestError(outcome.detail or "")
    if outcome.status != "ok":
        print(f"bench: {name} ended with {outcome.status}: {outcome.detail}", file=sys.stderr)
        return None
    return outcome.result


def _written(
    name: str,
    columns: Sequence[str],
    results: Path,
    shared: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    threads: int,
) -> Path:
    from bench import host
    from bench.shards import unique_name, utc_now, write_whole

    machine = host.fingerprint(threads, "cpu")
    facts = {
        **shared,
        "created_utc": utc_now().isoformat(timespec="seconds"),
        "host_id": machine["host_id"],
        "cpu_model": machine["cpu_model"],
    }
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({n: {**facts, **row}.get(n) for n in columns} for row in rows)
    path = results / FOLDER / unique_name(name, ".csv")
    write_whole(path, text.getvalue().encode())
    return path


COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "recall": (recall, "recall of k-NN searches against their time"),
    "spectrum": (spectrum, "power spectrum of a model's hidden states"),
}
