"""Replaces a function of Python's C modules for all references to it, even earlier ones."""

import ctypes
from collections.abc import Callable
from typing import Any

CALLED = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
CALLBACK = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
"""The argument of a function without arguments is no object."""
_callbacks: list[Any] = []
"""Kept, as one may be running when it is no longer in place."""


def replace(builtin: Any, function: Callable[[], Any]) -> None:
    """`builtin` takes at most one argument, which `function` doesn't get."""
    _callbacks.append(CALLBACK(lambda module, argument: function()))
    _pointer(builtin).value = ctypes.cast(_callbacks[-1], ctypes.c_void_p).value


def original(builtin: Any) -> Callable[..., Any]:
    """The original function, of at most one argument, even if it is replaced later."""
    function = CALLED(_pointer(builtin).value or 0)
    return lambda argument=None: function(builtin.__self__, argument)


def _pointer(builtin: Any) -> ctypes.c_void_p:
    """Where a PyCFunctionObject's PyMethodDef has its C function."""
    word = ctypes.sizeof(ctypes.c_void_p)
    definition = ctypes.c_void_p.from_address(id(builtin) + object.__basicsize__).value
    return ctypes.c_void_p.from_address((definition or 0) + word)
