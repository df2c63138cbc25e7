"""Whether a contributed folder of rows may be accepted: what can be checked from the rows
themselves, from git and from other hosts' rows; then some cells are measured again here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.compare import git_history, verify
from bench.compare.row_checks import Level, faults
from bench.compare.verify import Agreement, FigureCheck
from bench.execution.supervisor import Progress
from bench.host.host import short_host
from bench.status import Status
from bench.store import query, store
from bench.store.columns import COLUMNS, Row, value_of

KEPT = (".parquet", ".md")
"""Suffixes of the files in a folder of rows, beside its predictions."""


class Remark(NamedTuple):
    """What a check says of a row or a file."""

    level: Level
    where: str
    text: str


class Accepted(NamedTuple):
    """The rows of a folder that are in the branch to merge into already: they stay as they are, and
    what is wrong with one is told and refuses no contribution. `missing` says why there are none
    to compare with."""

    commit: str = ""
    rows: Sequence[Row] = ()
    missing: str = ""

    @property
    def ids(self) -> set[str]:
        return {row["row_id"] for row in self.rows}


def accepted_rows(folder: Path, base: str | None) -> Accepted:
    """`base` is the branch to merge into."""
    try:
        return Accepted(*git_history.rows_before(folder, base))
    except git_history.NoHistory as error:
        return Accepted(missing=str(error))


def stored_checks(
    folder: Path, accepted: Accepted, against: Sequence[Path], max_mib: float, progress: Progress
) -> Iterator[Remark]:
    """All checks that measure nothing; `against` are folders of other hosts' rows."""
    yield from _files(folder, max_mib)
    yield from _shards(folder)
    rows = stored_rows(folder)
    history = list(_history(folder, accepted, rows))
    changed = {remark.where for remark in history if remark.level == Level.WRONG}
    kept = {row_id for row_id in accepted.ids if row_id[:12] not in changed}
    unknown = git_history.unknown_commits(folder, {row["code_sha"] or "" for row in rows} - {""})
    if not rows:
        yield Remark(Level.WRONG, str(folder), "no rows; bench run results=DIR makes some")
    for number, row in enumerate(rows):
        progress("rows", number, len(rows))
        found = [*faults(row, folder)]
        if row["code_sha"] in unknown:
            text = f"commit {row['code_sha']:.12} of its code isn't in this repository"
            found.append((Level.WRONG, text))
        for level, text in found:
            if level == Level.WRONG and row["row_id"] in kept:
                level, text = Level.LOOK, f"{text} (accepted in {accepted.commit[:12]})"
            yield Remark(level, row["row_id"][:12], text)
    yield from history
    yield from _other_hosts(rows, [*against, folder])


def stored_rows(folder: Path) -> list[Row]:
    """All rows of the folder, with every column."""
    rows: list[Row] = store.Store(folder).rows().to_pylist()
    return rows


def draw_sample(
    rows: Sequence[Row], count: int, remarks: Sequence[Remark], accepted: Accepted
) -> list[Row]:
    """Sound new rows to measure again, drawn so that nobody can know before which."""
    wrong = {remark.where for remark in remarks if remark.level == Level.WRONG}
    new = [row for row in rows if row["row_id"] not in accepted.ids]
    sound = [r for r in new if r["status"] == Status.OK and r["row_id"][:12] not in wrong]
    return random.SystemRandom().sample(sound, min(count, len(sound)))


def measured_again(row: Row, checks: Sequence[FigureCheck]) -> Remark:
    """What a second measurement of a row means for the folder."""
    levels = {
        Agreement.AGREES: Level.NOTE,
        Agreement.DISAGREES: Level.WRONG,
        Agreement.CANT_TELL: Level.LOOK,
    }
    verdict = verify.overall(checks)
    details = "; ".join(f"{c.figure} {c.verdict} {c.reason}".strip() for c in checks)
    return Remark(levels[verdict], row["row_id"][:12], f"measured again: {verdict} ({details})")


def _files(folder: Path, max_mib: float) -> Iterator[Remark]:
    size = 0
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        predictions = name.startswith(f"{store.PREDICTIONS}/") and path.suffix == ".jsonl"
        if path.is_symlink():
            yield Remark(Level.WRONG, name, "a link; a folder of rows holds its files itself")
        elif path.is_file():
            size += path.stat().st_size
            if any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield Remark(Level.LOOK, name, "hidden; bench results merge leaves such files out")
            elif path.suffix not in KEPT and not predictions:
                kinds = "rows (.parquet), predictions/**.jsonl and notes (.md)"
                yield Remark(Level.WRONG, name, f"doesn't belong here: accepted are {kinds}")
    if size > max_mib * (1 << 20):
        text = f"{size / (1 << 20):.1f} MiB in all; at most {max_mib:g}"
        yield Remark(Level.WRONG, str(folder), text)


def _shards(folder: Path) -> Iterator[Remark]:
    import pyarrow.parquet as pq

    for problem in store.check(folder):
        name = str(problem.path.relative_to(folder))
        yield Remark(Level.WRONG, name, f"{problem.kind}: {problem.detail}")
    for path in store.Store(folder).shards():
        try:
            names = set(pq.read_schema(path).names)
        except Exception:  # reported by store.check
            continue
        if extra := sorted(names - set(COLUMNS)):
            where = str(path.relative_to(folder))
            yield Remark(Level.WRONG, where, f"unknown columns: {', '.join(extra)}")


def _history(folder: Path, accepted: Accepted, stored: Sequence[Row]) -> Iterator[Remark]:
    """Whether the accepted rows are still what they were."""
    if accepted.missing:
        yield Remark(Level.LOOK, str(folder), accepted.missing)
        return
    now, commit = {row["row_id"]: row for row in stored}, accepted.commit[:12]
    for row in accepted.rows:
        name = row["row_id"][:12]
        if row["row_id"] not in now:
            yield Remark(Level.WRONG, name, f"the row of {commit} is gone")
        elif changed := [c for c in row if value_of(row, c) != value_of(now[row["row_id"]], c)]:
            text = f"the row of {commit} was changed in {', '.join(changed[:4])}"
            yield Remark(Level.WRONG, name, text)
    text = f"{len(accepted.rows)} rows are in {commit} already, and aren't measured again"
    yield Remark(Level.NOTE, str(folder), text)


def _other_hosts(rows: Sequence[Row], folders: Sequence[Path]) -> Iterator[Remark]:
    """Figures that lie far from those of other hosts at the same cell."""
    by_cell: dict[str, dict[str, Row]] = {}
    keys = {row["cell_key"] for row in rows}
    for folder in folders:
        for row in store.Store(folder).rows(store.LIGHT, {"cell_key": keys}).to_pylist():
            by_cell.setdefault(row["cell_key"], {})[row["row_id"]] = row
    for row in rows:
        same_cell = by_cell.get(row["cell_key"], {}).values()
        others = [other for other in same_cell if other["host_id"] != row["host_id"]]
        if not others:
            continue
        other = query.best(others)
        for check in verify.compare_rows(other, row):
            if check.verdict == Agreement.DISAGREES:
                text = (
                    f"{check.figure} {check.here}, but {check.stored} on host "
                    f"{short_host(other['host_id'])} (row {other['row_id'][:12]}): {check.reason}"
                )
                level = Level.WRONG if check.figure == "quality" else Level.LOOK
                yield Remark(level, row["row_id"][:12], text)
