"""bench submit-check DIR: whether a contributed folder of rows may be taken in.

Everything that can be checked from the rows themselves, from git and from other hosts' rows; then
some cells are measured again on this machine.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from bench import rows, store, verify
from bench.columns import COLUMNS
from bench.commands import parser_for
from bench.errors import RequestError
from bench.history import CantCompare, Repository
from bench.rowcheck import faults
from bench.rows import Row

MAX_MIB = 10
KEPT = (".parquet", ".md")
"""Kinds of files that a folder of rows has, beside its predictions."""

Level = Literal["wrong", "look", "note"]


class Finding(NamedTuple):
    """`wrong` refuses the folder, `look` asks a person, `note` only tells."""

    level: Level
    where: str
    text: str


def main(arguments: Sequence[str]) -> int:
    """Exit code 1 when something is wrong."""
    parser = parser_for(
        "submit-check",
        "check a contributed folder of rows: docs/submitting.md says what for",
        "bench submit-check results/reference\n"
        "bench submit-check contributed --base origin/main --sample 4\n",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument(
        "--base", metavar="REF", help="branch that it's to be merged into (origin/main, main)"
    )
    parser.add_argument(
        "--against", type=Path, action="append", metavar="DIR",
        help="other hosts' rows (results/reference)",
    )  # fmt: skip
    parser.add_argument(
        "--sample", type=int, default=2, metavar="N", help="cells to measure again here (2)"
    )
    parser.add_argument("--max-mib", type=float, default=MAX_MIB, metavar="MIB")
    verify.add_options(parser)
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        raise RequestError(f"no folder {options.folder}; bench run results={options.folder} … "
                           "makes one")  # fmt: skip
    against = options.against or [path for path in (Path("results/reference"),) if path.exists()]
    found = list(_told(_checks(options.folder, options.base, against, options.max_mib)))
    good = {row["row_id"]: row for row in _rows(options.folder)}
    wrong = {finding.where for finding in found if finding.level == "wrong"}
    if options.sample > 0:
        fit = [r for r in good.values() if r["status"] == "ok" and r["row_id"][:12] not in wrong]
        sampled = _sample(fit, options.sample, options.data_dir, options.deadline_s)
        found += _told(sampled)
    refused = sum(finding.level == "wrong" for finding in found)
    looks = sum(finding.level == "look" for finding in found)
    print(f"{options.folder}: {len(good)} rows, {refused} wrong, {looks} to look at")
    return 1 if refused or not good else 0


def _told(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Each finding is printed as soon as it's known."""
    for finding in findings:
        print(f"{finding.level:<6} {finding.where}: {finding.text}", flush=True)
        yield finding


def _checks(
    folder: Path, base: str | None, against: Sequence[Path], max_mib: float
) -> Iterator[Finding]:
    print(f"checking {folder} …", file=sys.stderr)
    yield from _files(folder, max_mib)
    yield from _shards(folder)
    stored = _rows(folder)
    if not stored:
        yield Finding("wrong", str(folder), "no rows; bench run results=DIR makes some")
    for row in stored:
        yield from (Finding(level, row["row_id"][:12], text) for level, text in faults(row, folder))
    yield from _history(folder, base, stored)
    yield from _drift(stored, [*against, folder])


def _rows(folder: Path) -> list[Row]:
    found: list[Row] = store.Store(folder).rows().to_pylist()
    return found


def _files(folder: Path, max_mib: float) -> Iterator[Finding]:
    size = 0
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        predictions = name.startswith(f"{store.PREDICTIONS}/") and path.suffix == ".jsonl"
        if path.is_symlink():
            yield Finding("wrong", name, "a link; a folder of rows holds its files itself")
        elif path.is_file():
            size += path.stat().st_size
            if hidden:
                yield Finding("look", name, "hidden; bench results merge leaves such files out")
            elif path.suffix not in KEPT and not predictions:
                kinds = "rows (.parquet), predictions/**.jsonl and notes (.md)"
                yield Finding("wrong", name, f"doesn't belong here: accepted are {kinds}")
    if size > max_mib * (1 << 20):
        told = f"{size / (1 << 20):.1f} MiB in all; at most {max_mib:g}"
        yield Finding("wrong", str(folder), told)


