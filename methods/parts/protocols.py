"""The interfaces between methods and model families beyond `Method` itself.

Shapes: B batch, H heads, n tokens, d head size, D model size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from methods.parts.sequence import AttentionCall, SequenceInfo


class Layer(Protocol):
    """One layer of a model's stack, residual connections included."""

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        """hidden [B, n, D] → [B, n, D]; its attention is computed by the method's `attend`."""
        ...

    def scores(
        self,
        queries: Tensor,
        query_sequence: SequenceInfo,
        keys: Tensor,
        key_sequence: SequenceInfo,
    ) -> Tensor:
        """This layer's attention scores before the softmax, with its position bias and without
        multiplicities: queries [B, q, D] and keys [B, k, D] → [B, H, q, k]."""
        ...


class Sublayer(Protocol):
    """The attention sub-layer of a layer, without its norm, dropout and residual connection.

    attended  whether it was called, and so the method's `attend`
    """

    attended: bool

    def __call__(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, D] → [B, n, D]: projections, the method's `attend`, output projection."""
        ...

    def query(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, D] → [B, H, n, d]"""
        ...

    def key(self, hidden: Tensor) -> Tensor:
        """hidden [B, m, D] → [B, H or a divisor, m, d]"""
        ...

    def value(self, hidden: Tensor) -> Tensor:
        """hidden [B, m, D] → [B, H or a divisor, m, d]"""
        ...

    def output(self, read: Tensor) -> Tensor:
        """read [B, H, n, d] → [B, n, D]: the output projection."""
        ...


class NormedLayer(Layer, Protocol):
    """A pre-norm layer that can also be entered after its first norm."""

    def normed(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, D] → [B, n, D], the output of the norm before this layer's attention."""
        ...

    def from_normed(self, normed: Tensor, sequence: SequenceInfo) -> Tensor:
        """normed [B, n, D] → [B, n, D]: the layer from its attention on; `normed` is also the
        residual."""
        ...


class PostNormLayer(Layer, Protocol):
    """A layer that ends in a norm: layer(x) = final_norm(before_norm(x))."""

    def before_norm(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        """hidden [B, n, D] → [B, n, D]: the layer without its final norm."""
        ...

    def final_norm(self, hidden: Tensor) -> Tensor:
        """hidden [B, n, D] → [B, n, D]"""
        ...


class KVCache(Protocol):
    """The keys and values of one batch, in all layers, that a method keeps while a model decodes.
    The method chooses the number, precision and order of entries, and frees those that it drops.

    Keys come as the model caches them, with their rotary positions; G key heads serve H query
    heads. `call.sequence` describes all tokens so far, kept or not, padding on the left; it is
    causal, and the queries are its last tokens.

    A cache may have `rereads(ids, tokenizer)`, which is called once after the prompt with its
    tokens [B, n] and a tokenizer or None. For each (ids [1, t], sequence of all tokens up to these,
    attend) that it yields, the model reads the ids with this attention, which is called like
    `Method.attend`.
    """

    @property
    def read_bytes(self) -> int:
        """Bytes that all calls of `decode` so far have read: keys, values and the data that choose
        among them."""
        ...

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """The prompt in one layer: query [B, H, n, d], key and value [B, G, n, d] →
        [B, H, n, d]. Keeps the same entries as `take`."""
        ...

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        """Stores the prompt's entries in one layer, without attending: query [B, H, n, d], key and
        value [B, G, n, d], which stay unchanged. Caches of methods that read the prompt with the
        same attention may take the same prompt."""
        ...

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """The next t tokens in one layer: query [B, H, t, d], key and value [B, G, t, d] →
        [B, H, t, d]. Each attends to itself, to the new tokens before it and to the kept
        entries."""
        ...

    def held(self) -> Sequence[Tensor]:
        """All tensors of the cache, in all layers: their storage is its memory."""
        ...
