"""Methods that change only which keys and values a decoder keeps, and how; another method may read
the prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, Method, Unsupported, Workload, refusal, runs_layers
from methods.parts.attention import exact_attention

NO_DECODER = "it changes the KV cache of a decoder, which this model has not"
TRAINING = "it changes the KV cache of a decoder, which training has not"
BIAS = "a KV cache of its own takes no position bias and no multiplicities"


@dataclass(frozen=True)
class CacheMethod(Method):
    """Exact attention with its own `kv_cache`.

    prefill  the method whose attention reads the prompt; None: exact attention. The cache sees the
             same queries, keys and values
    """

    prefill: Method | None = field(default=None, kw_only=True)

    @property
    def kernel_used(self) -> str:
        """The kernel of `prefill`; raises AttributeError if it has none, as methods that run on
        torch do."""
        used: str = self.prefill.kernel_used  # type: ignore[union-attr]
        return used

    @property
    def chooses_ahead(self) -> bool:  # type: ignore[override]
        return self.prefill is not None and self.prefill.chooses_ahead

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Attention by `prefill`. Raises Unsupported where a gradient is needed, and for inputs
        that no cache keeps."""
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
            raise Unsupported(TRAINING)
        if call.bias is not None or call.sequence.log_multiplicity is not None:
            raise Unsupported(BIAS)
        prefill, windowed = self.prefill, call.window is not None and call.window < key.shape[2]
        if prefill is None or (windowed and Feature.WINDOW not in prefill.honours):
            return exact_attention(query, key, value, call)
        return prefill.attend(query, key, value, call)

    def reads_all(self, workload: Workload, layer: int) -> bool:
        prefill = self.prefill is None or self.prefill.reads_all(workload, layer)
        return prefill and self.keeps_all(workload, layer)

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        """Whether a new token reads all of a prompt of `workload.length` tokens, unchanged."""
        return False

    def exact_twin(self) -> Method | None:
        return None if self.prefill is None else self.prefill.exact_twin()

    def unsupported(self, workload: Workload) -> str | None:
        if not workload.causal:
            return NO_DECODER
        if workload.training:
            return TRAINING
        return None if self.prefill is None else self._refused(self.prefill, workload)

    def _refused(self, prefill: Method, workload: Workload) -> str | None:
        """Why another method can't read the prompt."""
        name = type(prefill).__name__
        if runs_layers(prefill) or isinstance(prefill, CacheMethod):
            return f"{name} can't read the prompt for another cache: it is no attention alone"
        reason = refusal(prefill, workload)
        return f"{name}, which reads the prompt: {reason}" if reason else None


def once(call: AttentionCall, of: Any, compute: Callable[[], Tensor]) -> Tensor:
    """The result of `compute`, computed once for all caches that take the same prompt. `of` is the
    key: all else on which the result depends."""
    if call.memo is None:
        return compute()
    if of not in call.memo:
        call.memo[of] = compute()
    return call.memo[of]
