"""Files of rows: where they lie, whether they are whole, and their lines one at a time.

A benchmark's file lies in a local folder or in the Hugging Face cache. `fetch` alone touches the
network; it writes what it got into a manifest, and reading compares the file with that.
Zips are read in place and as a stream: SCROLLS' largest is 8 GB.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tasks.base import DataError, FetchError

# What zipfile raises in the middle of a member that is cut short or damaged.
BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
_HASHES: dict[tuple[str, int, int], str] = {}


def sha256(path: Path) -> str:
    """sha256 of a file as hex. A file with the same size and time is hashed once a process."""
    about = path.stat()
    key = (str(path.resolve()), about.st_size, about.st_mtime_ns)
    if key not in _HASHES:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        _HASHES[key] = digest.hexdigest()
    return _HASHES[key]


def sha256_of(paths: Sequence[Path]) -> str:
    """sha256 of several files together: of one file its own."""
    if len(paths) == 1:
        return sha256(paths[0])
    return hashlib.sha256("".join(map(sha256, paths)).encode()).hexdigest()


# --- a local folder ---------------------------------------------------------------------------


def local_file(folder: Path | None, benchmark: str, name: str) -> Path:
    """`<folder>/<benchmark>/<name>`, or `<folder>/<name>`. DataError names both if neither is."""
    if folder is None:
        raise DataError(f"data=local needs data.dir, the folder that holds {benchmark}/{name}")
    tried = (Path(folder) / benchmark / name, Path(folder) / name)
    for path in tried:
        if path.is_file():
            return path
    raise DataError(
        f"no file {tried[0]} (nor {tried[1]}); data.dir is the folder that holds {benchmark}/{name}"
    )


def local_files(folder: Path | None, benchmark: str, patterns: str | Sequence[str]) -> list[Path]:
    """The files of the first pattern that matches any in `<folder>/<benchmark>`, or in `<folder>`;
    `**` stands for any folders. DataError names the patterns if none does."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if folder is None:
        raise DataError(f"data=local needs data.dir, the folder with {benchmark}/{patterns[0]}")
    place = Path(folder) / benchmark
    if not place.is_dir():
        # The folder itself is searched through only if it is the benchmark's: another benchmark's
        # files in it may have the same names.
        own = Path(folder).resolve().name == benchmark
        place = Path(folder)
        patterns = patterns if own else [pattern.removeprefix("**/") for pattern in patterns]
    for pattern in patterns:
        if found := sorted(path for path in place.glob(pattern) if path.is_file()):
            return found
    raise DataError(f"no file {Path(folder) / benchmark}/{' or '.join(patterns)}")


# --- the hub ----------------------------------------------------------------------------------


def fetch(task: Any, progress: Callable[[str], None] = print, split: str | None = None) -> Path:
    """Download the task's files into the Hugging Face cache and record their commit and sha256 in
    the manifest, all of them or none. `task.hub` has repo, revision and either `file` or `files`,
    patterns by split, of which `split` (None: the one that is scored) is taken. `progress` is given
    lines for the user; the hub's library draws its own bar. HF_ENDPOINT and HF_HOME are respected.
    Returns the first file. Raises DataError for what the hub doesn't have, FetchError where it
    can't be asked."""
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    repo, patterns, revision = _hub(task, split)
    if task.hub.get("unverified"):
        progress(f"{task.name}: no commit is pinned for {repo}; taking {revision}")
    entries, paths = {}, []
    for name in _names(repo, patterns, revision):
        progress(f"{task.name}: fetching {name} of {repo} at {revision}")
        path = _download(repo, name, revision)
        entry = {"commit": _commit(path), "sha256": sha256(path), "bytes": path.stat().st_size}
        entries[_key(repo, revision, name)] = entry
        paths.append(path)
        progress(f"{task.name}: {entry['bytes']} bytes, sha256 {entry['sha256']}")
    manifest = manifest_path()
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(manifest.with_suffix(".lock")):
        written = manifest.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(_manifest() | entries, indent=2, sort_keys=True) + "\n")
        written.replace(manifest)
    return paths[0]


def _download(repo: str, name: str, revision: str) -> Path:
    from huggingface_hub import hf_hub_download

    def download(force: bool) -> Path:
        try:
            return Path(
                hf_hub_download(
                    repo, name, repo_type="dataset", revision=revision, force_download=force
                )
            )
        except (OSError, ValueError) as error:  # the library's own errors are all of these two
            raise _refused(error, f"can't fetch {name} of {repo} at {revision}") from None

    path = download(force=False)
    known = _manifest().get(_key(repo, revision, name))
    # The library takes a cached file as it is, so one that was damaged since would stay so.
    if known and known["commit"] == _commit(path) and known["sha256"] != sha256(path):
        path = download(force=True)
    return path


def _refused(error: Exception, what: str) -> DataError:
    kind = DataError if not_there(error) else FetchError
    return kind(f"{what}: {first_line(error)}")


