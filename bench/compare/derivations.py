"""Checks that a row follows from its measurements: its columns are derived again and compared."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from bench.compare import verify
from bench.errors import RequestError
from bench.models import auto
from bench.request import code_hash, plugins
from bench.request.cell import Cell, code_of
from bench.rows import derived_columns, engine, quality_verdicts, rescore
from bench.rows.columns import COLUMNS, Row, value_of
from bench.rows.comparison import COLUMNS_OF, DERIVED, TIMED, TO_VANILLA, Comparison
from bench.statistics.paired import SCALE


class Level(StrEnum):
    """`wrong` rejects the folder, `look` asks for a person's judgement, `note` only informs."""

    WRONG = "wrong"
    LOOK = "look"
    NOTE = "note"


Fault = tuple[Level, str]
Derivation = Callable[[Row, Path], Mapping[str, Any]]

LATER = (
    "lat_aa_verdict", "lat_n_processes", "lat_p99_ns", "engine_median_ns", "tpot_engine_median_ns",
    "train_n_processes", "train_process_sd_pct", "train_ratio_ci_method",
    "answer_cut_frac", "prompt", "quality_comparison", "quality_verdict", "value_diff_detectable",
)  # fmt: skip
"""Derived columns that rows of older versions lack."""
OUTSIDE = {
    f"{name}_{arm}median_ns": f"{name}_{arm}outside_samples_ns"
    for name in TO_VANILLA
    for arm in ("", "base_")
}
INTERVALS = {"value": "ci", "base_value": "base_ci", "value_diff": "value_diff_ci"}
PEAK = re.compile("(base_)?(rss_peak_delta|alloc_peak|gpu_alloc_delta|train_peak)_bytes")
LEAST_TOKEN_BYTES = 2
LEAST_CALL_NS = 1_000
FIRST_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def checked(row: Row, folder: Path) -> tuple[list[Fault], set[str]]:
    """The faults of a row in a folder, and the names of all columns that could be derived."""
    faults, derived = differences(row, folder, {"its cell": _of_cell})
    # A cell with faults must not choose the code that scores it.
    scored = {} if faults or row["value"] is None else SCORED
    more, names = differences(row, folder, {**MEASURED, **scored})
    noise = [(Level.LOOK, f"noisy host: {row['noise_reason']}")] if row["noisy"] else []
    return faults + more + noise, derived | names


def differences(
    row: Row, folder: Path, derivations: Mapping[str, Derivation]
) -> tuple[list[Fault], set[str]]:
    """The columns that differ when derived again, and the names of all derived columns."""
    faults: list[Fault] = []
    derived: set[str] = set()
    for source, derive in derivations.items():
        try:
            found = derive(row, folder)
            texts = [
                f"{name} is {stored!s:.50}, by {source} {value!s:.50}"
                for name, value in found.items()
                if not _same(name, stored := value_of(row, name), value)
            ]
        except Exception as error:  # also for values that no run stores
            text = f"can't be derived from {source}: {type(error).__name__}: {error}"[:250]
            here = isinstance(error, RequestError) and source in SCORED
            text = f"can't be scored again here: {error}" if here else text
            other = isinstance(error, rescore.OtherPredictions)
            faults.append((Level.LOOK if here and not other else Level.WRONG, text))
        else:
            derived |= found.keys()
            faults += [(Level.WRONG, "; ".join(texts))] if texts else []
    return faults, derived


def _same(name: str, stored: Any, found: Any) -> bool:
    if stored is None or found is None:
        return stored is None and (found is None or name in LATER)
    if COLUMNS[name].type == "json":
        six_digits = partial(json.loads, parse_float=lambda number: f"{float(number):.6g}")
        stored, found = map(six_digits, (stored, found))
    if COLUMNS[name].type == "float64" and not isinstance(found, str):
        return math.isclose(stored, found, rel_tol=1e-6, abs_tol=1e-9)
    return bool(stored == found)


def _of_cell(row: Row, _: Path) -> Mapping[str, Any]:
    stored = json.loads(row["cell"] or "")
    verify.check_code(stored)
    cell = Cell(**stored)
    found = {
        "cell_key": cell.key,
        "task_version": str(cell.task["version"]),
        "truncation_side": cell.task.get("truncation_side", "right"),
        "weights_protocol": cell.protocol,
        "recipe": cell.recipe and cell.recipe["name"],
        "recipe_params": cell.recipe and json.dumps(cell.recipe),
        "checkpoint_key": cell.recipe and cell.model["training"],
    }
    families = ({"family": family} for family in (cell.model["family"], auto.AUTO))
    if cell.code_sha256 in (code_of(cell.method, cell.task, model) for model in families):
        found["method_version"] = code_hash.code_sha256(*plugins.targets(cell.method))[:12]
    return found | cell.columns


