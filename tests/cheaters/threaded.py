"""Works on another thread, started in each call or when the method is built, or has a child process
running."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Threaded(Method):
    when: str = "call"
    jobs: Any = field(default_factory=queue.Queue, compare=False)

    def __post_init__(self) -> None:
        if self.when == "load":
            threading.Thread(target=self._work, daemon=True).start()
        if self.when == "process":
            subprocess.Popen(["sleep", "60"])

    def _work(self) -> None:
        while True:
            job: Callable[[], None] = self.jobs.get()
            job()

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        encode = super().encode
        if self.when == "process":
            return encode(layers, hidden, sequence)
        done: queue.Queue[Tensor] = queue.Queue()

        def job() -> None:
            with torch.inference_mode():
                done.put(encode(layers, hidden, sequence))

        if self.when == "call":
            threading.Thread(target=job).start()
        else:
            self.jobs.put(job)
        return done.get()
