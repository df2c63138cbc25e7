"""Official codes as methods, for `make speed`.

BigBird is Hugging Face's port of google-research/bigbird. IceFormer is the module that
yuzhenmao/IceFormer builds (class DCI), with the settings of its README; OFFICIAL=DIR names the
folder in which it was built.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from methods.base import AttentionCall, Method
from methods.parts.attention import exact_attention

MODULES = ("dciknn", "mdci", "iceformer")


@dataclass(frozen=True)
class HubBigBird(Method):
    """transformers' block-sparse attention. Its model attends exactly up to 5 + 2r blocks."""

    block_size: int = 64
    random: int = 3

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        n = query.shape[2]
        if n <= (5 + 2 * self.random) * self.block_size:
            return exact_attention(query, key, value, call)
        attention, masks = _hub_bigbird(query.shape[1], query.shape[3], n, self.block_size)
        blocked, band, from_mask, to_mask = masks
        context, _ = attention.bigbird_block_sparse_attention(
            query, key, value, band, from_mask, to_mask, blocked, blocked, query.shape[1],
            self.random, query.shape[3], self.block_size, self.block_size, query.shape[0], n, n,
            seed=0, plan_from_length=None, plan_num_rand_blocks=None,
        )  # fmt: skip
        output: Tensor = context.view(query.shape[0], n, *query.shape[1::2]).transpose(1, 2)
        return output


@functools.cache
def _hub_bigbird(heads: int, size: int, n: int, block: int) -> tuple[Any, Any]:
    """The attention module and its masks of an unpadded input."""
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=heads * size, num_attention_heads=heads, block_size=block,
        max_position_embeddings=n,
    )  # fmt: skip
    masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(1, n), block)
    return BigBirdBlockSparseAttention(config, seed=0).eval(), masks


@dataclass(frozen=True)
class OfficialIceFormer(Method):
    """MDCI with the settings of its README; k keys a query."""

    k: int = 20
    levels: int = 3

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        batch, heads, n, size = query.shape
        rows = [numpy.ascontiguousarray(x.reshape(-1, size)) for x in (key, query, value)]
        every = {"num_to_visit": n, "num_to_retrieve": -1, "prop_to_visit": 1.0}
        build = {**every, "prop_to_retrieve": 0.002, "field_of_view": 5}
        search = {**every, "prop_to_retrieve": 0.8, "field_of_view": self.k}
        output = _dci()(size, 2, 4).add_query(
            *rows,
            numpy.ones(batch * heads * n, dtype=bool),
            num_levels=self.levels,
            num_inst=batch * heads,
            num_points=n,
            num_neighbours=self.k,
            **{f"c_{name}": value for name, value in build.items()},
            **{f"q_{name}": value for name, value in search.items()},
            scale=call.scale,
            parallel_level=1,
            causal=False,
        )
        return torch.from_numpy(numpy.asarray(output, numpy.float32)).view(query.shape)


@functools.cache
def _dci() -> Any:
    """The class of the official search. Raises ImportError."""
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, "DCI"):
            return module.DCI
    raise ImportError(f"not installed (no module {', '.join(MODULES)} with a class DCI)")


OFFICIAL: dict[str, Method] = {
    "bigbird of transformers": HubBigBird(),
    "iceformer official": OfficialIceFormer(),
}
