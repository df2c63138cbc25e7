"""Scores for other tools: records of Every Eval Ever (evaleval/every_eval_ever, eval.schema.json
0.3.0), and `.eval_results` of a model's repository on the hub."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.errors import RequestError
from bench.files import write_own
from bench.request import plugins, weights
from bench.rows import query
from bench.rows.columns import Row, value_of
from bench.rows.comparison import Comparison
from bench.status import Status
from bench.units import counted, finite

SCHEMA_VERSION = "0.3.0"
COLLECTION = "longctx-bench"
"""Also in place of an organisation, for models that are shipped with the project."""
LOCAL = "local"
"""The same for models of this machine."""
COMMIT = re.compile("[0-9a-f]{40}")
DETAILS = (
    "method", "method_params", "kernel", "length", "batch", "dtype", "device", "threads", "seed",
    "new_tokens", "weights_kind", "weights_sha256", "host_id", "cpu_model", "gpu_name", "cell_key",
    "row_id", "measure", "noisy", "quality_comparison",
)  # fmt: skip
"""Columns that are added to each result as text."""


def write_every_eval_ever(rows: list[Row], into: Path) -> str:
    """A file for each cell's row that counts: data/longctx-bench/ORG/MODEL/UUID.json, the same one
    at each export. Rows without a figure are left out. Raises RequestError when none is left."""
    written = 0
    for row in query.counting(rows):
        results = [*_results(row)] if row["status"] == Status.OK else []
        if not results:
            continue
        model = model_of(row)
        # The format requires a UUID of version 4; this one is derived from the row.
        digest = hashlib.sha256(row["row_id"].encode()).digest()
        uuid4 = uuid.UUID(bytes=digest[:16], version=4)
        path = into / "data" / COLLECTION / model.id / f"{uuid4}.json"
        record = json.dumps(_record(row, model, results), indent=1, ensure_ascii=False)
        write_own(path, f"{record}\n".encode(), into)
        written += 1
    read = counted(len(rows), "row")
    if not written:
        raise RequestError(f"none of {read} has a score, a time or a memory to export")
    return f"{into}: {counted(written, 'record')} of {read}"


def _results(row: Row) -> Iterator[dict[str, Any]]:
    value = finite(row["value"])
    if value is not None and row["weights_kind"] != "random":
        is_loss = row["higher_is_better"] is False
        yield _result(
            row, row["metric"] or "score", "the task's official metric",
            "loss" if is_loss else "points", value, "Infinity" if is_loss else 100.0, is_loss,
            (row["ci_lo"], row["ci_hi"]), row["ci_method"],
        )  # fmt: skip
    latency = Comparison.of(row, "lat")
    if latency.ratio is not None:
        yield _result(
            row, "latency_ratio",
            "time of one forward / that of exact attention, in pairs in one process",
            "ratio", latency.ratio, interval=(latency.ratio_ci_lo, latency.ratio_ci_hi),
            method=latency.ratio_ci_method,
        )  # fmt: skip
    if row["mem_ratio"] is not None:
        about = "peak memory of one forward / that of exact attention"
        yield _result(row, "memory_ratio", about, "ratio", row["mem_ratio"])


def _record(row: Row, model: Source, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    now = f"{time.time():.0f}"
    label = plugins.method_label(row["method"], row["method_params"])
    return {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{row['task']}-{row['row_id'][:12]}/{model.id}/{now}",
        "evaluation_timestamp": row["created_utc"],
        "retrieved_timestamp": now,
        "source_metadata": {
            "source_name": COLLECTION,
            "source_type": "evaluation_run",
            "source_organization_name": "unknown",
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": COLLECTION, "version": importlib.metadata.version(COLLECTION)},
        "model_info": {
            "name": f"{row['model']} with {label}",
            "id": model.id,
            "inference_engine": _texts({"name": "torch", "version": row["torch"]}),
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown" if model.id.startswith(LOCAL)
                else "open_weights",
                **_texts({"revision": model.revision}),
            },
        },
        "evaluation_results": results,
    }  # fmt: skip


def _result(
    row: Row, metric: str, about: str, unit: str, score: float, upper: float | str = "Infinity",
    lower_is_better: bool = True, interval: Sequence[float | None] = (None, None),
    method: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One figure of a row. `upper` is its largest possible value, `interval` one of 95 %."""
    most_tokens = (cell_of(row).get("task") or {}).get("max_new_tokens")
    is_score = unit == "points"
    # Rows of embedded data are never attributed to the benchmark.
    benchmark = COLLECTION if row["data_source"] == "embedded" else row["benchmark"]
    bounded = not is_score or 0 <= score <= 100
    uncertainty: dict[str, Any] = {}
    lo, hi = finite([*interval])  # the format wants finite intervals
    if lo is not None and hi is not None:
        uncertainty["confidence_interval"] = {
            "lower": lo, "upper": hi, "confidence_level": 0.95, **_texts({"method": method})
        }  # fmt: skip
    if is_score and row["n_scored"] is not None:
        uncertainty["num_samples"] = row["n_scored"]
    return {
        "evaluation_result_id": f"{row['row_id']}.{metric}",
        "evaluation_name": f"{benchmark}/{row['task']}",
        "evaluation_timestamp": row["created_utc"],
        "source_data": _source(row),
        "metric_config": {
            "evaluation_description": about,
            "metric_id": metric if is_score else f"{COLLECTION}.{metric}",
            "metric_name": metric,
            "metric_unit": unit,
            "lower_is_better": lower_is_better,
            **({"score_type": "continuous", "min_score": 0.0, "max_score": upper}
               if bounded else {}),
        },
        "score_details": {
            "score": score, **({"uncertainty": uncertainty} if uncertainty else {}),
        },
        "generation_config": {
            **({"generation_args": {"max_tokens": most_tokens}}
               if is_score and most_tokens else {}),
            "additional_details": _texts({name: value_of(row, name) for name in DETAILS}),
        },
    }  # fmt: skip


