"""Whether a contributed folder of rows may be accepted: by git, by other hosts' rows, and by the
rows themselves, whose columns are derived again from their measurements and compared. Then some
cells are measured again here.
"""

from __future__ import annotations

import io
import json
import math
import random
import re
import statistics
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bench.compare import verify
from bench.compare.verify import Agreement, FigureCheck
from bench.errors import RequestError
from bench.execution.supervisor import Progress
from bench.host.host import git, short_host
from bench.models import auto
from bench.request import code_hash, plugins
from bench.request.cell import Cell, code_of
from bench.rows import derived_columns, query, rescore, row_facts, store
from bench.rows.columns import COLUMNS, Row, value_of
from bench.rows.comparison import COLUMNS_OF, DERIVED, TIMED, TO_VANILLA, Comparison
from bench.rows.store import Predictions
from bench.statistics.paired import SCALE
from bench.status import Status
from bench.units import counted

Rows = Sequence[Row]
Accepted = Mapping[str, Row]
KEPT = (".parquet", ".md")
"""Suffixes of the files in a folder of rows, in addition to its predictions."""
BRANCHES = ("origin/main", "main", "origin/master", "master")
CLAIMED = ("*_samples_ns", "*bytes*", "fid_*", "*decode_*", "*ci_??", "*_process", "*_rel_l2")
"""Claimed columns that are named together."""


class Level(StrEnum):
    """`wrong` rejects the folder, `look` asks for a person's judgement, `note` only informs."""

    WRONG = "wrong"
    LOOK = "look"
    NOTE = "note"


class Remark(NamedTuple):
    """The result of a check of a row or a file."""

    level: Level
    where: str
    text: str


def accepted_rows(folder: Path, branch: str | None) -> Accepted | None:
    """The rows of a folder in the merge base with the branch to merge into, by their id. They stay
    unchanged, and their faults reject no contribution. None without a merge base."""
    names = [branch] if branch else BRANCHES
    bases = (git(folder, "merge-base", "--", "HEAD", name) for name in names)
    commit = next((base.decode().strip() for base in bases if base), None)
    if commit is None:
        return None
    archive = git(folder, "archive", commit, "--", ":(glob)**/*.parquet")
    with tempfile.TemporaryDirectory() as copy:
        if archive:  # the folder isn't new
            with tarfile.open(fileobj=io.BytesIO(archive)) as files:
                files.extractall(copy, filter="data")
        return {row["row_id"]: row for row in store.Store(copy).rows().to_pylist()}


def row_checks(
    folder: Path, rows: Rows, accepted: Accepted | None, against: Sequence[Path], progress: Progress
) -> Iterator[Remark]:
    """All checks of a folder's rows that measure nothing; `against` are folders of other hosts."""
    text = "not in a git checkout, or no merge base (--base): earlier rows aren't checked"
    if accepted is not None:
        text = f"not measured again, as in the merge base: {counted(len(accepted), 'row')}"
    yield Remark(Level.LOOK if accepted is None else Level.NOTE, str(folder), text)
    accepted = accepted or {}
    for row_id in accepted.keys() - {row["row_id"] for row in rows}:
        yield Remark(Level.WRONG, row_id[:12], "this row of the merge base is gone")
    hashes = {row["code_sha"] for row in rows if row["code_sha"]}
    if git(folder, "rev-parse", "--git-dir") is None:
        hashes = set()
    found = filter(re.compile("[0-9a-f]{7,}").fullmatch, hashes)
    unknown = hashes - {s for s in found if git(folder, "rev-parse", "--verify", f"{s}^{{commit}}")}
    claimed: set[str] = set()
    for number, row in enumerate(rows):
        progress("rows", number, len(rows))
        faults, derived = checked(row, folder)
        claimed |= {name for name in COLUMNS if value_of(row, name) is not None} - derived
        if row["status"] == Status.RETIRED:
            faults.append((Level.WRONG, f"is retired: {row['status_detail']}"))
        if row["code_sha"] in unknown:
            faults.append((Level.WRONG, f"commit {row['code_sha']:.12} isn't in this repository"))
        before = accepted.get(row["row_id"])
        if before == row:
            faults = [(Level.LOOK, f"{text} (accepted)") for _, text in faults]
        elif before:
            names = [name for name in COLUMNS if value_of(row, name) != value_of(before, name)]
            faults.append((Level.WRONG, f"was changed in {', '.join(names)} after the merge base"))
        yield from (Remark(level, row["row_id"][:12], text) for level, text in faults)
    yield from _other_hosts(rows, [*against, folder])
    figures = {name for name in claimed if COLUMNS[name].type not in ("string", "json", "bool")}
    groups = {next((p for p in CLAIMED if fnmatch(name, p)), name) for name in figures}
    yield Remark(Level.NOTE, str(folder), f"claimed, not derivable: {', '.join(sorted(groups))}")