def _of_samples(row: Row, _: Path) -> Mapping[str, Any]:
    walks = {name: value_of(row, f"{name}_samples_ns") for name in ("attend", "encode")}
    medians = {f"{n}_ns": int(statistics.median(ns)) for n, ns in walks.items() if ns}
    raw = {name: Comparison.of(row, name).measured for name in TIMED}
    if not raw["train"].aa_first_samples_ns:  # an older row, whose equal pairs aren't stored
        raw["train"] = replace(raw["train"], aa_noise_pct=value_of(row, "train_aa_noise_pct"))
    if (raw["train"].reason or "").startswith("peak memory"):  # no reason about the times
        raw["train"] = replace(raw["train"], reason=None)
    found = dict(derived_columns.times(raw, row, row["seed"]))
    names = {f"{name}_{field}" for name in COLUMNS_OF for field in DERIVED}
    names |= {"tokens_per_s", "base_tokens_per_s"}
    return {name: found[name] for name in found if name in names} | medians


def _of_bytes(row: Row, _: Path) -> Mapping[str, Any]:
    return {
        "mem_agree": derived_columns.mem_agree(row),
        "kv_ratio_16bit": engine.kv_ratio_16bit(row),
        **derived_columns.memory_ratios(row),
    }


def _of_scores(row: Row, _: Path) -> Mapping[str, Any]:
    low, chance = row["ci_lo"], row["chance"]
    own, other = row["weights_sha256"], row["base_weights_sha256"]
    return {
        **derived_columns.compared_scores(row),
        "value": json.loads(row["metrics"] or "{}").get("value"),
        "quality_comparison": quality_verdicts.compared(own, other),
        "at_chance": None if low is None or chance is None else low <= chance,
    }


def _limited(row: Row, _: Path) -> Mapping[str, Any]:
    """The columns whose values aren't accepted, with the accepted values."""
    needed = {"command": "a command", "host_id": "a host", "code_sha": "a commit"}
    found: dict[str, Any] = {name: needed[name] for name in needed if not value_of(row, name)}
    found |= {"code_dirty": "False: commit, then measure"} if row["code_dirty"] else {}
    created, now = datetime.fromisoformat(row["created_utc"]), datetime.now(UTC)
    if not FIRST_DAY <= created.astimezone(UTC) <= now + timedelta(days=1):
        found["created_utc"] = f"{FIRST_DAY:%Y-%m-%d} to {now:%Y-%m-%d}"
    for name, column in COLUMNS.items():
        value = value_of(row, name)
        if value is not None and column.type in ("int64", "float64", "list<int64>"):
            low, high = _limits(row, name)
            each = value if isinstance(value, list) else [value]
            if not all(low - 1e-9 <= one <= high + 1e-9 for one in each):
                found[name] = f"{low:g} to {high:g}"
    return found


def _limits(row: Row, name: str) -> tuple[float, float]:
    """The least and the greatest value of a column of this row."""
    if "0 to 1" in COLUMNS[name].meaning:
        return 0, 1
    if name in INTERVALS:
        lo, hi = (value_of(row, f"{INTERVALS[name]}_{end}") for end in ("lo", "hi"))
        least = -SCALE if name == "value_diff" else 0
        return max(least, least if lo is None else lo), min(SCALE, SCALE if hi is None else hi)
    if name == "n_scored":
        return 0, (row["n_samples_planned"] or math.inf) * (row["turns"] or 1)
    if outside := name in OUTSIDE and value_of(row, OUTSIDE[name]):
        return statistics.median(outside) / verify.IMPLAUSIBLE, math.inf
    if PEAK.fullmatch(name):
        return LEAST_TOKEN_BYTES * row["batch"] * (row["timed_tokens"] or row["length"]), math.inf
    least = LEAST_CALL_NS if name.endswith("_samples_ns") else 0
    return least if name.endswith(("_ns", "_bytes")) else -math.inf, math.inf


MEASURED: Mapping[str, Derivation] = {
    "its samples": _of_samples,
    "its bytes": _of_bytes,
    "its scores": _of_scores,
    "its limits": _limited,
}
"""Raw columns → function that derives others from them."""
SCORED: Mapping[str, Derivation] = {
    "its metric": lambda row, _: {"metric_version": rescore.metric_version(row)},
    "its predictions": rescore.quality,
}
