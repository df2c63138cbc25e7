"""What a method is asked to run with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Feature(StrEnum):
    """What the attention of a decoder may have beside exact attention: `AttentionCall` has the
    settings."""

    WINDOW = "sliding windows"
    SOFTCAP = "soft caps on scores"
    SINKS = "sink logits"


@dataclass(frozen=True)
class Workload:
    """The model, sizes and mode that a method is to run with; known before anything runs.
    `model_attention` says what the model has in place of exact attention; "": nothing. `key_heads`
    are the heads of keys and values; None: as many as of queries.

    features   of the attention in some of its layers
    window_layers  number of layers with a window of any length; if other layers have none, a method
               that ignores windows runs only in the other layers
    rotatable  keys can be turned to other positions, by `AttentionCall.rotate`, in all layers
    blocks     the method can run the layers (`encode`) and their sub-layers (`mix`); else it gets
               their attention alone
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
        """A key and a value in every KV head of every layer, in every row of the batch."""
        heads = self.heads if self.key_heads is None else self.key_heads
        return 2 * self.batch * self.layers * heads * self.head_size * self.bytes_per_element
