"""Longformer: a sliding window and global tokens (Beltagy et al., arXiv 2004.05150, §3).

A token reads the tokens within window/2 of it and the global tokens, under one softmax; a global
token reads all tokens, through second projections of queries, keys and values. A causal model has
only the window. O(n·window).

Official codes: allenai/longformer, google-research/long-range-arena and transformers' (all
Apache-2.0).

Differs from the official codes: distances are counted in valid tokens; padding in the input is left
out (transformers gives zeros there). No dilation. The LRA code's window is one token shorter on
the left, and is computed n×n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from methods.base import AttentionCall, Method, OwnParameter, SequenceInfo, Sublayer, Workload
from methods.parts.attention import per_head
from methods.parts.parameters import Range
from methods.parts.window import first_tokens, window_and_global_attention

NAMES = ("query", "key", "value")


@dataclass(frozen=True)
class Longformer(Method):
    """window         tokens of the window, an even number: half to each side
    global_tokens  "vip": the VIP tokens (the query) and the first; "first"; or "none"
    projections    of the global tokens' attention: "own", initially copies of the layer's (the
                   paper's, from which swaps start), or "shared", the layer's
    """

    window: Annotated[int, Range(least=2, step=2)] = 512
    global_tokens: Literal["vip", "first", "none"] = "vip"
    projections: Literal["own", "shared"] = "own"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        return self._read((query, key, value), (query, key, value), call)

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        own = call.parameters
        if not self._has_own(call.sequence.causal):
            return sublayer(hidden)
        local = [sublayer.query(hidden), sublayer.key(hidden), sublayer.value(hidden)]
        size = local[0].shape[-1]
        second = [
            linear(hidden, own[f"{name}_weight"], own[f"{name}_bias"])
            .view(*hidden.shape[:2], -1, size)
            .transpose(1, 2)
            for name in NAMES
        ]
        return sublayer.output(self._read(local, second, call))

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        if not self._has_own(workload.causal):
            return {}
        inner = workload.heads * workload.head_size
        weights = {
            f"{name}_weight": OwnParameter((inner, workload.hidden_size), copy_of=f"{name}.weight")
            for name in NAMES
        }
        biases = {f"{name}_bias": OwnParameter((inner,), copy_of=f"{name}.bias") for name in NAMES}
        return weights | biases

    def reads_all(self, workload: Workload, layer: int) -> bool:
        return workload.length <= self.window // 2

    def exact_limit(self) -> Method:
        return replace(self, window=4096)

    def scaled_down(self) -> Method:
        return replace(self, window=8, global_tokens="first")

    def state_bytes(self, workload: Workload) -> int:
        """The keys, values and scores' mask for 16 blocks of queries, and all keys' windows."""
        radius = min(self.window // 2, workload.length)
        reach = 2 if workload.causal else 3
        keys = 2 * reach * workload.heads * workload.head_size * workload.length
        return (
            workload.bytes_per_element * workload.batch * (keys + reach * radius * workload.length)
        )

    def _has_own(self, causal: bool) -> bool:
        return not causal and self.projections == "own" and self.global_tokens != "none"

    def _read(
        self, local: Sequence[Tensor], second: Sequence[Tensor], call: AttentionCall
    ) -> Tensor:
        """The output [B, H, n, d], given the projections of the window's and of global tokens'
        attention."""
        query, key, value = local[0], *per_head(*local)
        chosen = self._chosen(call.sequence, query)
        return window_and_global_attention(
            (query, key, value),
            lambda tokens: (tokens.take(second[0]), *second[1:]),
            call,
            self.window // 2,
            chosen,
        )

    def _chosen(self, sequence: SequenceInfo, query: Tensor) -> Tensor:
        """[B, n]: the global tokens."""
        first = first_tokens(sequence, query)
        if sequence.causal or self.global_tokens == "none":
            return torch.zeros_like(first)
        if sequence.vip is None or self.global_tokens == "first":
            return first
        return first | (sequence.vip if sequence.valid is None else sequence.vip & sequence.valid)
