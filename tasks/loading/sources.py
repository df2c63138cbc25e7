"""Local files of a benchmark: where they are, and their sha256."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tasks.base import DataError

T = TypeVar("T")

_HASHES: dict[tuple[str, int, int], str] = {}


def sha256(path: Path) -> str:
    """The sha256 of a file as hex, computed once per process for the same path, size and time of
    modification."""
    status = path.stat()
    key = (str(path.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _HASHES:
        with path.open("rb") as file:
            _HASHES[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _HASHES[key]


def sha256_of(paths: Sequence[Path]) -> str:
    """The sha256 of several files: for one file its digest, for more the sha256 of their
    digests."""
    if len(paths) == 1:
        return sha256(paths[0])
    return hashlib.sha256("".join(map(sha256, paths)).encode()).hexdigest()


def named_for(patterns: str | Sequence[str], length: int) -> list[str]:
    """The patterns with {length} replaced by 4k for 4096, or 1M for 1048576."""
    name = f"{length >> 20}M" if length >= 1 << 20 else f"{length >> 10}k"
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return [pattern.replace("{length}", name) for pattern in patterns]


def local_file(folder: Path | None, benchmark: str, name: str) -> Path:
    """`<folder>/<benchmark>/<name>` or `<folder>/<name>`. Raises DataError naming both paths if
    neither exists."""
    if folder is None:
        raise DataError(f"data=local needs data.dir, the folder that holds {benchmark}/{name}")
    candidates = (Path(folder) / benchmark / name, Path(folder) / name)
    for path in candidates:
        if path.is_file():
            return path
    raise DataError(
        f"no file {candidates[0]} (nor {candidates[1]}); "
        f"data.dir is the folder that holds {benchmark}/{name}"
    )


def local_files(folder: Path | None, benchmark: str, patterns: str | Sequence[str]) -> list[Path]:
    """The files that match the first pattern with any match, in `<folder>/<benchmark>` or, without
    such a folder, in `<folder>`. `**` matches any number of folders. Raises DataError naming the
    patterns if none matches."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if folder is None:
        raise DataError(f"data=local needs data.dir, the folder with {benchmark}/{patterns[0]}")
    root = Path(folder) / benchmark
    if not root.is_dir():
        # Search <folder> recursively only if it is the benchmark's own folder: files of another
        # benchmark below it may have the same names.
        is_own = Path(folder).resolve().name == benchmark
        root = Path(folder)
        patterns = patterns if is_own else [pattern.removeprefix("**/") for pattern in patterns]
    for pattern in patterns:
        if matches := sorted(path for path in root.glob(pattern) if path.is_file()):
            return matches
    raise DataError(f"no file {Path(folder) / benchmark}/{' or '.join(patterns)}")


def each_once(paths: Sequence[Path]) -> list[Path]:
    """The paths, unchanged. Raises DataError for two files with the same name, which are copies."""
    by_name: dict[str, Path] = {}
    for path in paths:
        if (other := by_name.setdefault(path.name, path)) != path:
            raise DataError(
                f"{path} and {other} have the same name; expected one: data.dir=FOLDER takes the "
                "files of one folder"
            )
    return [*paths]


def of_size(
    by_size: Mapping[int, T], size: int, missing: str, folder: Path | None, hint: str = ""
) -> T:
    """The set of this size; if there is none, raises DataError with what is `missing` and the
    existing sizes."""
    if size not in by_size:
        sizes = ", ".join(map(str, sorted(by_size)))
        raise DataError(f"{missing}; {folder} has {sizes or 'none'}{hint}")
    return by_size[size]


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
