"""Slow exact attention: most of a cell's time is prediction, so that kills happen during it.

It waits while the file that BENCH_PATIENT_HOLD names exists."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from methods.base import AttentionCall, Method


@dataclass(frozen=True)
class Patient(Method):
    seconds: float = 0.1

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        time.sleep(self.seconds)
        while (hold := os.environ.get("BENCH_PATIENT_HOLD")) and Path(hold).exists():
            time.sleep(0.05)
        return super().attend(query, key, value, call)
