"""Exact attention, slowly: most of a cell's life is prediction, so that kills fall into it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from methods.base import Call, Method


@dataclass(frozen=True)
class Patient(Method):
    seconds: float = 0.1

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        time.sleep(self.seconds)
        return super().attend(query, key, value, call)
