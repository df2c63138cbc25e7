"""KV caches of methods as transformers' `Cache`.

A method chooses what it keeps by the prompt's queries, which transformers gives to attention
functions and not to caches. So the cache's `update` only notes that its layer is next, and the
attention function that is called right after it reads and fills the method's own cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, NoReturn

from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from bench.measure.memory import held_bytes
from bench.models.attention import Route, attend
from bench.models.decoder import DecoderFamily
from longctx_bench.attention import PREFIX, SAMPLE, Offered, described, left_out, offer
from methods.base import KVCache, Method, Unsupported, refusal
from methods.parts.kv_cache import CacheMethod
from methods.vanilla import Vanilla

NAME = f"{PREFIX}cache"
ONE_WAY = "what the method dropped can't be restored: no beams, no assistant, no other rows"
LEFT = "a decoder's cache takes padding on the left"


class MethodCache(Cache):  # type: ignore[misc]
    """What a method keeps of one batch's keys and values.

    kv  the method's own cache; None before the first prompt
    """

    def __init__(self, name: str, method: Method, model: Any) -> None:
        if reason := _refused(name, method):
            raise Unsupported(f"{name}: {reason}")
        self.name, self.method, self.kv = name, method, None
        self.family = DecoderFamily(model, None, method)
        model.set_attn_implementation(NAME)
        if "prepare_inputs_for_generation" not in vars(model):
            prepare = model.prepare_inputs_for_generation
            model.prepare_inputs_for_generation = keeping_caches(prepare)
        modules = (model.get_submodule(site.name) for site in self.family.sites)
        super().__init__(layers=[MethodLayer(self, module) for module in modules])

    kv: KVCache | None

    def held_bytes(self) -> int:
        """Bytes of all that is kept, as `bench run` counts them."""
        return held_bytes(self.kv) if self.kv is not None else 0

    def reset(self) -> None:
        """Drops all, for another batch."""
        self.kv = None
        for layer in self.layers:
            layer.reset()

    def read(self, index: int, t: int, mask: Tensor | None, batch: int) -> Route:
        """How a layer's attention reads and fills the cache for t new tokens. Raises
        Unsupported."""
        seen, site = self.layers[index].get_seq_length(), self.family.sites[index]
        if mask is not None and bool((mask[:, 1:] < mask[:, :-1]).any()):
            raise Unsupported(LEFT)
        if self.kv is None:
            workload = self.family.workload(t, batch)
            if reason := refusal(self.method, workload):
                raise Unsupported(f"{self.name}: {reason}")
            self.kv = self.family.new_cache(t, batch)
        reach = self.family.reach(self.kv)
        if seen > t and reach is not None and seen > reach:
            raise Unsupported(f"{self.name} ignores a window of {reach} tokens, which ends here")
        cached = self.kv.prefill if seen == t else self.kv.decode
        sequence = described(mask, causal=True)
        return Route(self.family, sequence, index, cached=cached, rotate=site.rotation)


def keeping_caches(prepare: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A model's `prepare_inputs_for_generation`. Where the model drops the cache and reads all
    tokens again (`bench.models.rotation.read_anew_past`), the method's cache is made anew."""

    @wraps(prepare)
    def prepared(*args: Any, cache: Any = None, **more: Any) -> dict[str, Any]:
        inputs = prepare(*args, cache=cache, **more)
        if isinstance(cache, MethodCache) and inputs.get("cache") is None:
            cache.reset()
            inputs["cache"] = cache
        return inputs

    return prepared


def _refused(name: str, method: Method) -> str | None:
    """Why a method has no cache that can be used so, or None."""
    evicts = isinstance(method, CacheMethod) and not method.reads_modules
    if not evicts and (reason := left_out(name, method)):
        return reason
    if type(method).kv_cache is Method.kv_cache:
        return f"it keeps all keys and values: attn_implementation='{PREFIX}{name}' is enough"
    if hasattr(method.kv_cache(replace(SAMPLE, causal=True)), "rereads"):
        return "it has the model read the prompt again, which transformers doesn't"
    return None


class MethodLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer of a `MethodCache`: counts its tokens and has its attention read the cache."""

    supports_early_init = False

    def __init__(self, cache: MethodCache, module: nn.Module) -> None:
        super().__init__()
        self.cache, self.module, self.seen = cache, module, 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """The new keys and values as they are; what is kept comes in with the attention."""
        self.seen += key_states.shape[2]
        _next[self.module] = self
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen + query_length, 0

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.seen = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """There is nothing to make before the first prompt."""

    def refused(self, *_: Any) -> NoReturn:
        raise Unsupported(ONE_WAY)

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = refused
    offload = prefetch = refused


_next: dict[nn.Module, MethodLayer] = {}
"""The layer whose `update` was called last, by its attention module, until that is read."""
_exact = Offered(NAME, Vanilla())


def read_cached(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: by the cache whose `update` came before, else exact."""
    layer = _next.pop(module, None)
    if layer is None:
        return _exact(module, query, key, value, attention_mask, **settings)
    _exact.features(settings, attention_mask)
    index = layer.cache.layers.index(layer)
    route = layer.cache.read(index, query.shape[2], attention_mask, len(query))
    return attend(module, query, key, value, None, route=route, **settings)


offer(NAME, read_cached)
