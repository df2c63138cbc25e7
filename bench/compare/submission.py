"""Whether a contributed folder of rows may be accepted: by its rows, git and other hosts' rows.
Then some cells are measured again here.
"""

from __future__ import annotations

import io
import random
import re
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from bench.compare import derivations, verify
from bench.compare.derivations import Level
from bench.compare.verify import Agreement, FigureCheck
from bench.execution.supervisor import Progress
from bench.host.host import git, short_host
from bench.rows import query, store
from bench.rows.columns import COLUMNS, Row, value_of
from bench.rows.predictions import Predictions
from bench.status import Status
from bench.units import counted

Rows = Sequence[Row]
Accepted = Mapping[str, Row]
KEPT = (".parquet", ".md")
"""Suffixes of the files in a folder of rows, in addition to its predictions."""
BRANCHES = ("origin/main", "main", "origin/master", "master")
CLAIMED = ("*_samples_ns", "*bytes*", "fid_*", "*decode_*", "*ci_??", "*_process", "*_rel_l2")
"""Claimed columns that are named together."""


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
        faults, derived = derivations.checked(row, folder)
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
    keys = {row["cell_key"] for row in rows}
    for folder in folders:
        for row in store.Store(folder).rows(store.LIGHT, {"cell_key": keys}).to_pylist():
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
