"""Changes its input in place: the hidden states, a layer's queries, the VIP mask, or the weights.

caught  the queries, and it catches the exception of the check
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from methods.base import AttentionCall, Layer, Method, SequenceInfo


@dataclass(frozen=True)
class InPlace(Method):
    what: str = "hidden"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = super().attend(query, key, value, call)
        if self.what in ("query", "caught"):
            query.zero_()
        return out

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if self.what == "weights":
            layers[0].block.layer[-1].layer_norm.weight.mul_(1.001)  # type: ignore[attr-defined]
        if self.what == "sequence" and sequence.vip is not None:
            sequence.vip.logical_not_()
        out = hidden
        for layer in layers:
            with contextlib.suppress(Exception if self.what == "caught" else ()):
                out = layer(out, sequence)
        if self.what == "hidden":
            hidden.zero_()
        return out
