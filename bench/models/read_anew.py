"""Decoding in models whose cache is made anew at a length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench.models.base import Decoding
from methods.base import Unsupported
from methods.parts.kv_cache import decodes_exactly

if TYPE_CHECKING:
    from bench.models.decoder import DecoderFamily


@dataclass
class ReadAnew(Decoding):
    """A batch of a model for which transformers' `generate` reads all tokens again once there are
    more than `family.read_anew_past`: the cache is made anew from all of them.

    ids  [B, n] all tokens so far
    """

    ids: Tensor
    family: DecoderFamily

    def step(self, ids: Tensor) -> Tensor:
        """Raises Unsupported where the question would be read before the cache is made."""
        past, seen = self.family.read_anew_past, self.ids.shape[1]
        self.ids = torch.cat((self.ids, ids), 1)
        if past is None or not seen <= past < self.ids.shape[1]:
            return super().step(ids)
        if self.family.question_after and not decodes_exactly(self.cache):
            raise Unsupported(f"past {past} tokens this model reads text and question anew")
        sequence = self.sequence.followed_by(ids.shape[1])
        self.cache = None  # frees it
        vars(self).update(vars(self.family._prefilled(self.ids, sequence)))
        return self.logits
