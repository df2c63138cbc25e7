"""Decoding in models that rebuild their cache at a certain length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.models.base import Decoding
from methods.base import SequenceInfo, Unsupported
from methods.parts.kv_cache import decodes_exactly


@dataclass
class ReadAnew(Decoding):
    """A batch of a model for which transformers' `generate` reads all tokens again once there are
    more than `past`: the cache is rebuilt from all of them.

    ids             [B, n] all tokens so far
    past            the length up to which the cache is kept
    prefill         reads all tokens of a batch into a new cache
    question_after  whether the prompt's question was read once the cache was made
    """

    ids: Tensor
    past: int
    prefill: Callable[[Tensor, SequenceInfo], Decoding]
    question_after: bool

    def step(self, ids: Tensor) -> Tensor:
        """Raises Unsupported if the question would be read before the cache is made."""
        seen = self.ids.shape[1]
        self.ids = torch.cat((self.ids, ids), 1)
        if not seen <= self.past < self.ids.shape[1]:
            return super().step(ids)
        if self.question_after and not decodes_exactly(self.cache):
            raise Unsupported(f"past {self.past} tokens this model reads text and question anew")
        sequence = self.sequence.followed_by(ids.shape[1])
        self.cache = None  # frees it
        vars(self).update(vars(self.prefill(self.ids, sequence)))
        return self.logits
