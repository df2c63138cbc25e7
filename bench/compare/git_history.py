"""What git knows of a folder of rows: commits, and the rows as they were before a branch."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from bench.store.columns import Row
from bench.store.store import Store

BRANCHES = ("origin/main", "main", "origin/master", "master")


class NoHistory(Exception):
    """Why git has nothing to compare with: one line."""


def unknown_commits(folder: Path, hashes: set[str]) -> set[str]:
    """Those that are no hash of a commit in the folder's repository; none outside a checkout."""
    if not _is_checkout(folder):
        return set()
    is_hash = re.compile("[0-9a-f]{7,}").fullmatch
    return {
        sha
        for sha in hashes
        if not is_hash(sha) or _git(folder, "cat-file", "-e", f"{sha}^{{commit}}") is None
    }


def rows_before(folder: Path, branch: str | None) -> tuple[str, list[Row]]:
    """The merge base with a branch, and the rows that the folder had in it. Raises NoHistory."""
    if not _is_checkout(folder):
        raise NoHistory("not in a git checkout: neither commits nor earlier rows are checked")
    names = [branch] if branch else list(BRANCHES)
    bases = (_git(folder, "merge-base", "--", "HEAD", name) for name in names)
    commit = next((base.decode().strip() for base in bases if base), None)
    if commit is None:
        raise NoHistory(f"no merge base with {' or '.join(names)}: earlier rows not checked")
    listed = _git(folder, "ls-tree", "-r", "-z", "--name-only", commit, "--", ".") or b""
    paths = [name for name in listed.decode().split("\0") if name.endswith(".parquet")]
    with tempfile.TemporaryDirectory() as copy:
        for number, path in enumerate(paths):
            content = _git(folder, "cat-file", "blob", f"{commit}:./{path}")
            Path(copy, f"rows-{number:06}.parquet").write_bytes(content or b"")
        rows: list[Row] = Store(copy).rows().to_pylist()
    return commit, rows


def _is_checkout(folder: Path) -> bool:
    return _git(folder, "rev-parse", "--show-toplevel") is not None


def _git(folder: Path, *arguments: str) -> bytes | None:
    """git's output; None when it fails. A git hook's variables would misdirect it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, check=True, env=clean).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
