"""A method in several settings at once, for training weights that serve them all."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench import plugins
from methods.base import Layer, Method, Sequence


@dataclass(frozen=True)
class Either(Method):
    """One of `settings`, each a method as a recipe names it, drawn anew whenever a stack of layers
    is walked. For methods that only walk: attention is vanilla's."""

    settings: Items[Mapping[str, Any]]

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        drawn = int(torch.randint(len(self.settings), ()))
        method: Method = plugins.build(dict(self.settings[drawn]))
        return method.encode(layers, hidden, sequence)
