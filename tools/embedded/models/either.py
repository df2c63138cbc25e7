"""Several settings of a method at once, for training one set of weights for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.request import plugins
from methods.base import Layer, Method, SequenceInfo


@dataclass(frozen=True)
class Either(Method):
    """One of `settings`, each a method's configuration, drawn at random for every forward pass. For
    methods without an `attend` of their own."""

    settings: Sequence[Mapping[str, Any]]

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        drawn = int(torch.randint(len(self.settings), ()))
        method: Method = plugins.build(dict(self.settings[drawn]))
        return method.encode(layers, hidden, sequence)
