"""Looks for labels in its process, and answers differently when it finds one.

rows     in the rows that a caller holds
objects  in every row among the objects of the process
"""

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo
from tasks.base import Row


def callers_rows() -> list[Row]:
    """The first variable `rows` of a caller, or what it has `asked`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if "rows" in frame.f_locals:
            return list(frame.f_locals["rows"])
        if "asked" in frame.f_locals:
            return [row for text in frame.f_locals["asked"].rows for row in text]
        frame = frame.f_back
    return []


@dataclass(frozen=True)
class Peeks(Method):
    where: str = "rows"

    def labels(self) -> list[str]:
        if self.where == "rows":
            rows = callers_rows()
        else:
            gc.unfreeze()  # the parent's objects, too
            rows = [x for x in gc.get_objects() if type(x) is Row]
        if not rows:
            raise LookupError("no row was found at all")
        return [label for row in rows for label in row.references]

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        out = super().encode(layers, hidden, sequence)
        return out.zero_() if self.labels() else out
