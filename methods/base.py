"""The contract of a long-context method.

A method may replace three things: the attention inside a layer, given queries, keys and values
(`attend`); the whole attention sub-layer, given the hidden states before the projections (`mix`);
and how the stack of layers is run (`encode`). The defaults are exact attention, layer after layer.
After `Method` come the interfaces of what it is given and returns: layers, sub-layers, KV caches.
Shapes: B batch, H heads, n tokens, d head size, D model size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from torch import Tensor

from methods.parts.attention import exact_attention
from methods.parts.parameters import check_fields
from methods.parts.sequence import AttentionCall, ModuleCall, PositionBias, SequenceInfo
from methods.parts.workload import Feature, Unsupported, Workload

__all__ = [
    "AttentionCall",
    "Feature",
    "KVCache",
    "Layer",
    "Method",
    "ModuleCall",
    "NormedLayer",
    "OwnParameter",
    "PositionBias",
    "PostNormLayer",
    "SequenceInfo",
    "Sublayer",
    "Unsupported",
    "Workload",
    "leaves_windows",
    "refusal",
    "runs_layers",
]


@dataclass(frozen=True)
class Method:
    """Exact attention, layer after layer. Subclasses are frozen dataclasses whose fields are the
    hyper-parameters; a changed field makes another cell. Raises ValueError for a value that its
    field's annotation doesn't accept.

    keeps_attention  whether the method also runs models whose own attention isn't exact, and leaves
                     it unchanged; other methods find no exact attention to replace there
    reads_modules    whether a prompt's calls must have the model's attention module (`call.module`)
    honours          the features of a decoder's attention that it applies
    chooses_ahead    whether later tokens may decide which earlier tokens a causal model's token
                     reads; their own values never reach it
    """

    keeps_attention: ClassVar[bool] = False
    reads_modules: ClassVar[bool] = False
    honours: ClassVar[frozenset[Feature]] = frozenset()
    chooses_ahead: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """The attention of one layer: query [B, H, n, d], key and value [B, H or a divisor, n, d]
        → [B, H, n, d]."""
        return exact_attention(query, key, value, call)

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        """The attention sub-layer: hidden [B, n, D], the input of its projections (after the norm
        of a pre-norm layer) → [B, n, D], before dropout and residual connection. The default is the
        layer's own sub-layer, whose attention is `attend`."""
        return sublayer(hidden)

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        """All layers of the stack: hidden [B, n, D] → [B, n, D], before the stack's last norm."""
        for layer in layers:
            hidden = layer(hidden, sequence)
        return hidden

    def encode_shorter(
        self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo
    ) -> tuple[Tensor, SequenceInfo]:
        """`encode` for families that pool the output and so need no state for each token: hidden
        [B, m, D] of any length m, and the metadata of its m tokens (order kept, CLS first)."""
        return self.encode(layers, hidden, sequence), sequence

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        """The parameters that the method adds to one layer, by name. The model family creates them;
        they are trained, stored and counted with the model's weights, and `call.parameters` holds
        their values."""
        return {}

    def unused(self) -> frozenset[str]:
        """The projections of a layer that this method doesn't use, from "query", "key", "value" and
        "output": training doesn't change them."""
        return frozenset()

    def unsupported(self, workload: Workload) -> str | None:
        """Why this method can't run the workload, or None. Called before anything runs."""
        return None

    def reads_all(self, workload: Workload, layer: int) -> bool:
        """Whether this layer, with the method's parameters, reads all of `workload.length` tokens.
        Where all layers do, the method is vanilla under another name, and its cell is
        `unsupported`. False for methods that are exact, or that approximate without a choice of
        tokens."""
        return False

    def state_bytes(self, workload: Workload) -> int | None:
        """The peak memory that theory predicts for `encode`, without the weights and the hidden
        states at its input and output; None where there is no formula."""
        return None

    def exact_limit(self) -> Method | None:
        """This method with parameters for which it equals vanilla, up to rounding, on inputs of at
        most 2,048 tokens; None where no parameters do."""
        return None

    def exact_twin(self) -> Method | None:
        """Exact attention on the engine that ran this method's calls so far, which separates the
        method's gain from the engine's; None where the engine was torch, as in vanilla."""
        return None

    def scaled_down(self) -> Method:
        """This method with parameters for which it is far from exact on a few dozen tokens, for
        `bench check`. The default, no change, suits exact methods and those that already are far
        from it."""
        return self

    def diagnose(self, query: Tensor, key: Tensor, call: AttentionCall) -> dict[str, float]:
        """How well one call selects the keys to attend to; empty where nothing is selected.

        recall     share of the keys with the largest weights that were selected, 0 to 1
        mass       share of exact attention's weight on the selected keys
        mass_best  share on the same number of keys with the largest weights: the upper bound of
                   mass
        """
        return {}

    def kv_cache(self, workload: Workload) -> KVCache | None:
        """An empty cache of keys and values with which one batch is decoded. None: `attend` reads
        the prompt, all of its keys and values are kept, and new tokens attend to them exactly."""
        return None


def runs_layers(method: Method) -> bool:
    """Whether the method replaces more than the attention inside a layer."""
    return type(method).encode is not Method.encode or type(method).mix is not Method.mix


def leaves_windows(method: Method, workload: Workload) -> bool:
    """Whether the method ignores windows, so that the layers with a window stay exact and the
    method runs only in the model's other layers."""
    honoured = Feature.WINDOW in method.honours or runs_layers(method)
    return not honoured and 0 < workload.window_layers < workload.layers


def refusal(method: Method, workload: Workload) -> str | None:
    """Why the method can't run the workload, or None: the method's own reason; or the model has no
    exact attention to replace, features that the method ignores, or closed blocks."""
    if workload.model_attention and not method.keeps_attention:
        return f"this model has {workload.model_attention}: it runs as it is, with vanilla alone"
    missing = sorted(workload.features - method.honours)
    if missing and not (missing == [Feature.WINDOW] and leaves_windows(method, workload)):
        return f"this model's attention has {' and '.join(missing)}, which the method ignores"
    if runs_layers(method) and not workload.blocks:
        return "this model's blocks run as they are: a method replaces only their attention"
    return method.unsupported(workload)


class OwnParameter(NamedTuple):
    """A parameter's shape, and its initial value: normal with standard deviation `std` around
    `mean`, or a copy of the layer's own weight `copy_of` ("query.weight", "key.bias", …; zeros
    where the layer has no such bias).

    If no parameter is random (`std` 0), the method may run with the initial values in weights
    trained without it; otherwise it needs weights trained with it.
    """

    shape: tuple[int, ...]
    std: float = 0.0
    mean: float = 0.0
    copy_of: str = ""


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
