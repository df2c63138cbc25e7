"""The model and sizes with which a method is to run, and the error of a method that can't. Without
torch, so that any process may match the error by class."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Feature(StrEnum):
    """Features that a decoder may add to exact attention; `AttentionCall` has their settings."""

    WINDOW = "sliding windows"
    SOFTCAP = "soft caps on scores"
    SINKS = "sink logits"


@dataclass(frozen=True)
class Workload:
    """The model, sizes and mode with which a method is to run; known before anything runs.
    `model_attention` describes the model's attention if it isn't exact; "": it is exact.
    `key_heads` is the number of key and value heads; None: the number of query heads.

    features   features of the attention in any of its layers
    window_layers  number of layers with a window of any length; if other layers have none, a method
               that ignores windows runs only in the other layers
    rotatable  `AttentionCall.rotate` can move keys to other positions, in all layers
    blocks     the method can run the layers (`encode`) and their sub-layers (`mix`); else only
               their attention
    """

    length: int
    batch: int
    heads: int
    head_size: int
    layers: int
    hidden_size: int
    causal: bool = False
    position_bias: bool = False
    training: bool = False
    bytes_per_element: int = 4
    model_attention: str = ""
    key_heads: int | None = None
    features: frozenset[Feature] = frozenset()
    window_layers: int = 0
    rotatable: bool = False
    blocks: bool = True

    def bytes_per_entry(self) -> int:
        """Bytes of a key and a value in every KV head of every layer, in every row of the batch."""
        heads = self.heads if self.key_heads is None else self.key_heads
        return 2 * self.batch * self.layers * heads * self.head_size * self.bytes_per_element


class Unsupported(Exception):
    """A method can't run the workload; the message gives the reason."""
