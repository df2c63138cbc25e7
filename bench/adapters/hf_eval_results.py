"""Scores as `.eval_results/*.yaml` of a model's repository on the hub (docs/hub/eval-results of
huggingface/hub-docs; huggingface_hub.EvalResultEntry has the same fields)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from bench.adapters import origin
from bench.errors import RequestError
from bench.files import write_own
from bench.rows import query
from bench.rows.columns import Row
from bench.status import Status


def write(rows: list[Row], into: Path, results: Path) -> str:
    """ORG--MODEL/.eval_results/TASK.yaml with an entry for each row, to be added to the model's
    repository. Only whole splits of the hub's data, run on the hub's weights, have a place there.
    Raises RequestError, which says why, when no row does."""
    import yaml

    files: dict[Path, list[dict[str, Any]]] = {}
    reasons: Counter[str] = Counter()
    for row in query.counting(rows):
        if reason := _unfit(row):
            reasons[reason] += 1
            continue
        folder = into / origin.model(row).id.replace("/", "--") / ".eval_results"
        files.setdefault(folder / f"{row['task']}.yaml", []).append(_entry(row))
    left_out = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    if not files:
        raise RequestError(f"no row can stand in a model's repository: {left_out}")
    for path, entries in files.items():
        write_own(path, yaml.safe_dump(entries, sort_keys=False, allow_unicode=True).encode(), into)
    count = sum(map(len, files.values()))
    return f"{into}: {count} scores in {len(files)} files{left_out and f'; left out: {left_out}'}"


def _unfit(row: Row) -> str:
    """Why a score has no place in a model's repository; empty if it has."""
    if row["status"] != Status.OK or row["value"] is None:
        return "without a score"
    if origin.dataset(row) is None:
        return f"of {row['data_source']} data"
    if not origin.model(row).of_hub or row["weights_kind"] == "random":
        return "of weights that are not the hub's"
    whole = row["n_samples_official"] or row["n_samples_available"]
    return "" if whole and row["n_scored"] == whole else "of a part of the samples"


def _entry(row: Row) -> dict[str, Any]:
    """`notes` name the method: the score is the model's own only with `method=vanilla`."""
    dataset, model = origin.dataset(row), origin.model(row)
    assert dataset
    revision = {"revision": dataset.revision} if dataset.revision else {}
    parameters = json.loads(row["method_params"] or "{}")
    method = " ".join([row["method"], *(f"{name}={value}" for name, value in parameters.items())])
    return {
        "dataset": {"id": dataset.repo, "task_id": row["task"], **revision},
        "value": row["value"],
        "date": row["created_utc"],
        "notes": f"longctx-bench, {row['metric']}, {row['split']} split, method {method}, "
        f"{row['length']} tokens, {row['dtype']}, weights {model.revision}",
    }