def _shards(folder: Path) -> Iterator[Finding]:
    import pyarrow.parquet as pq

    for problem in store.check(folder):
        name = str(problem.path.relative_to(folder))
        yield Finding("wrong", name, f"{problem.kind}: {problem.detail}")
    for path in store.Store(folder).shards():
        try:
            names = set(pq.read_schema(path).names)
        except Exception:  # told by store.check
            continue
        if extra := sorted(names - set(COLUMNS)):
            where = str(path.relative_to(folder))
            yield Finding("wrong", where, f"unknown columns: {', '.join(extra)}")


def _history(folder: Path, base: str | None, stored: Sequence[Row]) -> Iterator[Finding]:
    """Commits that exist, and rows of the merge base that are still what they were."""
    try:
        repository = Repository.around(folder)
        for sha in sorted({row["code_sha"] for row in stored if row["code_sha"]}):
            if not repository.has(sha):
                some = next(row for row in stored if row["code_sha"] == sha)
                text = f"commit {sha[:12]} of its code isn't in this repository"
                yield Finding("wrong", some["row_id"][:12], text)
        commit, before = repository.rows_before(folder, base)
    except CantCompare as error:
        yield Finding("look", str(folder), str(error))
        return
    now = {row["row_id"]: row for row in stored}
    for row in before:
        name = row["row_id"][:12]
        if row["row_id"] not in now:
            yield Finding("wrong", name, f"the row of {commit[:12]} is gone")
        elif changed := [c for c in row if row[c] != now[row["row_id"]][c]]:
            text = f"the row of {commit[:12]} was changed in {', '.join(changed[:4])}"
            yield Finding("wrong", name, text)
    yield Finding("note", str(folder), f"{len(before)} rows are in {commit[:12]} already")


def _drift(stored: Sequence[Row], folders: Sequence[Path]) -> Iterator[Finding]:
    """Figures that lie far from those of other hosts at the same cell."""
    known: dict[str, dict[str, Row]] = {}
    keys = {row["cell_key"] for row in stored}
    for folder in folders:
        for row in store.Store(folder).rows(store.LIGHT, {"cell_key": keys}).to_pylist():
            known.setdefault(row["cell_key"], {})[row["row_id"]] = row
    for row in stored:
        others = [
            r for r in known.get(row["cell_key"], {}).values() if r["host_id"] != row["host_id"]
        ]
        if not others:
            continue
        other = rows.best(others)
        for answer in verify.compare(other, row):
            if answer.verdict == "disagrees":
                text = (
                    f"{answer.figure} {answer.here}, but {answer.stored} on host "
                    f"{(other['host_id'] or '?')[:8]} (row {other['row_id'][:12]}): {answer.why}"
                )
                level: Level = "wrong" if answer.figure == "quality" else "look"
                yield Finding(level, row["row_id"][:12], text)


def _sample(
    stored: Sequence[Row], count: int, data_dir: Path | None, deadline_s: float
) -> Iterator[Finding]:
    """Cells measured again, drawn so that nobody knows before which."""
    level: dict[str, Level] = {"agrees": "note", "disagrees": "wrong", "can't tell": "look"}
    chosen = random.SystemRandom().sample(list(stored), min(count, len(stored)))
    for row in chosen:
        answers = verify.verify(row, data_dir, deadline_s)
        verify.tell(row, answers)
        said = verify.overall(answers)
        told = "; ".join(f"{a.figure} {a.verdict} {a.why}".strip() for a in answers)
        yield Finding(level[said], row["row_id"][:12], f"measured again: {said} ({told})")
