"""Keeps `mib` MiB where a process's resident memory doesn't show them: in a file in memory.

memfd  an anonymous one
tmpfs  one in /dev/shm, without a name
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Memfd(Method):
    where: str = "memfd"
    mib: int = 16
    kept: list[int] = field(default_factory=list)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        if not self.kept and self.where == "memfd":
            self.kept.append(os.memfd_create("state"))
        if not self.kept:
            with tempfile.TemporaryFile(dir="/dev/shm") as file:
                self.kept.append(os.dup(file.fileno()))
        for _ in range(self.mib):
            os.write(self.kept[0], bytes(1 << 20))
        out = super().encode(layers, hidden, sequence)
        os.lseek(self.kept[0], 0, os.SEEK_SET)
        return out
