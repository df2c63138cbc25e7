"""Records which kernels ran a method, in its `kernel_used`."""

from __future__ import annotations

from torch import Tensor

from methods.kernels import build
from methods.kernels.checks import products_of

ASKED = "kernel=torch"
"""The reason for torch where a method was asked for it."""


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
