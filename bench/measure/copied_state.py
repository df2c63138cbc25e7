"""Copies of what is kept of a prompt, and a record of what is computed from them."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from copy import copy
from enum import Enum
from functools import partial
from types import MethodType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.models.base import Family
from methods.base import Method

T = TypeVar("T")
SHARED = (Family, Method, nn.Module, type, Enum)
MAPPINGS, SEQUENCES = (dict, OrderedDict, defaultdict), (list, deque)
OF_NUMBERS = (set, bytearray, np.ndarray)


def copied(state: T) -> T:
    """A deep copy of tensors, containers and objects of Python classes. None of their classes' code
    runs, such as `__deepcopy__`, which could compute ahead. Model, method, functions and objects of
    native classes are shared."""
    return _Copies().of(state)


class _Copies:
    """Copies by the id of what they are of: what is referred to twice is copied once, and views
    stay views of one storage."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.storages: dict[int, torch.UntypedStorage] = {}

    def of(self, state: T) -> T:
        if issubclass(type(state), SHARED):
            return state
        if id(state) not in self.objects:
            self._copy(state)
        new: T = self.objects[id(state)]
        return new

    def _copy(self, state: Any) -> None:
        kind, copies = type(state), self.objects
        if kind is Tensor:
            copies[id(state)] = self._tensor(state)
        elif kind is MethodType:
            copies[id(state)] = MethodType(state.__func__, self.of(state.__self__))
        elif kind is partial:
            arguments, named = self.of(state.args), self.of(state.keywords)
            copies[id(state)] = partial(self.of(state.func), *arguments, **named)
        elif issubclass(kind, tuple):
            copies[id(state)] = tuple.__new__(kind, map(self.of, state))
        elif kind in (*MAPPINGS, *SEQUENCES, *OF_NUMBERS):
            copies[id(state)] = new = copy(state)
            for place in new if kind in MAPPINGS else range(len(new)) if kind in SEQUENCES else ():
                new[place] = self.of(new[place])
        else:
            copies[id(state)] = new = _empty(state)
            if new is not state:
                vars(new).update((name, self.of(value)) for name, value in vars(state).items())

    def _tensor(self, x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in self.storages:
            self.storages[storage.data_ptr()] = storage.clone()
        new = self.storages[storage.data_ptr()]
        return x.new_empty(0).set_(new, x.storage_offset(), x.shape, x.stride())


def _empty(state: Any) -> Any:
    """An object of the same Python class without attributes; that of a native class itself."""
    kind = type(state)
    try:
        return object.__new__(kind) if kind.__dictoffset__ else state
    except TypeError:
        return state


class Operations(TorchDispatchMode):
    """Inside, records the operations that run, and the shapes of the tensors that they get."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[tuple[str, list[torch.Size]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [x.shape for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self.ran.append((str(func), given))
        return func(*args, **(kwargs or {}))
