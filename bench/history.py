"""What git knows of a folder of rows: commits, and the rows as they were before a branch."""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.rows import Row
from bench.store import Store

BRANCHES = ("origin/main", "main", "origin/master", "master")


class CantCompare(Exception):
    """Why git can't be asked: one line."""


@dataclass(frozen=True)
class Repository:
    root: Path

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The checkout that a folder lies in. Raises CantCompare."""
        said = _git(folder, "rev-parse", "--show-toplevel")
        if said is None:
            raise CantCompare("not in a git checkout: neither commits nor earlier rows are checked")
        return cls(Path(said.decode().strip()))

    def has(self, sha: str) -> bool:
        """Whether this is a commit of the repository."""
        plain = len(sha) >= 7 and all(c in "0123456789abcdef" for c in sha)
        return plain and _git(self.root, "cat-file", "-e", f"{sha}^{{commit}}") is not None

    def rows_before(self, folder: Path, branch: str | None) -> tuple[str, list[Row]]:
        """The merge base with a branch, and the rows that the folder had in it. Raises
        CantCompare."""
        names = [branch] if branch else list(BRANCHES)
        commit = next((c for c in map(self._merge_base, names) if c), None)
        if commit is None:
            raise CantCompare(f"no merge base with {' or '.join(names)}: earlier rows not checked")
        inside = folder.resolve().relative_to(self.root.resolve())
        listed = _git(self.root, "ls-tree", "-r", "-z", "--name-only", commit, "--", str(inside))
        paths = [name for name in (listed or b"").decode().split("\0") if name.endswith(".parquet")]
        with tempfile.TemporaryDirectory() as copy:
            for number, path in enumerate(paths):
                held = _git(self.root, "cat-file", "blob", f"{commit}:{path}")
                Path(copy, f"rows-{number:06}.parquet").write_bytes(held or b"")
            rows: list[Row] = Store(copy).rows().to_pylist() if paths else []
        return commit, rows

    def _merge_base(self, branch: str) -> str | None:
        said = _git(self.root, "merge-base", "--", "HEAD", branch)
        return said.decode().strip() if said else None


def _git(folder: Path, *words: str) -> bytes | None:
    """What git says; None when it fails. Variables of a git hook would point elsewhere."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, check=True, env=clean).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