def _source(row: Row) -> dict[str, Any]:
    details = _texts({name: row[name] for name in ("data_source", "split", "dataset_sha256")})
    if dataset := dataset_of(row):
        return {
            "dataset_name": row["task"], "source_type": "hf_dataset", "hf_repo": dataset.id,
            "hf_split": row["split"],
            "additional_details": details | _texts({"revision": dataset.revision}),
        }  # fmt: skip
    shipped = " (rows shipped with longctx-bench)" if row["data_source"] == "embedded" else ""
    return {
        "dataset_name": f"{row['task']}{shipped}", "source_type": "other",
        "additional_details": details,
    }  # fmt: skip


def _texts(values: dict[str, Any]) -> dict[str, str]:
    """Further details as the format requires them: text, without unknown values."""
    return {name: str(value) for name, value in values.items() if value is not None}


# Sources of a row's model and data, under the names of other tools.


class Source(NamedTuple):
    """A model or a dataset: ORG/NAME, and the hub's commit; None if the row names a branch, and
    for sources outside the hub."""

    id: str
    revision: str | None


def cell_of(row: Row) -> dict[str, Any]:
    """The row's cell; empty for a row that was stored without one."""
    return dict(json.loads(row.get("cell") or "{}"))


def model_of(row: Row) -> Source:
    """The row's model; weights trained here from a model of the hub belong to this machine."""
    path = (cell_of(row).get("model") or {}).get("path") or ""
    if found := weights.SNAPSHOT.search(path):
        return Source(f"{found['org']}/{found['name']}", found["revision"])
    shipped = row["weights_kind"] == "embedded" or path.startswith("bench/models/embedded/")
    name = re.sub(r"[^\w-]+", "-", row["model"], flags=re.ASCII).strip("-") or "unnamed"
    return Source(f"{COLLECTION if shipped else LOCAL}/{name}", None)


def dataset_of(row: Row) -> Source | None:
    """The hub's dataset that was read; None for embedded and local rows."""
    hub = (cell_of(row).get("task") or {}).get("hub") or {}
    if row["data_source"] != "hub" or not hub.get("repo"):
        return None
    revision = str(hub.get("revision"))
    return Source(hub["repo"], revision if COMMIT.fullmatch(revision) else None)


# Scores as `.eval_results/*.yaml` of a model's repository on the hub (docs/hub/eval-results of
# huggingface/hub-docs; huggingface_hub.EvalResultEntry has the same fields).


def write_eval_results(rows: list[Row], into: Path) -> str:
    """ORG--MODEL/.eval_results/TASK.yaml with an entry for each row, to be added to the model's
    repository. Only whole splits of the hub's data, run on the hub's weights, are accepted there.
    Raises RequestError with the reasons when no row is accepted."""
    import yaml

    files: dict[Path, list[dict[str, Any]]] = {}
    reasons: Counter[str] = Counter()
    for row in query.counting(rows):
        model, dataset = model_of(row), dataset_of(row)
        if reason := _unfit(row, model, dataset):
            reasons[reason] += 1
        elif dataset:
            folder = into / model.id.replace("/", "--") / ".eval_results"
            entries = files.setdefault(folder / f"{row['task']}.yaml", [])
            entries.append(_entry(row, model, dataset))
    left_out = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    if not files:
        raise RequestError(f"no row can stand in a model's repository: {left_out}")
    for path, entries in files.items():
        write_own(path, yaml.safe_dump(entries, sort_keys=False, allow_unicode=True).encode(), into)
    count = counted(sum(map(len, files.values())), "score")
    left_out = left_out and f"; left out: {left_out}"
    return f"{into}: {count} in {counted(len(files), 'file')}{left_out}"


def _unfit(row: Row, model: Source, dataset: Source | None) -> str:
    """Why a score isn't accepted in a model's repository; empty if it is accepted."""
    if row["status"] != Status.OK or row["value"] is None:
        return "without a score"
    if dataset is None:
        return f"of {row['data_source']} data"
    if not model.revision or row["weights_kind"] == "random":
        return "of weights that are not the hub's"
    whole = row["n_samples_official"] or row["n_samples_available"]
    return "" if whole and row["n_scored"] == whole else "of a part of the samples"


def _entry(row: Row, model: Source, dataset: Source) -> dict[str, Any]:
    """`notes` name the method: the score is the model's own only with `method=vanilla`."""
    parameters = json.loads(row["method_params"] or "{}")
    method = " ".join([row["method"], *(f"{name}={value}" for name, value in parameters.items())])
    revision = _texts({"revision": dataset.revision})
    return {
        "dataset": {"id": dataset.id, "task_id": row["task"], **revision},
        "value": row["value"],
        "date": row["created_utc"],
        "notes": f"longctx-bench, {row['metric']}, {row['split']} split, method {method}, "
        f"{row['length']} tokens, {row['dtype']}, weights {model.revision}",
    }
