"""The tables of times that a decoder's methods took in turns (`bench.measure.turns`), and of what
sparse prefills lose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from bench.rows.comparison import Comparison, Name
from bench.status import Status
from bench.units import counted
from reports.grids import NONE, Listing, Table, text_grid, tokens
from reports.looks import VANILLA, looks
from reports.rendering import TextGrid
from reports.result_tables import milliseconds, number
from reports.rows import Row


@dataclass(frozen=True, kw_only=True)
class _ByLength(Table):
    """A line for each method: by length the ratio of a time to vanilla's, whose own is in ms, and
    `more`, columns of the row of the greatest length and of vanilla's at that length.

    time  name of the comparison
    head  of the columns of times
    """

    time: Name
    head: str
    more: Mapping[str, Callable[[Row, Row], str]]

    def table(self, rows: Sequence[Row]) -> TextGrid:
        cells = {(row["method"], row["length"]): row for row in rows}
        lengths = sorted({length for _, length in cells})

        def ratio(length: int, method: str) -> str:
            row = cells.get((method, length))
            return NONE if row is None else _ratio(Comparison.of(row, self.time))

        def of_longest(cell: Callable[[Row, Row], str], method: str) -> str:
            row, base = (cells.get((name, lengths[-1])) for name in (method, VANILLA))
            return NONE if row is None or base is None else cell(row, base)

        columns = {f"{self.head}, {tokens(length)}": partial(ratio, length) for length in lengths}
        columns |= {head: partial(of_longest, cell) for head, cell in self.more.items()}
        return text_grid(self.title(rows[0]), "method", looks(m for m, _ in cells), columns)


def _ratio(time: Comparison) -> str:
    """A ratio with its interval and verdict; without a ratio the time itself."""
    if time.ratio is None:
        return NONE if time.median_ns is None else milliseconds(time.median_ns)
    ends = f"{time.ratio_ci_lo:.2f} … {time.ratio_ci_hi:.2f}"
    return f"×{time.ratio:.2f} ({ends}) {time.verdict}"


def _attention_ns(row: Row) -> float:
    """The attention's part of a row's time to the first token, by its share of a walk through the
    layers."""
    return float(row["attend_ns"] / row["encode_ns"] * row["lat_median_ns"])


def _threads(row: Row) -> str:
    return f"{counted(row['threads'], 'thread')}, {row['dtype']}"


TOKENS = _ByLength(
    title=_threads,
    where={"experiment": "kv_times", "status": Status.OK},
    each=("model", "threads", "dtype"),
    one_host=True,
    time="tpot",
    head="each token ÷ vanilla's",
    more={
        "held ÷ vanilla's": lambda row, _: number(row["kv_held_ratio"], 2, "×"),
        "held ÷ 16 bits": lambda row, _: number(row["kv_ratio_16bit"], 2, "×"),
        "read ÷ vanilla's": lambda row, _: number(row["kv_read_ratio"], 2, "×"),
    },
)
FIRST_TOKENS = _ByLength(
    title=_threads,
    where={"experiment": "sparse_prefill", "measure": "first_token", "status": Status.OK},
    each=("model", "threads", "dtype"),
    one_host=True,
    time="lat",
    head="first token ÷ vanilla's",
    more={
        "attention ÷ vanilla's": lambda row, base: number(
            _attention_ns(row) / _attention_ns(base), 2, "×"
        )
    },
)


def _loss(row: Row) -> str:
    """What the method adds to vanilla's nats per token, with its interval and verdict."""
    ends = f"{row['value_diff_ci_lo']:+.4f} … {row['value_diff_ci_hi']:+.4f}"
    return f"{row['value_diff']:+.4f} ({ends}) {row['quality_verdict']}"


PREFILL_LOSSES = Listing(
    where={
        "experiment": "sparse_prefill",
        "task": "perplexity",
        "method": lambda name: name != VANILLA,
        "status": Status.OK,
    },
    each=("model",),
    order=("length",),
    columns={
        "tokens": lambda row: f"{row['length']:,}",
        "method": lambda row: row["method"],
        "texts": lambda row: f"{row['n_scored']}",
        "vanilla's nats per token": lambda row: f"{row['base_value']:.3f}",
        "above them; quality": _loss,
    },
    numbers=frozenset({0, 2, 3}),
)
