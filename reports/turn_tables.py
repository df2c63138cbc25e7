"""The tables of a decoder's methods that were timed in turns (`bench.measure.turns`), and of the
losses of sparse prefills."""

from __future__ import annotations

from functools import partial

from bench.rows.comparison import Comparison, Name
from bench.status import Status
from bench.units import counted
from reports.grids import Grid, tokens
from reports.looks import VANILLA
from reports.result_tables import milliseconds, number
from reports.rows import Row
from reports.wording import NONE


def _ratio(name: Name, row: Row) -> str:
    return compared(Comparison.of(row, name))


def compared(time: Comparison) -> str:
    """The ratio of two times with its interval and verdict; without a ratio the time."""
    if time.ratio is None:
        return NONE if time.median_ns is None else milliseconds(time.median_ns)
    ends = f"{time.ratio_ci_lo:.2f} … {time.ratio_ci_hi:.2f}"
    return f"×{time.ratio:.2f} ({ends}) {time.verdict}"


def _attention_ns(row: Row) -> float:
    """The attention's part of a row's time to the first token, from its share of a pass through the
    layers."""
    return float(row["attend_ns"] / row["encode_ns"] * row["lat_median_ns"])


def _threads(row: Row) -> str:
    return f"{counted(row['threads'], 'thread')}, {row['dtype']}"


TOKENS = Grid(
    title=_threads,
    where={"experiment": "kv_times", "measure": "tokens", "status": Status.OK},
    each=("model", "threads", "dtype"),
    one_host=True,
    column="length",
    head=lambda length: f"each token ÷ vanilla's, {tokens(length)}",
    cell=partial(_ratio, "tpot"),
    last={
        "held ÷ vanilla's": lambda row, _: number(row["kv_held_ratio"], 2, "×"),
        "held ÷ 16 bits": lambda row, _: number(row["kv_ratio_16bit"], 2, "×"),
        "read ÷ vanilla's": lambda row, _: number(row["kv_read_ratio"], 2, "×"),
    },
)
CACHES_FIRST_TOKENS = Grid(
    title=_threads,
    where={"experiment": "kv_times", "measure": "first_token", "status": Status.OK},
    each=("model", "threads", "dtype"),
    one_host=True,
    column="length",
    head=lambda length: f"first token ÷ vanilla's, {tokens(length)}",
    cell=partial(_ratio, "lat"),
)
FIRST_TOKENS = Grid(
    title=_threads,
    where={"experiment": "sparse_prefill", "measure": "first_token", "status": Status.OK},
    each=("model", "threads", "dtype"),
    one_host=True,
    column="length",
    head=tokens,
    cell=partial(_ratio, "lat"),
    last={
        "attention ÷ vanilla's": lambda row, base: number(
            _attention_ns(row) / _attention_ns(base), 2, "×"
        )
    },
)


PREFILL_LOSSES = Grid(
    where={
        "experiment": "sparse_prefill",
        "task": "perplexity",
        "method": lambda name: name != VANILLA,
        "status": Status.OK,
    },
    each=("model", "dtype"),
    column="length",
    head=tokens,
    cell=lambda row: (
        "{value_diff:+.4f} ({value_diff_ci_lo:+.4f} … {value_diff_ci_hi:+.4f}) "
        "{quality_verdict}".format_map(row)
    ),
)
