"""Reads the labels: in its caller's rows, among the process's objects, from the task, or by
loading the rows itself, when it predicts or already when it is made.

caught  from the rows, and it catches whatever is raised about it
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Sequence as Items
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch import Tensor

from methods.base import Layer, Method, Sequence


def callers(name: str) -> Any:
    """A caller's variable of that name."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    return None


@dataclass(frozen=True)
class Peeks(Method):
    how: str = "rows"

    def __post_init__(self) -> None:
        if self.how == "made":
            self._stories()

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        if self.how == "rows":
            print(callers("rows")[0].references[0])
        if self.how == "caught":
            with contextlib.suppress(Exception):
                print(callers("rows")[0].references[0])
        if self.how == "objects":
            print([x for x in gc.get_objects() if type(x).__name__ == "Row"])
        if self.how == "task":
            task = callers("task")
            base = importlib.import_module(type(task).__mro__[1].__module__)
            print(task.load(base.Data(), 1, 256, 0))
        if self.how == "load":
            callers("task").load(None, 1, 256, 0)
        if self.how == "stories":
            self._stories()
        return super().encode(layers, hidden, sequence)

    def _stories(self) -> None:
        print(importlib.import_module("tasks.stories").story("validation", 0, 256))
