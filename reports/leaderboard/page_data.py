"""Boards as the data of the page's script: one list for each column, which compresses well.

Figures are rounded to the precision shown: times in ms, memory in MiB, scores to one decimal,
losses to three.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bench.host.host import has_older_id, short_host
from bench.rows.comparison import Comparison
from bench.rows.row_facts import (
    comparison,
    comparison_text,
    engine_only,
    faster_as_good,
    keeps_quality,
    kernel_names,
    longest_input,
    stated_verdict,
    training_text,
)
from bench.status import QualityComparison
from bench.units import finite, score_digits
from reports.leaderboard.boards import Board, BoardEntry
from reports.leaderboard.facts import family, machine, papers, processor
from reports.looks import VANILLA, looks
from reports.rendering import visible
from reports.rows import Row
from reports.wording import own_engine

BINS = 8
LEVELS = 4
MIB = 1 << 20
MOST_TEXT = 600
"""Characters of one text of a row; of an error message the end is kept."""
ID = 12
ROW_ID = 8
"""Characters of a hash, and at least of a row's id, which has to be unique."""
SHARED = ("method", "task", "model", "length", "seed", "device")
"""Words of a command that rows share as the names of columns."""
HOST = (
    "host_id", "cpu_model", "instruction_sets", "cores_phys", "gpu_name", "virt", "os_kernel",
    "python", "torch",
)  # fmt: skip
TEXTS = (
    "lat_reason", "lat_process_reason", "lat_ratio_ci_method", "mem_reason", "fid_reason",
    "noise_reason", "baseline_reason", "engine_reason", "kernel", "engine_kernel",
    "status_detail", "method_params", "mem_method", "ci_method", "launcher", "tpot_reason",
    "kv_reason",
)  # fmt: skip


class Pool:
    """Values that many rows share, each stored once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._index: dict[Any, int] = {}

    def __call__(self, value: Any) -> int | None:
        if value is None:
            return None
        key = tuple(value.items()) if isinstance(value, dict) else value
        if key not in self._index:
            self._index[key] = len(self.values)
            self.values.append(value)
        return self._index[key]


def page_data(boards: Sequence[Board]) -> dict[str, Any]:
    """The data of the page's script; assets/1-data.js turns columns into rows. A column without any
    value is left out."""
    pools = {name: Pool() for name in ("host", "text", "command")}
    entries = [(number, entry) for number, board in enumerate(boards) for entry in board.entries]
    methods = {entry.row["method"] or "" for _, entry in entries} | {VANILLA}
    rows = [_row(number, entry, pools) for number, entry in entries]
    columns: dict[str, list[Any]] = {}
    for place, row in enumerate(rows):
        for name, value in row.items():
            if name not in columns:
                columns[name] = [None] * len(rows)
            columns[name][place] = value
    return {
        "boards": [_board(number, board, pools) for number, board in enumerate(boards)],
        "rows": {"id": _short_ids([entry.row["row_id"] for _, entry in entries]), **columns},
        "looks": {short(name): look[:2] for name, look in looks(methods).items()},
        "papers": papers(methods),
        **{name: pool.values for name, pool in pools.items()},
    }


def _short_ids(ids: Sequence[str]) -> list[str]:
    for letters in (ROW_ID, ID):
        if len(short := {text[:letters]: None for text in ids}) == len(ids):
            return [*short]
    return [*ids]


def _board(number: int, board: Board, pools: dict[str, Pool]) -> dict[str, Any]:
    """A board; `vanilla` is the row of its baseline, if that isn't among its rows."""
    key = board.key
    named = {
        "benchmark": board.benchmark, "kind": board.kind, "task": key["task"],
        "length": key["length"], "model": key["model"], "weights": key["weights_kind"],
        "source": key["data_source"], "split": key["split"], "n": key["n_samples_planned"],
        "device": key["device"], "dtype": key["dtype"], "threads": key["threads"],
        "batch": key["batch"], "seed": key["seed"], "measure": key["measure"],
        "question": key["question"], "turns": key["turns"],
        "data": (key["dataset_sha256"] or "")[:ID], "title": board.title, "how": board.how,
        "least": any(entry.row["higher_is_better"] is False for entry in board.entries),
        "family": family(board.entries[0].row),
        "machine": pools["host"](_host(board.entries[0].row)), "host": short_host(key["host_id"]),
        "lacks": board.lacks, "atChance": board.at_chance,
        "vanilla": board.baseline and _row(number, board.baseline, pools),
    }  # fmt: skip
    return {
        name: short(v) for name, v in named.items() if v is not None and v is not False and v != ""
    }


