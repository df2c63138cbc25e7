"""A stand-in for a GPU on machines without one: tensors that report cuda:0 and hold their numbers
in the processor's memory.

    with emulated(): ...

As on a GPU, an operation on tensors of both devices is an error, as is numpy(). It tests no
kernels, times, memory or rounding; there are no gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("cuda:0")
BETWEEN_DEVICES = ("aten.copy_", "aten._to_copy")


class OnGpu(torch.Tensor):
    """For torch's own code it is on the CPU, where torch looks for a device's guard."""

    device = GPU
    is_cuda, is_cpu = True, False

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnGpu:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(),
            dtype=held.dtype,
        )  # fmt: skip
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operator on the held tensors; its output is on the GPU where its inputs are."""
    flat, _ = tree_flatten((args, kwargs))
    there = [x for x in flat if isinstance(x, OnGpu)]
    here = [x for x in flat if isinstance(x, torch.Tensor) and not isinstance(x, OnGpu)]
    devices = [x for x in flat if isinstance(x, torch.device)]
    name = str(func)
    # A number in the processor's memory may meet any tensor; so may indices (but no mask of a GPU).
    mixed = any(x.dim() for x in here) if "index" not in name else type(args[0]) is torch.Tensor
    if there and mixed and not name.startswith(BETWEEN_DEVICES):
        raise RuntimeError(f"Expected all tensors to be on the same device: {name}")
    on_gpu = devices[0].type == "cuda" if devices else bool(there)
    if name.startswith("aten.copy_"):
        on_gpu = isinstance(args[0], OnGpu)

    def held(x: Any) -> Any:
        if isinstance(x, torch.device):
            return torch.device("cpu")
        return x.held if isinstance(x, OnGpu) else x

    args, kwargs = tree_map(held, (args, kwargs))
    output = func(*args, **kwargs)

    def wrapped(x: Any) -> Any:
        if not on_gpu or type(x) is not torch.Tensor:
            return x
        return next(each for each in (*there, OnGpu(x)) if each.held is x)

    return tree_map(wrapped, output)


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


class Functions(TorchFunctionMode):
    """Decisions of torch's own code by a tensor's device, before any operator runs."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.tolist and isinstance(args[0], OnGpu):
            return args[0].held.tolist()
        if func is torch.Tensor.numpy and isinstance(args[0], OnGpu):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if func is torch.Tensor.cpu:
            return at(args[0], torch.device("cpu"))
        if func is torch.nn.functional.scaled_dot_product_attention:
            # Some of its kernels make masks where they believe the tensors to be.
            with torch._C.DisableTorchFunction():
                return compute(func, args, kwargs)
        if func in (torch.tensor, torch.as_tensor):
            wanted = device_of(kwargs.pop("device", None)) or device_of(args[0])
            return at(func(*args, **kwargs), wanted or torch.device("cpu"))
        if func is torch.Tensor.to:
            devices = [device_of(x) for x in (*args[1:], *kwargs.values())]
            wanted = next(filter(None, devices), args[0].device)
            rest = [x for x in args[1:] if device_of(x) is None]
            rest += [x.dtype for x in args[1:] if isinstance(x, torch.Tensor)]
            more = {k: x for k, x in kwargs.items() if device_of(x) is None}
            moved = at(args[0], wanted)
            return func(moved, *rest, **more) if rest or more else moved

        def numbered(x: Any) -> Any:
            return GPU if device_of(x) == GPU and not isinstance(x, torch.Tensor) else x

        args, kwargs = tree_map(numbered, (args, kwargs))
        return func(*args, **kwargs)


def device_of(x: Any) -> torch.device | None:
    """The device that an argument names."""
    if isinstance(x, str) and x.partition(":")[0] in ("cpu", "cuda"):
        x = torch.device(x)
    if isinstance(x, torch.Tensor):
        x = x.device
    return (GPU if x.type == "cuda" else x) if isinstance(x, torch.device) else None


def at(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device == GPU:
        return x if isinstance(x, OnGpu) else OnGpu(x.detach().clone())
    return x.held.clone() if isinstance(x, OnGpu) else x


def moved(module: torch.nn.Module, *_: Any, **__: Any) -> torch.nn.Module:
    """Replaces Module.to, only for this GPU."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None and not isinstance(weight, OnGpu):
                part._parameters[name] = torch.nn.Parameter(OnGpu(weight.data), False)
        for name, buffer in part._buffers.items():
            if buffer is not None and not isinstance(buffer, OnGpu):
                part._buffers[name] = OnGpu(buffer)
    return module


@contextmanager
def emulated() -> Iterator[None]:
    with (
        mock.patch.object(torch.cuda, "_lazy_init", lambda: None),
        mock.patch.object(torch.cuda, "get_rng_state", torch.get_rng_state),
        mock.patch.object(torch.nn.Module, "to", moved),
        Operators(),
        Functions(),
    ):
        yield
