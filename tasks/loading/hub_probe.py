"""Compares the hub settings in conf/task/*.yaml with the hub: repositories, revisions and files.

Settings that couldn't be checked without a network are marked `unverified` in a task's YAML;
`bench fetch --probe` checks all tasks on a machine with a network. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from tasks.loading.sources import first_line, named_for


@dataclass(frozen=True)
class HubCheck:
    """The result of comparing one file or pattern with the hub. `problem` is empty if it agrees
    with the YAML.

    commit       the current commit of the revision, which can be pinned
    unverified   whether the YAML marks the setting as unchecked
    """

    task: str
    repo: str
    revision: str
    pattern: str
    files: int = 0
    bytes: int = 0
    commit: str = ""
    unverified: bool = False
    problem: str = ""


def probe(task: Any) -> list[HubCheck]:
    """One HubCheck for each file or pattern of `task.hub`; none if the task has no hub source. A
    repository that can't be reached is reported as a problem; no error is raised."""
    hub = getattr(task, "hub", None)
    if not hub:
        return []
    from huggingface_hub import HfApi

    repo, revision = hub["repo"], hub.get("revision") or "main"
    values = [hub["file"]] if "file" in hub else list(hub["files"].values())
    patterns = [one for value in values for one in named_for(value, getattr(task, "length", 0))]
    common = {
        "task": task.name,
        "repo": repo,
        "revision": revision,
        "unverified": bool(hub.get("unverified")),
    }
    try:
        info = HfApi().dataset_info(repo, revision=revision, files_metadata=True)
    except Exception as error:  # huggingface_hub doesn't wrap errors of its HTTP client
        return [HubCheck(pattern=one, problem=first_line(error), **common) for one in patterns]
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    checks = []
    for pattern in patterns:
        matches = [size for name, size in sizes.items() if fnmatch(name, pattern)]
        problem = "" if matches else f"no such file among {len(sizes)}"
        checks.append(
            HubCheck(pattern=pattern, files=len(matches), bytes=sum(matches),
                     commit=info.sha or "", problem=problem, **common)
        )  # fmt: skip
    return checks


def table(checks: Sequence[HubCheck]) -> str:
    """A text table with a line per HubCheck."""
    head = ("task", "repo", "revision", "file", "files", "MiB", "commit", "verified", "problem")
    rows = [head] + [
        (
            c.task, c.repo, c.revision, c.pattern, str(c.files), f"{c.bytes / 2**20:.1f}",
            c.commit[:12], "no" if c.unverified else "yes", c.problem or "–",
        )
        for c in checks
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
