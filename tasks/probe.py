"""Asks the hub whether what the YAMLs say of it is so: repositories, revisions, files, sizes.

Facts that could not be checked without a network are marked `unverified` in a task's YAML;
`bench fetch --probe` runs this over all tasks on a networked machine. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from tasks.sources import first_line


@dataclass(frozen=True)
class Finding:
    """What the hub has of one file or pattern. `problem` is empty if all is as the YAML says.

    commit       what the revision stands for now: pin this
    unverified   the YAML doesn't claim to have been checked
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


def probe(task: Any) -> list[Finding]:
    """One finding for each file or pattern of `task.hub`; none if the task has no hub source.
    A repository that can't be reached is a finding with a problem, not an error."""
    hub = getattr(task, "hub", None)
    if not hub:
        return []
    from huggingface_hub import HfApi

    repo, revision = hub["repo"], hub.get("revision") or "main"
    given = [hub["file"]] if "file" in hub else list(hub["files"].values())
    patterns = [one for some in given for one in ([some] if isinstance(some, str) else some)]
    about = {
        "task": task.name,
        "repo": repo,
        "revision": revision,
        "unverified": bool(hub.get("unverified")),
    }
    try:
        info = HfApi().dataset_info(repo, revision=revision, files_metadata=True)
    except Exception as error:  # the library lets errors of its HTTP client through
        return [Finding(pattern=one, problem=first_line(error), **about) for one in patterns]
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    found = []
    for pattern in patterns:
        held = [size for name, size in sizes.items() if fnmatch(name, pattern)]
        problem = "" if held else f"no such file among {len(sizes)}"
        found.append(
            Finding(pattern=pattern, files=len(held), bytes=sum(held), commit=info.sha or "",
                    problem=problem, **about)
        )  # fmt: skip
    return found


def table(findings: Sequence[Finding]) -> str:
    """Findings as lines of text, one a pattern."""
    head = ("task", "repo", "revision", "file", "files", "MiB", "commit", "verified", "problem")
    rows = [head] + [
        (
            f.task, f.repo, f.revision, f.pattern, str(f.files), f"{f.bytes / 2**20:.1f}",
            f.commit[:12], "no" if f.unverified else "yes", f.problem or "–",
        )
        for f in findings
    ]  # fmt: skip
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
