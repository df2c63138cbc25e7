"""Interface of a family that makes the KV cache of a text before it reads questions on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from methods.base import SequenceInfo


@runtime_checkable
class Conversing(Protocol):
    """question_after  the question of a prompt, from its first VIP token on, is read once the KV
    cache of the text before it is made; for batches of one row
    """

    question_after: bool

    def converse(
        self, ids: Tensor, sequence: SequenceInfo, questions: Sequence[Tensor], max_new_tokens: int
    ) -> list[str]:
        """Greedy answers to a prompt ids [1, n] and to each of the questions [1, t] after it, which
        are read over the cache of all that came before, the model's own answers included."""
        ...
