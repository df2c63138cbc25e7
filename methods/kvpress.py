"""The presses of kvpress (NVIDIA, github.com/NVIDIA/kvpress, Apache-2.0), unchanged: a press
compresses a prompt's keys and values to the KV cache.

A press is a class of the installed package, which is imported module by module: importing all of it
would replace every attention function of transformers. kvpress 0.5 requires transformers below 5.3;
with a newer version it is installed without its requirements (`pip install --no-deps kvpress
cachetools`), and presses read `cache_position`, which newer models no longer pass and this adapter
does.

Differs from kvpress's pipeline: the prompt is compressed together with its question, unless the run
puts the question afterwards; new tokens have their true positions. Presses that hook the model's
forward pass, or that compress while decoding, can't run here.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from methods.base import AttentionCall, SequenceInfo, Unsupported, Workload
from methods.parts.kv_cache import CacheMethod, Entries
from methods.parts.parameters import Range, Text
from methods.parts.sequence import Attend, unpadded

PACKAGE = "kvpress"
MISSING = "the package kvpress is not installed: pip install --no-deps kvpress cachetools"
OWN_HOOKS = "it hooks the model's forward pass itself; presses that `compress` a prompt run here"
WITHOUT_HEADS = "a press gave keys of another number of heads or another head size"


@dataclass(frozen=True)
class KVPress(CacheMethod):
    """A press by the name of its class, with its settings.

    press              name of its class: KnormPress, SnapKVPress, ExpectedAttentionPress, …
    compression_ratio  the share of the prompt's tokens that it removes; None for one without it
    options            further arguments of its class: "window_size=8, pooling=max"
    """

    reads_modules: ClassVar[bool] = True
    press: str = "KnormPress"
    compression_ratio: Annotated[float, Range(least=0, most=0.999)] | None = 0.5
    options: Annotated[str, Text(r"(\w+=[^,=]+(, *|$))*", "such as 'window_size=8'")] = ""

    def kv_cache(self, workload: Workload) -> PressedCache:
        return PressedCache(self.build(), self.attend)

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return self.compression_ratio == 0

    def exact_limit(self) -> KVPress:
        return replace(self, compression_ratio=0.0, prefill=None)

    def unsupported(self, workload: Workload) -> str | None:
        if reason := super().unsupported(workload):
            return reason
        if package_folder() is None:
            return MISSING
        try:
            press = self.build()
        except ValueError as error:
            return str(error)
        own = type(press).forward_hook is not load("base_press", "BasePress").forward_hook
        return f"{self.press}: {OWN_HOOKS}" if own else None

    def _arguments(self) -> dict[str, Any]:
        ratio = self.compression_ratio
        given: dict[str, Any] = {} if ratio is None else {"compression_ratio": ratio}
        for option in filter(None, self.options.split(",")):
            name, _, value = option.strip().partition("=")
            try:
                given[name] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                given[name] = value
        return given

    def build(self) -> Any:
        """The press. Raises ValueError for a name or options that kvpress doesn't have."""
        known = presses()
        if self.press not in known:
            near = difflib.get_close_matches(self.press, known, 1, 0)
            raise ValueError(
                f"press is {self.press!r}; nearest: {near[0] if near else 'none'}; "
                f"kvpress has {', '.join(known)}"
            )
        try:
            return load(known[self.press], self.press)(**self._arguments())
        except ImportError as error:
            raise ValueError(f"{self.press} needs the package {error.name}") from error
        except (TypeError, AssertionError) as error:
            reason = str(error).partition("__init__() ")[2] or str(error)
            raise ValueError(f"{self.press}: {reason}") from error


