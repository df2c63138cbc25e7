"""Parameters that a method adds to those of a model's layer."""

from __future__ import annotations

from typing import NamedTuple


class OwnParameter(NamedTuple):
    """A parameter's shape, and its initial value: normal with standard deviation `std` around
    `mean`, or a copy of the layer's own weight `copy_of` ("query.weight", "key.bias", …; zeros
    where the layer has no such bias).

    If no parameter is random (`std` 0), the method may run with the initial values in weights
    trained without it; otherwise it needs weights trained with it.
    """

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0
    copy_of: str = ""
