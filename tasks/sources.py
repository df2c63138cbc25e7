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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from tasks.base import DataError

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


# --- a local folder ---------------------------------------------------------------------------


def local_file(folder: Path | None, benchmark: str, name: str) -> Path:
    """`<folder>/<benchmark>/<name>`, or `<folder>/<name>`. DataError names both if neither is."""
    if folder is None:
        raise DataError(f"data=local needs data.dir, the folder that holds {benchmark}/{name}")
    tried = (Path(folder) / benchmark / name, Path(folder) / name)
    for path in tried:
        if path.is_file():
            return path
    raise DataError(f"no file {tried[0]} (nor {tried[1]})")


# --- the hub ----------------------------------------------------------------------------------


def fetch(task: Any, progress: Callable[[str], None] = print) -> Path:
    """Download the task's file (`task.hub`: repo, file, revision) into the Hugging Face cache and
    record its commit and sha256 in the manifest. `progress` is given lines for the user; the hub's
    library draws its own bar. HF_ENDPOINT and HF_HOME are respected. Raises DataError."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import WeakFileLock

    repo, name, revision = _hub(task)
    if task.hub.get("unverified"):
        progress(f"{task.name}: no commit is pinned for {repo}; taking {revision}")
    progress(f"{task.name}: fetching {name} of {repo} at {revision}")

    def download(force: bool) -> Path:
        try:
            return Path(
                hf_hub_download(
                    repo, name, repo_type="dataset", revision=revision, force_download=force
                )
            )
        except (OSError, ValueError) as error:  # the library's own errors are all of these two
            why = first_line(error)
            raise DataError(f"can't fetch {name} of {repo} at {revision}: {why}") from None

    path = download(force=False)
    known = _manifest().get(_key(task))
    # The library takes a cached file as it is, so one that was damaged since would stay so.
    if known and known["commit"] == _commit(path) and known["sha256"] != sha256(path):
        path = download(force=True)
    entry = {"commit": _commit(path), "sha256": sha256(path), "bytes": path.stat().st_size}
    manifest = manifest_path()
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(manifest.with_suffix(".lock")):
        entries = _manifest() | {_key(task): entry}
        written = manifest.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")
        written.replace(manifest)
    progress(f"{task.name}: {entry['bytes']} bytes, sha256 {entry['sha256']}")
    return path


def fetched(task: Any) -> Path:
    """The file that `fetch` brought, without the network. DataError when it hasn't been fetched
    or isn't the one in the manifest."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, name, revision = _hub(task)
    entry = _manifest().get(_key(task))
    if entry is None:
        raise DataError(
            f"{name} of {repo} at {revision} hasn't been fetched: bench fetch {task.name}"
        )
    try:
        path = Path(
            hf_hub_download(
                repo, name, repo_type="dataset", revision=entry["commit"], local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        raise DataError(
            f"{name} of {repo} at {entry['commit']} is no longer in the cache: "
            f"bench fetch {task.name}"
        ) from None
    if (found := sha256(path)) != entry["sha256"]:
        raise DataError(
            f"{path} has sha256 {found}, but {entry['sha256']} was fetched: bench fetch {task.name}"
        )
    return path


def manifest_path() -> Path:
    """What was fetched: `$HF_HOME/longctx-bench/manifest.json`."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "longctx-bench" / "manifest.json"


def _manifest() -> dict[str, dict[str, Any]]:
    path = manifest_path()
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not json ({error}); delete it and fetch again") from None


def _hub(task: Any) -> tuple[str, str, str]:
    if not task.hub:
        raise DataError(f"{task.name} has no hub source; use data=embedded or data=local")
    return task.hub["repo"], task.hub["file"], task.hub.get("revision") or "main"


def _key(task: Any) -> str:
    repo, name, revision = _hub(task)
    return f"datasets/{repo}@{revision}/{name}"


def _commit(path: Path) -> str:
    """The commit in a cache path …/snapshots/<commit>/<file>."""
    return path.parts[path.parts.index("snapshots") + 1]


def first_line(error: BaseException) -> str:
    """What a message says of another library's error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# --- zips of json lines -----------------------------------------------------------------------


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[tuple[zipfile.ZipFile, zipfile.ZipInfo]]:
    """The zip and one member of it, after all its members have been checked."""
    try:
        opened = zipfile.ZipFile(archive)
    except BROKEN_ZIP as error:
        raise DataError(f"{archive} is not a whole zip file: {first_line(error)}") from None
    with opened:
        for info in opened.infolist():
            path = PurePosixPath(info.filename.replace("\\", "/"))
            # Nothing is unpacked here, but such a zip is not what the benchmark published.
            if path.is_absolute() or ".." in path.parts or stat.S_ISLNK(info.external_attr >> 16):
                raise DataError(f"{archive} has an unsafe member '{info.filename}'")
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
            file: BinaryIO
            with opened.open(info) as file:
                for line, raw in enumerate(file, start=1):
                    where = f"{archive}: {member} line {line}"
                    if raw.strip():
                        yield where, json_object(raw, where)
        except BROKEN_ZIP as error:
            raise DataError(
                f"{archive}: {member} is cut short or damaged after line {line}: {first_line(error)}"
            ) from None


def json_object(raw: bytes, where: str) -> dict[str, Any]:
    """The object of one json line. DataError says where it stands and what is wrong."""
    try:
        found = json.loads(raw)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: broken json: {first_line(error)}") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: found {type(found).__name__}, expected an object with columns")
    return found


def text(record: dict[str, Any], column: str, where: str) -> str:
    """A column that must hold text. DataError says where, and what was found."""
    if column not in record:
        raise DataError(f"{where}: no column '{column}'; found {', '.join(record) or 'none'}")
    if not isinstance(record[column], str):
        found = type(record[column]).__name__
        raise DataError(f"{where}: column '{column}' holds {found}, expected text")
    try:
        record[column].encode()
    except UnicodeEncodeError as error:  # json may spell half a character, tokenizers stop at it
        raise DataError(f"{where}: column '{column}' is not Unicode: {error.reason}") from None
    return record[column]