@dataclass
class PressedCache:
    """The entries of a prompt that a press keeps, and all new tokens. Rows with padding are pressed
    one by one, without the padding. `attention` reads the prompt.

    layers  for each layer, the entries of all rows together, or a list of the rows' entries
    """

    press: Any
    attention: Attend
    layers: dict[int, list[tuple[slice, Entries]]] = field(default_factory=dict)
    read_bytes: int = 0

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output = self.attention(query, key, value, call)
        self.take(query, key, value, call)
        return output

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        """Raises Unsupported where the press can't read the model."""
        if not self.layers:
            self._post_init(call)
        self.layers[call.layer] = layer = []
        for rows, kept, (_, k, v), row_call in unpadded(query, key, value, call):
            pressed = self._pressed(k, v, _of_rows(row_call, rows, kept))
            if any(x.shape[:2] != k.shape[:2] for x in pressed):
                raise Unsupported(WITHOUT_HEADS)
            entries = Entries(*pressed)
            entries.seen = k.shape[2]
            layer.append((rows, entries))

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        call = replace(call, sequence=SequenceInfo(causal=True))  # the cache holds no padding
        outputs = []
        for rows, entries in self.layers[call.layer]:
            entries.append(key[rows], value[rows])
            self.read_bytes += entries.bytes()
            outputs.append(entries.attend(query[rows], call))
        return torch.cat(outputs)

    def held(self) -> Sequence[Tensor]:
        each = (entries for layer in self.layers.values() for _, entries in layer)
        return [part for entries in each for part in entries.held()]

    def _post_init(self, call: AttentionCall) -> None:
        assert call.module is not None
        with _explained(self.press):
            self.press.post_init_from_model(call.module.model)

    def _pressed(self, key: Tensor, value: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
        assert call.module is not None
        model, module = call.module.model, call.module.module
        arguments = {
            **call.module.arguments,
            "hidden_states": call.module.hidden,
            "cache_position": torch.arange(key.shape[2], device=key.device),
        }
        with _explained(self.press), _rotary(model, module):
            return self.press.compress(  # type: ignore[no-any-return]
                module, call.module.hidden, key, value, None, arguments
            )


def _of_rows(call: AttentionCall, rows: slice, kept: Tensor | None) -> AttentionCall:
    """The call with its module's arguments restricted to some rows, and to their tokens `kept`
    [m]."""
    assert call.module is not None
    if kept is None:
        return call

    def tokens(x: Tensor) -> Tensor:
        return x[rows if len(x) > 1 else slice(None)].index_select(1, kept)

    given = dict(call.module.arguments)
    if (turned := given.get("position_embeddings")) is not None:
        given["position_embeddings"] = tuple(map(tokens, turned))
    hidden = tokens(call.module.hidden)
    return replace(call, module=replace(call.module, hidden=hidden, arguments=given))


@contextmanager
def _explained(press: Any) -> Iterator[None]:
    """Any exception of a press, where a model isn't as it expects, becomes `Unsupported` with a
    reason."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise Unsupported(
            f"{type(press).__name__} can't press this model: {type(error).__name__}: {reason}"
        ) from error


class _rotary:
    """Context in which the attention module has the model's rotary embedding, as presses expect."""

    def __init__(self, model: Any, module: Any) -> None:
        embedding = getattr(model.base_model, "rotary_emb", None)
        self.module, self.embedding = module, embedding
        self.adds = embedding is not None and not hasattr(module, "rotary_emb")

    def __enter__(self) -> None:
        if self.adds:
            self.module.rotary_emb = self.embedding

    def __exit__(self, *_: object) -> None:
        if self.adds:
            del self.module.rotary_emb


@functools.cache
def package_folder() -> Path | None:
    """The folder in which kvpress is installed; None if it isn't installed."""
    found = importlib.machinery.PathFinder.find_spec(PACKAGE)
    places = found.submodule_search_locations if found else None
    return Path(next(iter(places))) if places else None


@functools.cache
def presses() -> dict[str, str]:
    """Name of each press → its module, from the source: nothing is imported."""
    folder = package_folder()
    files = sorted((folder / "presses").glob("*.py")) if folder else []
    return {
        node.name: path.stem
        for path in files
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Press")
    }


def load(module: str, name: str) -> Any:
    """A class of a module of kvpress.presses. The package's __init__ isn't run."""
    folder = package_folder()
    assert folder is not None
    if PACKAGE not in sys.modules:
        package = types.ModuleType(PACKAGE)
        package.__path__ = [str(folder)]
        sys.modules[PACKAGE] = package
    return getattr(importlib.import_module(f"{PACKAGE}.presses.{module}"), name)
