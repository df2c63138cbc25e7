"""Files of a benchmark on the Hugging Face hub.

Only `fetch` uses the network. It records its downloads in a manifest, with which `fetched` compares
the files in the cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tasks.base import DataError, FetchError
from tasks.loading.sources import first_line, named_for, sha256


def fetch(task: Any, progress: Callable[[str], None] = print, split: str | None = None) -> Path:
    """Download a task's files into the Hugging Face cache, and record their commit and sha256 in
    the manifest: all files or none.

    `task.hub` has `repo`, `revision`, and either `file` or `files`, patterns by split, in which
    {length} is replaced by the task's length; `split` None takes the split that is scored.
    `progress` receives lines of text; huggingface_hub draws its own progress bar. HF_ENDPOINT and
    HF_HOME are respected. Returns the path of the first file.

    Raises DataError for a repository or file that the hub doesn't have, FetchError if the hub can't
    be reached.
    """
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    repo, patterns, revision = _location(task, split)
    if task.hub.get("unverified"):
        progress(f"{task.name}: no commit is pinned for {repo}; taking {revision}")
    entries, paths = {}, []
    for name in _matching_names(repo, patterns, revision):
        progress(f"{task.name}: fetching {name} of {repo} at {revision}")
        path = _download(repo, name, revision)
        entry = {"commit": _commit(path), "sha256": sha256(path), "bytes": path.stat().st_size}
        entries[_key(repo, revision, name)] = entry
        paths.append(path)
        progress(f"{task.name}: {entry['bytes']} bytes, sha256 {entry['sha256']}")
    manifest = manifest_path()
    manifest.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(manifest.with_suffix(".lock")):
        temporary = manifest.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(_manifest() | entries, indent=2, sort_keys=True) + "\n")
        temporary.replace(manifest)
    return paths[0]


def fetched(task: Any, split: str | None = None) -> list[Path]:
    """The files that `fetch` downloaded for a split, without the network. Raises DataError if they
    haven't been fetched or differ from the manifest."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    repo, patterns, revision = _location(task, split)
    command = f"bench fetch {task.name}"
    if "file" not in task.hub and split not in (None, task.default_split):
        command += f" --split {split}"
    if "{length}" in str(task.hub):
        command += f" --length {task.length}"
    if revision != "main":
        command += f" --revision {revision}"
    prefix, manifest = _key(repo, revision, ""), _manifest()
    names = sorted(key.removeprefix(prefix) for key in manifest if key.startswith(prefix))
    paths = []
    for name in (name for name in names if any(fnmatch(name, pattern) for pattern in patterns)):
        entry = manifest[prefix + name]
        try:
            path = Path(
                hf_hub_download(
                    repo, name, repo_type="dataset", revision=entry["commit"], local_files_only=True
                )
            )
        except LocalEntryNotFoundError:
            raise DataError(
                f"{name} of {repo} at {entry['commit']} is no longer in the cache: {command}"
            ) from None
        if (digest := sha256(path)) != entry["sha256"]:
            raise DataError(
                f"{path} has sha256 {digest}, but {entry['sha256']} was fetched: {command}"
            )
        paths.append(path)
    if not paths:
        raise DataError(
            f"{' or '.join(patterns)} of {repo} at {revision} hasn't been fetched: {command}"
        )
    return paths


def is_missing(error: Exception) -> bool:
    """Whether the hub answered that a repository, revision or file doesn't exist or isn't public;
    False if it couldn't be reached."""
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError):
        return False
    missing = (
        errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError,
        errors.HFValidationError,
    )  # fmt: skip
    return isinstance(error, missing)


def manifest_path() -> Path:
    """The record of downloads: `$HF_HOME/longctx-bench/manifest.json`."""
    from huggingface_hub.constants import HF_HOME

    return Path(HF_HOME) / "longctx-bench" / "manifest.json"


def _download(repo: str, name: str, revision: str) -> Path:
    from huggingface_hub import hf_hub_download

    def download(force: bool) -> Path:
        try:
            return Path(
                hf_hub_download(
                    repo, name, repo_type="dataset", revision=revision, force_download=force
                )
            )
        except (OSError, ValueError) as error:  # the base classes of huggingface_hub's errors
            raise _fetch_error(error, f"can't fetch {name} of {repo} at {revision}") from None

    path = download(force=False)
    entry = _manifest().get(_key(repo, revision, name))
    # huggingface_hub doesn't verify cached files, so damaged ones need a forced download.
    if entry and entry["commit"] == _commit(path) and entry["sha256"] != sha256(path):
        path = download(force=True)
    return path


def _fetch_error(error: Exception, what: str) -> DataError:
    kind = DataError if is_missing(error) else FetchError
    return kind(f"{what}: {first_line(error)}")


def _matching_names(repo: str, patterns: Sequence[str], revision: str) -> list[str]:
    """The files of a repository that match. The repository is listed only if a pattern has a
    wildcard."""
    if not any(mark in pattern for pattern in patterns for mark in "*?["):
        return list(patterns)
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(repo, repo_type="dataset", revision=revision)
    except Exception as error:  # huggingface_hub doesn't wrap errors of its HTTP client
        raise _fetch_error(error, f"can't list {repo} at {revision}") from None
    names = [name for name in sorted(files) if any(fnmatch(name, one) for one in patterns)]
    if not names:
        raise DataError(f"{repo} at {revision} has no file {' or '.join(patterns)}")
    return names


def _manifest() -> dict[str, dict[str, Any]]:
    path = manifest_path()
    if not path.is_file():
        return {}
    try:
        manifest: dict[str, dict[str, Any]] = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path} is not json ({error}); delete it and fetch again") from None
    return manifest


def _location(task: Any, split: str | None = None) -> tuple[str, list[str], str]:
    """(repository, patterns of file names, revision) of a task's split on the hub."""
    if not task.hub:
        raise DataError(f"{task.name} has no hub source; use data=embedded or data=local")
    files = task.hub.get("files") or {}
    wanted = split or getattr(task, "default_split", "validation")
    if "file" not in task.hub and wanted not in files:
        raise DataError(
            f"{task.name} has no split '{wanted}' on the hub; it has {', '.join(files)}"
        )
    patterns = task.hub.get("file") or files[wanted]
    return (
        task.hub["repo"],
        named_for(patterns, getattr(task, "length", 0)),
        task.hub.get("revision") or "main",
    )


def _key(repo: str, revision: str, name: str) -> str:
    return f"datasets/{repo}@{revision}/{name}"


def _commit(path: Path) -> str:
    """The commit in a cache path …/snapshots/<commit>/<file>."""
    return path.parts[path.parts.index("snapshots") + 1]
