"""A method's own parameters as a part of the model: trained, stored in safetensors and counted with
the model's weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from methods.base import Method, OwnParameter, Workload

NAME = "method_parameters"
"""The model's attribute, and the prefix of the parameters' names in a checkpoint."""

Shapes = list[dict[str, tuple[int, ...]]]


def of_layer(model: nn.Module, layer: int) -> Mapping[str, Tensor]:
    """The values of one layer, by name; empty if the model has none."""
    layers: Any = getattr(model, NAME, None)
    return {} if layers is None else layers[layer]


def install(model: nn.Module, layers: Sequence[Any], method: Method, workload: Workload,
            seed: int) -> None:  # fmt: skip
    """Make the method's parameters a part of the model, with their initial values, unless the model
    already has them. A method without parameters leaves those of another method unchanged."""
    declared = [method.own_parameters(workload, layer) for layer in range(workload.layers)]
    shapes = [{name: one.shape for name, one in each.items()} for each in declared]
    if not any(declared) or shapes == _shapes(model):
        return
    draw = torch.Generator().manual_seed(seed)
    like = next(model.parameters())
    own = nn.ModuleList(
        nn.ParameterDict(
            {name: _initial(one, layers[i], draw).to(like) for name, one in each.items()}
        )
        for i, each in enumerate(declared)
    )
    setattr(model, NAME, own)


def restore(model: nn.Module, method: Method, workload: Workload, folder: Path) -> list[str]:
    """Load the method's parameters from a checkpoint, as far as it has them. Returns the names of
    the missing ones, which were drawn at random. Raises ValueError for another shape."""
    own: Any = getattr(model, NAME, None)
    if own is None:
        return []
    stored: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.startswith(f"{NAME}.")]  # noqa: SIM118
            stored |= {name: file.get_tensor(name) for name in names}
    drawn = []
    for layer in range(workload.layers):
        for name, declared in method.own_parameters(workload, layer).items():
            value = stored.get(f"{NAME}.{layer}.{name}")
            if value is None:
                drawn += [f"{layer}.{name}"] if declared.std else []
            elif tuple(value.shape) != declared.shape:
                raise ValueError(
                    f"{folder} has the method's parameter {layer}.{name} of shape "
                    f"{tuple(value.shape)}; this request's has {declared.shape}"
                )
            else:
                own[layer][name].data.copy_(value)
    return drawn


def _shapes(model: nn.Module) -> Shapes:
    own: Any = getattr(model, NAME, ())
    return [{name: tuple(value.shape) for name, value in each.items()} for each in own]


def _initial(parameter: OwnParameter, layer: Any, draw: torch.Generator) -> Tensor:
    if parameter.copy_of:
        weight = attrgetter(parameter.copy_of)(layer.projections())
        return torch.zeros(parameter.shape) if weight is None else weight.detach().clone()
    return parameter.mean + parameter.std * torch.randn(parameter.shape, generator=draw)
