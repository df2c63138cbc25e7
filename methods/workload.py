"""What a method is asked to run with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """The model, sizes and mode that a method is to run with; known before anything runs.
    `model_attention` says what the model has in place of exact attention; "": nothing."""

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