def draw_sample(rows: Rows, count: int, remarks: Sequence[Remark], accepted: Accepted) -> list[Row]:
    """New rows without faults to measure again, drawn so that nobody can predict them."""
    wrong = {remark.where for remark in remarks if remark.level == Level.WRONG}
    new = [row for row in rows if row["row_id"] not in accepted]
    sound = [r for r in new if r["status"] == Status.OK and r["row_id"][:12] not in wrong]
    return random.SystemRandom().sample(sound, min(count, len(sound)))


def measured_again(row: Row, checks: Sequence[FigureCheck]) -> Remark:
    """The result of a second measurement of a row."""
    verdict = verify.overall(checks)
    levels = {Agreement.AGREES: Level.NOTE, Agreement.DISAGREES: Level.WRONG}
    details = "; ".join(f"{c.figure} {c.verdict} {c.reason}".strip() for c in checks)
    level, where = levels.get(verdict, Level.LOOK), row["row_id"][:12]
    return Remark(level, where, f"measured again: {verdict} ({details})")


def file_checks(folder: Path, max_mib: float) -> Iterator[Remark]:
    """Remarks on files of a folder of rows that are damaged or don't belong there."""
    import pyarrow.parquet as pq

    found = [(one.path, f"{one.kind}: {one.detail}") for one in store.check(folder)]
    shards = store.Store(folder).shards()
    if not shards:
        found.append((folder, "no rows; bench run results=DIR makes some"))
    for path in set(shards) - {path for path, _ in found}:
        if extra := sorted(set(pq.read_schema(path).names) - set(COLUMNS)):
            found.append((path, f"unknown columns: {', '.join(extra)}"))
    for place in (folder / store.PREDICTIONS).glob("[!.]*"):
        predictions = Predictions(place.parent, place.name)
        predictions.done()
        found += [(place, text) for text in predictions.warnings]
    size = 0
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        answers = name.startswith(f"{store.PREDICTIONS}/") and path.suffix == ".jsonl"
        if path.is_symlink():
            found.append((path, "a link; accepted are files"))
        elif path.is_file():
            size += path.stat().st_size
            if any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield Remark(Level.LOOK, name, "hidden; bench results merge leaves such files out")
            elif path.suffix not in KEPT and not answers:
                kinds = ".parquet, .md and predictions/**.jsonl"
                found.append((path, f"doesn't belong here: accepted are {kinds}"))
    if size > max_mib * (1 << 20):
        found.append((folder, f"{size / (1 << 20):.1f} MiB in all; at most {max_mib:g}"))
    for path, text in sorted(found):
        yield Remark(Level.WRONG, str(path.relative_to(folder)), text)


def _other_hosts(rows: Rows, folders: Sequence[Path]) -> Iterator[Remark]:
    """Remarks on figures that lie far from those of other hosts at the same cell."""
    by_cell: dict[str, list[Row]] = defaultdict(list)
    same_cells = {"cell_key": {row["cell_key"] for row in rows}}
    for found in map(store.Store, folders):
        # One column first: few folders have a row of these cells.
        if found.rows(["cell_key"], same_cells).num_rows:
            for row in found.rows(store.LIGHT, same_cells).to_pylist():
                by_cell[row["cell_key"]].append(row)
    for row in rows:
        others = [one for one in by_cell[row["cell_key"]] if one["host_id"] != row["host_id"]]
        other = query.best(others or [row])
        for check in verify.compare_rows(other, row):
            if check.verdict == Agreement.DISAGREES:
                host = f"host {short_host(other['host_id'])} (row {other['row_id'][:12]})"
                text = f"{check.figure} {check.here}, but {check.stored} on {host}: {check.reason}"
                level = Level.WRONG if check.figure == "quality" else Level.LOOK
                yield Remark(level, row["row_id"][:12], text)


# What follows from a row's measurements.

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
        "mem_agree": row_facts.mem_agree(row),
        "kv_ratio_16bit": row_facts.kv_ratio_16bit(row),
        **row_facts.memory_ratios(row),
    }


def _of_scores(row: Row, _: Path) -> Mapping[str, Any]:
    low, chance = row["ci_lo"], row["chance"]
    own, other = row["weights_sha256"], row["base_weights_sha256"]
    return {
        **derived_columns.compared_scores(row),
        "value": json.loads(row["metrics"] or "{}").get("value"),
        "quality_comparison": row_facts.compared(own, other),
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
