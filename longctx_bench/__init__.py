"""The methods of longctx-bench in plain transformers.

import longctx_bench
longctx_bench.register()
model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="longctx:vertical_slash")
model.generate(**prompt, past_key_values=longctx_bench.cache("snapkv", model, budget=0.25))

The package is called as the distribution is: `longctx` on PyPI is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longctx_bench.caches import MethodCache


def register(**parameters: Mapping[str, Any]) -> list[str]:
    """Makes every method that replaces attention alone an `attn_implementation` of transformers,
    `longctx:NAME`, with its mask function. `parameters` are those of methods by name, such as
    `bigbird={"window": 5}`; others have their defaults. Returns the names of the methods that can
    be used. The others raise an error with the reason when a model first calls them.

    Raises bench.errors.RequestError for an unknown name or parameter, and
    methods.base.Unsupported if a method in `parameters` can't be used in this way."""
    from longctx_bench.attention import register_all

    return register_all(parameters)


def cache(method: str, model: Any, **parameters: Any) -> MethodCache:
    """A method's KV cache for `generate(past_key_values=…)`, or the model's own forward, for one
    batch of prompts and what follows them. The model, a decoder, is set to the attention that reads
    such a cache; without one that is exact attention.

    Raises bench.errors.RequestError for a name or a parameter that isn't there, ValueError for a
    model that can't be entered, and methods.base.Unsupported for a method without a
    cache."""
    from longctx_bench.caches import MethodCache
    from longctx_bench.named import built

    return MethodCache(method, built(method, parameters), model)
