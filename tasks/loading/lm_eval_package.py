"""The package lm_eval (lm-evaluation-harness), which is optional: whether it is installed, and where
its tasks are."""

from __future__ import annotations

import difflib
import functools
import importlib.util
import re
from pathlib import Path

PACKAGE, EXTRA = "lm_eval", "lm-eval"
DECLARED = re.compile(rb"^(task|group):[ \t]*[\"']?([^\"'\s#\[{]+)", re.MULTILINE)
"""The line of a YAML that names its task or its group of tasks."""


def missing() -> str:
    """What is missing and how it is installed, in one line; "" where the package is there."""
    if importlib.util.find_spec(PACKAGE):
        return ""
    return (
        f"lm-evaluation-harness is not installed: pip install 'longctx-bench[{EXTRA}]', in a "
        f"checkout: pip install -e '.[{EXTRA}]'"
    )


def version() -> tuple[int, ...]:
    """Of the package, such as (0, 4, 13)."""
    import importlib.metadata

    return tuple(map(int, re.findall(r"\d+", importlib.metadata.version(PACKAGE))[:3]))


def tasks_folder() -> Path | None:
    """Where its own tasks are; None where the package isn't installed."""
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.origin).parent / "tasks" if found and found.origin else None
