"""Whether the native kernels can run, on this machine and on these tensors; and records of which
kernels ran a method, in its `kernel_used`."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from methods.kernels import build

WIDENED = (torch.float32, torch.bfloat16)
"""What kernels take that compute in float32 and read each number once."""
ASKED = "kernel=torch"
"""The reason for torch where a method was asked for it."""


def available(products: str = "float32") -> str | None:
    """Why the kernels can't run on this machine, or None; compiles them if they are not cached.
    `products`: "float32", "bfloat16", or "int8" for the scan of `topk`."""
    loaded = build.load()
    if isinstance(loaded, str):
        return loaded
    _, width = loaded
    if products == "bfloat16" and width.bf16 is None:
        return f"this CPU has no {width.name} instructions for bfloat16 products"
    return None


def products_of(inputs: Tensor, products: str) -> str:
    """The number format in which these inputs are multiplied: bfloat16 stays as it is, where the
    CPU can multiply it."""
    half = inputs.dtype == torch.bfloat16 and available("bfloat16") is None
    return "bfloat16" if half else products


def width() -> str | None:
    """The vectors that the kernels are built for, such as "avx2"; None where they can't run."""
    loaded = build.load()
    return None if isinstance(loaded, str) else loaded[1].name


def cannot_take(
    *tensors: Tensor | None, dtypes: tuple[torch.dtype, ...] = (torch.float32,)
) -> str | None:
    """Why the kernels can't run on these tensors, or None."""
    inputs = [x for x in tensors if x is not None]
    if any(x.device.type != "cpu" for x in inputs):
        return "not on the CPU"
    if any(x.dtype not in dtypes for x in inputs):
        return "not " + " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return "a gradient is wanted"
    if not all(x.numel() for x in inputs):
        return "nothing to read"
    return None


def library() -> ctypes.CDLL:
    return build.loaded()[0]


def name(products: str = "float32") -> str:
    """The kernels of this machine as in `kernel_used`: "native avx512 float32"."""
    return f"native {build.loaded()[1].name} {products}"


def note(
    method: object, result: object, products: str = "float32", inputs: Tensor | None = None
) -> None:
    """Records in `method.kernel_used` which kernels ran; several if calls differed. `result` is the
    return value of a kernel's function: a reason (torch ran), or output with these products of
    `inputs` (see `products_of`)."""
    if isinstance(result, str):
        used = "torch" if result == ASKED else f"torch ({result})"
    else:
        used = name(products if inputs is None else products_of(inputs, products))
    before = getattr(method, "kernel_used", "")
    if used not in before.split("; "):
        # Not a dataclass field, since it is not part of a cell.
        object.__setattr__(method, "kernel_used", f"{before}; {used}" if before else used)


def ran_natively(method: object) -> bool:
    """Whether a native kernel ran any of the method's calls that were noted."""
    return any(used.startswith("native") for used in getattr(method, "kernel_used", "").split("; "))
