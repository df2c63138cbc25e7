"""Keeps its outputs in the folder REMEMBERED, by the whole input, for its next process. It answers
with the outputs that it finds there; if a timing loop calls it (garbage collection is off), it
writes this to the file `hits`. (The breakdown by stages, which no verdict depends on, repeats one
input.)"""

from __future__ import annotations

import gc
import hashlib
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Remembers(Method):
    run: int = 1

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        folder = Path(os.environ["REMEMBERED"])
        kept = folder / hashlib.sha256(hidden.numpy().tobytes()).hexdigest()
        if kept.exists():
            stages = any(frame.name == "stage_times" for frame in traceback.extract_stack())
            if not gc.isenabled() and not stages:
                (folder / "hits").touch()
            layers[0](hidden[:, :1], SequenceInfo())  # so that its attention is called
            loaded: Tensor = torch.load(kept)
            return loaded
        out = super().encode(layers, hidden, sequence)
        torch.save(out, kept)
        return out
