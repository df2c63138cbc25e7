"""Computes its attention in a lower precision than the cell's."""

from dataclasses import dataclass

import torch
from torch import Tensor

from methods.base import AttentionCall, Method


@dataclass(frozen=True)
class Coarse(Method):
    dtype: str = "bfloat16"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        q, k, v = (x.to(getattr(torch, self.dtype)) for x in (query, key, value))
        return super().attend(q, k, v, call).to(query.dtype)