def _row(number: int, entry: BoardEntry, pools: dict[str, Pool]) -> dict[str, Any]:
    """The columns of one row, without missing figures."""
    row = entry.row
    peak, base_peak = peak_bytes(row), peak_bytes(row, "base_")
    text = {name: short(row[name]) for name in TEXTS if row[name]}
    if row["base_value"] is not None:
        text |= {"compared": comparison_text(row)}
        text |= {arm: short(training_text(row[arm])) for arm in ("training", "base_training")}
    digits = score_digits(row["higher_is_better"])
    code = (row["code_sha"] or "")[:ID] + (" with changes" if row["code_dirty"] else "")
    figures = {
        "board": number,
        "kernel": kernel_names(row["kernel"]) or None,
        "method": short(row["method"] or ""),
        "label": short(entry.label),
        "oracle": entry.oracle or None,
        "status": row["status"],
        "stage": row["status_stage"],
        "first": entry.rank and entry.rank[0],
        "last": entry.rank and entry.rank[1],
        "beaten": sum(hit << bit for bit, hit in enumerate(entry.beaten)),
        "metric": row["metric"],
        "value": _round(row["value"], digits),
        "lo": _round(row["ci_lo"], digits),
        "hi": _round(row["ci_hi"], digits),
        "reach": _round(reach(row), digits),
        "chance": _round(row["chance"], digits),
        "atChance": row["at_chance"] or None,
        "n": row["n_scored"],
        "lost": row["n_failed"] or None,
        "base": _round(row["base_value"], digits),
        "baseLo": _round(row["base_ci_lo"], digits),
        "baseHi": _round(row["base_ci_hi"], digits),
        "ownWeights": comparison(row) == QualityComparison.TRAINED_EACH or None,
        "diffLo": _round(row["value_diff_ci_lo"], digits),
        "diffHi": _round(row["value_diff_ci_hi"], digits),
        "ratio": _round(row["lat_ratio"], 3),
        "ratioLo": _round(row["lat_ratio_ci_lo"], 3),
        "ratioHi": _round(row["lat_ratio_ci_hi"], 3),
        "p": _figures(row["lat_ratio_p"], 2),
        "pairs": row["lat_n_pairs"],
        "processes": row["lat_n_processes"],
        "spread": _figures(row["lat_process_sd_pct"], 2),
        "verdict": row["lat_verdict"],
        "engineOnly": engine_only(row) or None,
        "asGood": (faster_as_good(row) and not entry.oracle) or None,
        "kept": stated_verdict(row),
        "keeps": keeps_quality(row) or None,
        "detectable": _round(row["value_diff_detectable"], digits),
        **(_ratio("engine", Comparison.of(row, "engine")) if own_engine(row) else {}),
        **_decoding(row),
        "noise": _figures(row["lat_aa_noise_pct"], 2),
        "ms": _per(row["lat_median_ns"], 1e6),
        "baseMs": _per(row["lat_base_median_ns"], 1e6),
        "times": _histogram(row["lat_samples_ns"]),
        "baseTimes": _histogram(row["lat_base_samples_ns"]),
        "memory": _round(row["mem_ratio"], 3),
        "mib": _per(peak, MIB),
        "baseMib": _per(base_peak, MIB),
        "error": _figures(row["fid_rel_l2"], 3),
        "top1": _round(row["fid_top1_agree"], 3),
        "kl": _figures(row["fid_kl_mean"], 3),
        "longest": longest_input(row),
        "cut": _round(row["truncated_frac"], 3),
        "created": (row["created_utc"] or "")[:16],
        "weights": (row["weights_sha256"] or "")[:ID],
        "code": code,
        "noisy": bool(row["noisy"]),
        "command": pools["command"](_template(row)),
        "host": pools["host"](_host(row)),
        "text": pools["text"](text or None),
    }
    return {name: value for name, value in figures.items() if value is not None}


