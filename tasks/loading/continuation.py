"""A text in two parts: a prompt, and the tokens after it that a model is made to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.base import Encoded


@dataclass(frozen=True)
class Continued(Encoded):
    """A prompt, `ids`, whose continuation is read and not generated: the prediction for it is the
    likelihood of these token ids, as tasks.metrics.likelihood has it."""

    continuation: Sequence[int] = ()
