"""Times of a pretrained decoder's methods next to vanilla's, by the processor that measured them:
whether a ratio from one processor holds on another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter

from bench.rows.comparison import Comparison, Name
from bench.status import Status
from reports.decoder_tables import COSTS
from reports.grids import Grid, Where, chosen
from reports.kv_board import FLOAT32
from reports.result_tables import PEERS
from reports.rows import Row
from reports.turn_tables import FIRST_TOKENS, compared
from reports.wording import vectors

ALIKE = {"dtype": FLOAT32, "threads": 1, "model": "smollm2-135m", "status": Status.OK}
TIMES: tuple[tuple[str, Name, Where], ...] = (
    ("each token with a cache", "tpot", COSTS),
    ("first token with sparse prefill", "lat", FIRST_TOKENS.where),
    ("first token of a system", "lat", PEERS.where),
    ("each token of a system", "tpot", PEERS.where),
)
"""What was timed, its comparison, and its rows."""


def by_processor(rows: Iterable[Row]) -> list[Row]:
    """A row for each time of a method (`timed`, and `comparison`, its name) on each `processor`;
    methods that one processor alone has timed at a length are left out."""
    found = list(_timed(rows))
    on = defaultdict(set)
    for row in found:
        on[_time(row)].add(row["processor"])
    return [row for row in found if len(on[_time(row)]) > 1]


def _timed(rows: Iterable[Row]) -> Iterator[Row]:
    alike = sorted(chosen(rows, ALIKE), key=itemgetter("length"))
    for timed, name, where in TIMES:
        for row in chosen(alike, where):
            processor = f"{row['cpu_model']} ({vectors(row)})"
            yield row | {"timed": timed, "comparison": name, "processor": processor}


def _time(row: Row) -> tuple[str, int, str]:
    return row["timed"], row["length"], row["method"]


def _ratio(row: Row) -> str:
    return compared(Comparison.of(row, row["comparison"]))


PROCESSORS = Grid(
    title=lambda row: f"{row['timed']}, {row['length']:,} tokens".capitalize(),
    each=("timed", "length"),
    column="processor",
    cell=_ratio,
)