def not_there(error: Exception) -> bool:
    """Whether the hub has answered that it has no such thing, or not for everyone."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):  # it couldn't be asked
        return False
    known = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError)
    return isinstance(error, (*known, errors.EntryNotFoundError, errors.HFValidationError))


def _names(repo: str, patterns: Sequence[str], revision: str) -> list[str]:
    """The files of a repository that match. Nothing is listed where no pattern has a wildcard."""
    if not any(mark in pattern for pattern in patterns for mark in "*?["):
        return list(patterns)
    from huggingface_hub import HfApi

    try:
        held = HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)
    except Exception as error:  # the library lets errors of its HTTP client through
        raise _refused(error, f"can't list {repo} at {revision}") from None
    found = [name for name in sorted(held) if any(fnmatch(name, one) for one in patterns)]
    if not found:
        raise DataError(f"{repo} at {revision} has no file {' or '.join(patterns)}")
    return found


def fetched(task: Any, split: str | None = None) -> list[Path]:
    """The files that `fetch` brought for a split, without the network. DataError when they haven't
    been fetched or aren't those in the manifest."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, patterns, revision = _hub(task, split)
    again = f"bench fetch {task.name}"
    if "file" not in task.hub and split not in (None, task.default_split):
        again += f" --split {split}"
    start, manifest = _key(repo, revision, ""), _manifest()
    names = sorted(key.removeprefix(start) for key in manifest if key.startswith(start))
    paths = []
    for name in (name for name in names if any(fnmatch(name, one) for one in patterns)):
        entry = manifest[start + name]
        try:
            path = Path(
                hf_hub_download(
                    repo, name, repo_type="dataset", revision=entry["commit"], local_files_only=True
                )
            )
        except LocalEntryNotFoundError:
            raise DataError(
                f"{name} of {repo} at {entry['commit']} is no longer in the cache: {again}"
            ) from None
        if (found := sha256(path)) != entry["sha256"]:
            raise DataError(
                f"{path} has sha256 {found}, but {entry['sha256']} was fetched: {again}"
            )
        paths.append(path)
    if not paths:
        raise DataError(
            f"{' or '.join(patterns)} of {repo} at {revision} hasn't been fetched: {again}"
        )
    return paths


def manifest_path() -> Path:
    """What was fetched: `$HF_HOME/longctx-bench/manifest.json`."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "longctx-bench" / "manifest.json"


def _manifest() -> dict[str, dict[str, Any]]:
    path = manifest_path()
    if not path.is_file():
        return {}
    try:
        found: dict[str, dict[str, Any]] = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not json ({error}); delete it and fetch again") from None
    return found


def _hub(task: Any, split: str | None = None) -> tuple[str, list[str], str]:
    """(repo, patterns of the files, revision) of what the hub has of a task's split."""
    if not task.hub:
        raise DataError(f"{task.name} has no hub source; use data=embedded or data=local")
    held = task.hub.get("files") or {}
    wanted = split or getattr(task, "default_split", "validation")
    if "file" not in task.hub and wanted not in held:
        raise DataError(f"{task.name} has no split '{wanted}' on the hub; it has {', '.join(held)}")
    patterns = task.hub.get("file") or held[wanted]
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    return task.hub["repo"], patterns, task.hub.get("revision") or "main"


def _key(repo: str, revision: str, name: str) -> str:
    return f"datasets/{repo}@{revision}/{name}"


def _commit(path: Path) -> str:
    """The commit in a cache path …/snapshots/<commit>/<file>."""
    return path.parts[path.parts.index("snapshots") + 1]


def first_line(error: BaseException) -> str:
    """What a message says of another library's error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- zips of json lines -----------------------------------------------------------------------


def open_zip(archive: Path) -> zipfile.ZipFile:
    """A zip whose members have been checked. It is never unpacked into files, but one with members
    that climb out is not what a benchmark published: DataError."""
    try:
        opened = zipfile.ZipFile(archive)
    except BROKEN_ZIP as error:
        raise DataError(f"{archive} is not a whole zip file: {first_line(error)}") from None
    for info in opened.infolist():
        path = PurePosixPath(info.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(info.external_attr >> 16):
            opened.close()
            raise DataError(
                f"{archive} has an unsafe member '{info.filename}'; expected names that stay "
                "within the zip"
            )
    return opened


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
    """The zip and one member of it."""
    with open_zip(archive) as opened:
        try:
            found = opened.getinfo(member)
        except KeyError:
            held = ", ".join(sorted(opened.namelist())[:8]) or "nothing"
            raise DataError(f"{archive} has no member '{member}'; it holds {held}") from None
        yield opened, found


def member_bytes(archive: Path, member: str) -> int:
    """Uncompressed size of a member."""
    with _opened(archive, member) as (_, info):
        return info.file_size


def records(archive: Path, member: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, object) for each line of a member of json lines, read as a stream; `where` names
    file, member and line for error messages. Blank lines are skipped."""
    with _opened(archive, member) as (opened, info):
        line = 0
        try:
            file: IO[bytes]
            with opened.open(info) as file:
                for line, raw in enumerate(file, start=1):
                    where = f"{archive}: {member} line {line}"
                    if raw.strip():
                        yield where, json_object(raw, where)
        except BROKEN_ZIP as error:
            raise DataError(
                f"{archive}: {member} is cut short or damaged after line {line}: "
                f"{first_line(error)}"
            ) from None


def json_object(raw: bytes, where: str) -> dict[str, Any]:
    """The object of one json line. DataError says where it stands and what is wrong."""
    try:
        found = json.loads(raw)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: broken json at column {error.colno}: {error.msg}; expected one object"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: broken json: {first_line(error)}; expected one object") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: found {type(found).__name__}, expected an object with columns")
    return found


def text(record: dict[str, Any], column: str, where: str) -> str:
    """A column that must hold text. DataError says where, and what was found."""
    if column not in record:
        raise DataError(f"{where}: no column '{column}'; found {', '.join(record) or 'none'}")
    found = record[column]
    if not isinstance(found, str):
        kind = type(found).__name__
        raise DataError(f"{where}: column '{column}' holds {kind}, expected text")
    try:
        found.encode()
    except UnicodeEncodeError as error:  # json may spell half a character, tokenizers stop at it
        raise DataError(f"{where}: column '{column}' is not Unicode: {error.reason}") from None
    return found