def _decoding(row: Row) -> dict[str, Any]:
    """Times of a new token and of the whole answer, and the cost of the cache of keys and
    values."""
    figures: dict[str, Any] = {}
    if row["tpot_median_ns"] is not None or row["answer_median_ns"] is not None:
        for name in ("tpot", "answer"):
            one = Comparison.of(row, name)
            figures |= _ratio(name, one)
            figures[f"{name}Ms"] = _per(one.median_ns, 1e6)
            figures[f"{name}BaseMs"] = _per(one.base_median_ns, 1e6)
        figures["tpotPairs"] = row["tpot_n_pairs"]
    for name, column in (("held", "kv_bytes_held"), ("read", "kv_bytes_read_per_token")):
        figures[name] = _round(row[f"kv_{name}_ratio"], 3)
        figures[f"{name}Mib"] = _per(row[column], MIB)
        figures[f"{name}BaseMib"] = _per(row[f"base_{column}"], MIB)
    figures["held16"] = _round(row["kv_ratio_16bit"], 3)
    return figures | {
        "tokens": row["new_tokens"],
        "decodeTop1": _round(row["decode_top1_agree"], 3),
    }


def _host(row: Row) -> dict[str, Any]:
    """The known facts about the row's machine."""
    return _host_facts(*(row[name] for name in (*HOST, "device")))


@functools.lru_cache(maxsize=4096)
def _host_facts(*values: Any) -> dict[str, Any]:
    row: Row = dict(zip((*HOST, "device"), values, strict=True))
    facts = {name: short(row[name]) for name in HOST if row[name] is not None}
    facts |= {"machine": short(machine(row)), "processor": short(processor(row))}
    return facts | ({"older": True} if has_older_id(row["host_id"]) else {})


def _ratio(name: str, one: Comparison) -> dict[str, Any]:
    """A ratio with the ends of its interval and its verdict, in columns that begin with this
    name."""
    ends = {"": one.ratio, "Lo": one.ratio_ci_lo, "Hi": one.ratio_ci_hi}
    rounded = {f"{name}{end}": _round(value, 3) for end, value in ends.items()}
    return rounded | {f"{name}Verdict": one.verdict}


def peak_bytes(row: Row, arm: str = "") -> int | None:
    """Peak memory of one cold forward, on the GPU if the row has it."""
    gpu: int | None = row[f"{arm}gpu_alloc_delta_bytes"]
    host: int | None = row[f"{arm}rss_peak_delta_bytes"]
    return host if gpu is None else gpu


def reach(row: Row) -> float | None:
    """The wider side of the score's interval. None without an interval, or for one without a width:
    equal scores don't show the uncertainty."""
    value, lo, hi = (finite(row[name]) for name in ("value", "ci_lo", "ci_hi"))
    if value is None or lo is None or hi is None or lo == hi:
        return None
    return float(max(hi - value, value - lo))


def short(value: Any) -> Any:
    """A text of at most MOST_TEXT characters, all visible. Its end is kept, since errors report the
    cause there."""
    return _short_text(value) if isinstance(value, str) else value


@functools.lru_cache(maxsize=1 << 14)
def _short_text(text: str) -> str:
    return visible("… " + text[-MOST_TEXT:] if len(text) > MOST_TEXT else text)


def _template(row: Row) -> str | None:
    """The command with values of the board and the row replaced by {name}, so that rows share
    it."""
    command: str | None = short(row["command"])
    if command is None or "{" in command:
        return command
    words = []
    for word in command.split(" "):
        name, equals, value = word.partition("=")
        same = equals and name in SHARED and value == str(row[name]) == short(value)
        words.append(f"{name}={{{name}}}" if same else word)
    return " ".join(words)


def _histogram(samples: Sequence[int] | None) -> list[Any] | None:
    """[least ms, greatest ms, number, heights]: BINS equal bins from the least to the greatest, one
    digit each; the largest digit is LEVELS."""
    if not samples:
        return None
    ordered = sorted(samples)
    lo, hi = ordered[0], ordered[-1]
    width = (hi - lo) or 1
    inner = (bisect_left(ordered, lo - (-k * width // BINS)) for k in range(1, BINS))
    counts = [end - start for start, end in pairwise((0, *inner, len(ordered)))]
    highest = max(counts)
    heights = "".join([str(-(-count * LEVELS // highest)) for count in counts])
    return [_figures(lo / 1e6, 3), _figures(hi / 1e6, 3), len(samples), heights]


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else _figures(value / unit, 4)


def _figures(value: float | None, digits: int) -> float | None:
    """The value rounded to `digits` significant digits; None if it isn't finite."""
    if value is None or not math.isfinite(value):
        return None
    return _whole(float(f"{value:.{digits}g}"))


def _round(value: float | None, decimals: int) -> float | None:
    return None if value is None or not math.isfinite(value) else _whole(round(value, decimals))


def _whole(value: float) -> float:
    whole = int(value)
    return whole if value == whole else value
