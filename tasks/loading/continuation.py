"""A text in two parts: a prompt, and the tokens after it, which a model reads instead of
generating."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.base import Encoded


@dataclass(frozen=True)
class Continued(Encoded):
    """A prompt, `ids`, whose continuation is read and not generated: the prediction is the
    likelihood of these token ids, in the form of tasks.metrics.likelihood."""

    continuation: Sequence[int] = ()
