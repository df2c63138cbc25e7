"""A KV cache that reports a share of the bytes that it reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from methods.base import AttentionCall, KVCache, Method, Workload
from methods.parts.kv_cache import FullCache


@dataclass(frozen=True)
class Understates(Method):
    share: float = 0.5

    def kv_cache(self, workload: Workload) -> KVCache:
        return UnderstatingCache(share=self.share)


@dataclass
class UnderstatingCache(FullCache):
    share: float = 1.0

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        before = self.read_bytes
        output = super().decode(query, key, value, call)
        self.read_bytes = before + int(self.share * (self.read_bytes - before))
        return output
