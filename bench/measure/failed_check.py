"""What a failed integrity check raises, and keeps: a method may catch what is raised below it."""

from __future__ import annotations

from typing import NoReturn


class IntegrityError(Exception):
    """A method failed a check."""


_failures: list[str] = []


def fail_check(reason: str) -> NoReturn:
    """Raises IntegrityError and records it, as a method may catch what is raised below it."""
    _failures.append(f"integrity check failed: {reason}")
    raise IntegrityError(_failures[-1])


def raise_recorded() -> None:
    """Raises the first IntegrityError that was raised earlier and caught by the method."""
    if _failures:
        raise IntegrityError(_failures[0])
