"""The papers' claims (reports/claims.yaml) next to the results of the stored rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from bench.rows.row_facts import is_lower_bound, longest_input
from reports.intervals import Measured
from reports.papers import verdicts
from reports.papers.measured import FUSED, UNFUSED
from reports.papers.table import PaperCell, PaperTable
from reports.papers.verdicts import PaperVerdict
from reports.rendering import TextGrid
from reports.rows import Row, created
from reports.wording import NONE

FILE = Path(__file__).parents[1] / "claims.yaml"
HEAD = ("", "claim", "model, weights", "printed ÷ unfused", "measured ÷ unfused", "÷ fused",
        "verdict", "rows")  # fmt: skip
DECIDED = (PaperVerdict.REPRODUCED, PaperVerdict.DIFFERS, PaperVerdict.UNDECIDED)


@dataclass(frozen=True)
class Claim:
    """One claim. `cells` are fields of the printed cells of `table` that decide it; `longest` names
    the method whose longest input is compared with unfused vanilla's, and the printed ratio of
    both. `why` is the reason why a measurement may differ."""

    name: str
    claim: str
    command: str
    why: str
    table: str = ""
    cells: Mapping[str, Any] = field(default_factory=dict)
    longest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """A claim and what was measured: ratios as method / vanilla, or a score if `is_ratio` is not
    set. `fused` is the ratio to fused attention."""

    claim: Claim
    verdict: PaperVerdict
    printed: float | None = None
    measured: Measured | None = None
    fused: float | None = None
    is_ratio: bool = True
    rows: tuple[str, ...] = ()
    reason: str = ""
    models: tuple[str, ...] = ()


def load_claims() -> list[Claim]:
    entries = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return [Claim(name=name, **entry) for name, entry in entries.items()]


def findings(tables: Iterable[PaperTable], probes: Sequence[Row]) -> list[Finding]:
    """Each claim with the result of the tables' rows; `probes` are the rows of longest inputs."""
    by_name = {table.definition.name: table for table in tables}
    return [
        _of_longest(claim, probes) if claim.longest else _of_cells(claim, by_name[claim.table])
        for claim in load_claims()
    ]


def _of_cells(claim: Claim, table: PaperTable) -> Finding:
    cells = [
        cell
        for cell in table.cells
        if all(getattr(cell.printed, name) == value for name, value in claim.cells.items())
    ]
    measured = [cell for cell in cells if cell.verdict in DECIDED and cell.measured]
    first = cells[0]
    if len(measured) < len(cells):
        left = next(cell for cell in cells if cell not in measured)
        some = [f"{len(measured)} of {len(cells)} cells are measured"] if measured else []
        why = "; ".join([*some, *filter(None, [left.reason])])
        return Finding(claim, left.verdict, _printed(cells), is_ratio=first.is_ratio, reason=why)
    printed, found = _printed(cells), _mean(measured)
    assert printed is not None
    margin = max(cell.printed.margin / (cell.printed.value or 1.0) for cell in cells)
    judge = verdicts.judge_ratio if first.is_ratio else verdicts.judge_score
    judgement = judge(printed, margin if first.is_ratio else first.printed.margin, found)
    if doubts := dict.fromkeys(doubt for cell in cells for doubt in cell.doubts):
        judgement = judgement._replace(verdict=PaperVerdict.UNDECIDED, reason="; ".join(doubts))
    ratios = [cell.to_fused for cell in measured if cell.to_fused is not None]
    fused = statistics.geometric_mean(ratios) if len(ratios) == len(measured) else None
    rows = [cell.row for cell in measured if cell.row]
    ids = tuple(dict.fromkeys(row["row_id"][:12] for row in rows))
    return Finding(
        claim, judgement.verdict, printed, found, fused, first.is_ratio, ids, judgement.reason,
        _models(rows),
    )  # fmt: skip


def _models(rows: Iterable[Row]) -> tuple[str, ...]:
    """The models of rows, each once, with the kind of their weights."""
    return tuple(dict.fromkeys(f"{row['model']}, {row['weights_kind']}" for row in rows))


