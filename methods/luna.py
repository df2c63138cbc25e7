"""Luna: linear unified nested attention (Ma et al., arXiv 2106.01540, §3).

Each layer packs the tokens X into a short sequence P [l, D] and reads them from there:
Y_P = Attn(P, X, X), then Y = Attn(X, Y_P, Y_P). The next layer's P is LayerNorm(P + Y_P); the first
one is learned. O(n·l).

The second attention uses the layer's projections, the first separate ones (p). Differs from the
official code: keys and values have separate projections, as in the paper's equations (there by
default one for both: `tied`), and P's norm comes after the residual in a pre-norm model too. No
dropout on Y_P.

Official code: XuezheMax/fairseq-apollo (MIT by the headers of its files).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor
from torch.nn.functional import layer_norm, linear, scaled_dot_product_attention

from methods.base import (
    AttentionCall,
    Layer,
    Method,
    OwnParameter,
    SequenceInfo,
    Sublayer,
    Unsupported,
    Workload,
)
from methods.parts.parameters import Positive

CAUSAL = "Luna is here for encoders: its packed sequence holds all tokens"
BIAS = "Luna's packed sequence has no position for a position bias"
WIDTH = "Luna adds the packed values to P: it needs heads · head size = hidden size"


@dataclass(frozen=True)
class LunaInfo(SequenceInfo):
    """`packed` maps the number of each layer so far to its P + Y_P [B, l, D]."""

    packed: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Luna(Method):
    """P and the projections p are normally distributed at first, P with standard deviation 1/√D.

    l     tokens of P (the paper's 16, 128 and 256)
    tied  official: one projection for keys and values, in both attentions (the layer's of keys)
    init  standard deviation of p: "paper", 1/√D, since the paper gives none; "lra", 1/√(2D), the
          variance of the official (Glorot's uniform, times 1/√2) values, with which LRA was run

    Raises Unsupported for a causal sequence and a position bias.
    """

    l: Positive = 16  # noqa: E741 (the paper's name)
    tied: bool = False
    init: Literal["paper", "lra"] = "paper"

    def encode(self, layers: Sequence[Layer], hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        sequence = LunaInfo(**vars(sequence))
        return super().encode(layers, hidden, sequence)

    def mix(self, hidden: Tensor, sublayer: Sublayer, call: AttentionCall) -> Tensor:
        if call.sequence.causal or call.bias is not None:
            raise Unsupported(CAUSAL if call.sequence.causal else BIAS)
        assert isinstance(call.sequence, LunaInfo)
        own, before, query = call.parameters, call.sequence.packed, sublayer.query(hidden)

        def projected(x: Tensor, name: str) -> Tensor:
            y: Tensor = linear(x, own[f"p_{name}"], own[f"p_{name}_bias"])
            return y.view(*y.shape[:-1], -1, query.shape[-1]).transpose(1, 2)

        if call.layer == 0:
            p = own["P"].expand(len(hidden), -1, -1)
        else:
            p = layer_norm(before[call.layer - 1], hidden.shape[-1:], own["gain"], own["bias"])
        key = projected(hidden, "key")
        value = key if self.tied else projected(hidden, "value")
        packed = scaled_dot_product_attention(
            projected(p, "query"), key, value, call.sequence.key_bias(hidden.dtype), call.dropout,
            scale=call.scale,
        ).transpose(1, 2).flatten(2)  # fmt: skip
        before[call.layer] = p + packed
        key = sublayer.key(packed)
        value = key if self.tied else sublayer.value(packed)
        read = scaled_dot_product_attention(
            query, key, value, dropout_p=call.dropout, scale=call.scale
        )
        return sublayer.output(read)

    def own_parameters(self, workload: Workload, layer: int) -> Mapping[str, OwnParameter]:
        size = workload.hidden_size
        std = (size if self.init == "paper" else 2 * size) ** -0.5
        own = {"P": OwnParameter((self.l, size), std=size**-0.5)}
        if layer:
            own = {"gain": OwnParameter((size,), mean=1.0), "bias": OwnParameter((size,))}
        for name in ("query", "key") if self.tied else ("query", "key", "value"):
            own[f"p_{name}"] = OwnParameter((size, size), std=std)
            own[f"p_{name}_bias"] = OwnParameter((size,))
        return own

    def unused(self) -> frozenset[str]:
        return frozenset({"value"} if self.tied else ())

    def scaled_down(self) -> Method:
        return replace(self, l=4)

    def unsupported(self, workload: Workload) -> str | None:
        wide = workload.heads * workload.head_size != workload.hidden_size
        return (
            CAUSAL if workload.causal else BIAS if workload.position_bias else WIDTH * wide or None
        )

    def state_bytes(self, workload: Workload) -> int:
        """The packing attention's keys and values, the packed sequence with its keys and values,
        and P."""
        tokens = 2 * workload.length + 4 * self.l
        return workload.bytes_per_element * workload.batch * tokens * workload.hidden_size