def _printed(cells: Sequence[PaperCell]) -> float | None:
    """The geometric mean of printed ratios, or the printed score."""
    if not cells[0].is_ratio:
        return cells[0].printed.value
    ratios = [cell.ratio for cell in cells if cell.ratio]
    return statistics.geometric_mean(ratios) if ratios else None


def _mean(cells: Sequence[PaperCell]) -> Measured:
    """The geometric mean of ratios, with an interval no wider than the mean of theirs; a single
    score is returned unchanged."""
    found = [cell.measured for cell in cells if cell.measured]
    if not cells[0].is_ratio or len(found) == 1:
        return found[0]
    value = statistics.geometric_mean([one.value for one in found])
    if any(not one.lo or one.hi is None or math.isinf(one.hi) for one in found):
        return Measured(value, None, None)
    lo = statistics.geometric_mean([one.lo or 1.0 for one in found])
    hi = statistics.geometric_mean([one.hi or 1.0 for one in found])
    return Measured(value, lo, hi, min((one.n or 0) for one in found))


def _of_longest(claim: Claim, probes: Sequence[Row]) -> Finding:
    """unfused vanilla's longest input / the method's, on the host and model of the newest row, both
    for a forward or both for a training step."""
    printed = 1 / claim.longest["printed"]
    own = [row for row in probes if row["method"] == claim.longest["method"]]
    for row in sorted(own, key=created, reverse=True):
        beside = {
            other["method"]: other
            for other in sorted(probes, key=created)
            if all(other[name] == row[name] for name in SAME)
        }
        if UNFUSED in beside:
            unfused = beside[UNFUSED]["max_length_fit"] / row["max_length_fit"]
            fused = beside.get(FUSED)
            known = fused and not is_lower_bound(row) and not is_lower_bound(fused)
            ratio = fused["max_length_fit"] / row["max_length_fit"] if fused and known else None
            # Lengths are found by bisection: the true limit is between two lengths.
            lo = 0.0 if is_lower_bound(row) else unfused / STEP
            found = Measured(unfused, lo, unfused * STEP, 1)
            judgement = verdicts.judge_ratio(printed, 0.0, found)
            rows = (row["row_id"][:12], beside[UNFUSED]["row_id"][:12])
            reason = f"{row['method']} fits {longest_input(row)}" if lo == 0.0 else ""
            return Finding(
                claim, judgement.verdict, printed, found, ratio, True, rows, reason, _models([row])
            )
    return Finding(claim, PaperVerdict.NO_ROW, printed)


SAME = ("model", "host_id", "batch", "dtype", "device", "measure")
"""What rows share whose longest inputs are compared."""
STEP = 17 / 16
"""The longest input is searched to a sixteenth."""
COLUMNS = (
    "row_id", "created_utc", "status", "method", *SAME, "weights_kind", "max_length_fit",
    "max_length_end",
)  # fmt: skip


def claims_grid(found: Sequence[Finding]) -> TextGrid:
    """A numbered line for each claim."""
    lines = [
        (
            str(number), one.claim.claim, "; ".join(one.models) or NONE,
            _figure(one.printed, one.is_ratio), _interval(one.measured, one.is_ratio),
            _figure(one.fused, True), one.verdict, " ".join(one.rows) or NONE,
        )
        for number, one in enumerate(found, 1)
    ]  # fmt: skip
    return TextGrid("The papers' claims", HEAD, lines)


def notes(found: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """The command that repeats each claim, in the order of the lines, and the reason of its
    verdict, empty if there is none."""
    for one in found:
        reason = "" if one.verdict is PaperVerdict.NO_ROW else one.reason
        why = one.claim.why if one.verdict is PaperVerdict.DIFFERS else ""
        yield one.claim.command, ": ".join(filter(None, (reason, why)))


def _figure(value: float | None, is_ratio: bool) -> str:
    if value is None:
        return NONE
    return f"×{value:.3f}" if is_ratio else f"{value:.2f} (score)"


def _interval(measured: Measured | None, is_ratio: bool) -> str:
    text = _figure(measured and measured.value, is_ratio)
    if measured is None or measured.lo is None or measured.hi is None:
        return text
    digits = 3 if is_ratio else 2
    return f"{text} ({measured.lo:.{digits}f} … {measured.hi:.{digits}f})"
