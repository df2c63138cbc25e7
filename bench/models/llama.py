"""Llama (Touvron et al., arXiv 2302.13971): the method runs its causal stack.

The prompt goes through the method (prefill) and fills a KV cache; the tokens after it are decoded
one by one. With grouped-query attention the method gets keys and values as the cache stores them,
one head a group (methods/sequence.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from bench.models.attention import BlockLayer, Projections, Route, heads
from bench.models.hf import HubFamily, counted, positions
from methods.base import DecodingState, Layer, SequenceInfo, Unsupported


@dataclass(frozen=True)
class LlamaLayer(BlockLayer):
    """One pre-norm block. With a cache it adds its keys and values there."""

    rotary: Any
    cache: Any = None

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        return self.run(hidden, self.mix(self.projected(hidden), self.route(sequence)))

    def step(
        self, hidden: Tensor, sequence: SequenceInfo, exact: bool, state: DecodingState | None
    ) -> Tensor:
        """hidden [B, q, D] of the last tokens of `sequence`; exact: without the method; state: the
        method's own of the tokens before."""
        route, projected = replace(self.route(sequence), state=state), self.projected(hidden)
        if not exact:
            return self.run(hidden, self.mix(projected, route))
        valid = sequence.valid
        mask = None if valid is None else valid[:, None, None]
        return self.run(hidden, self._attend(projected, sequence, attention_mask=mask))

    def run(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The block around its attention sub-layer's output [B, q, D]."""
        hidden = hidden + mixed
        output: Tensor = hidden + self.block.mlp(self.block.post_attention_layernorm(hidden))
        return output

    def projected(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.block.input_layernorm(hidden)
        return output

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        return self._attend(projected, route.sequence, route=route)

    def _attend(self, projected: Tensor, sequence: SequenceInfo, **more: Any) -> Tensor:
        places = positions(sequence, projected)[:, -projected.shape[1] :]
        output: Tensor = self.block.self_attn(
            projected,
            position_embeddings=self.rotary(projected, places),
            past_key_values=self.cache,
            **{"attention_mask": None, **more},
        )[0]
        return output

    def rotated(self, x: Tensor, route: Route) -> Tensor:
        places = positions(route.sequence, x.transpose(1, 2))[:, -x.shape[2] :]
        return self._rotated(x, places)

    def projections(self) -> Projections:
        attention = self.block.self_attn
        return Projections(
            attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
            attention.head_dim, attention.scaling, attention.attention_dropout,
        )  # fmt: skip

    def scores(
        self,
        queries: Tensor,
        query_sequence: SequenceInfo,
        keys: Tensor,
        key_sequence: SequenceInfo,
    ) -> Tensor:
        attention = self.block.self_attn
        query = heads(attention.q_proj(self.projected(queries)), attention.head_dim)
        key = heads(attention.k_proj(self.projected(keys)), attention.head_dim)
        query = self._rotated(query, positions(query_sequence, queries))
        key = self._rotated(key, positions(key_sequence, keys))
        key = repeat_kv(key, attention.num_key_value_groups)
        scores: Tensor = query @ key.transpose(-1, -2) * attention.scaling
        return scores

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        """x [B, H, n, d] with the rotary embedding of positions [B or 1, n]."""
        rotated: Tensor = apply_rotary_pos_emb(x, x, *self.rotary(x, places))[0]
        return rotated


class LlamaFamily(HubFamily):
    """Any Llama checkpoint with the method in its stack. New tokens attend to the cache exactly,
    or, where `Method.decodes()` is true, by the method: one query over all keys."""

    kinds = ("llama",)
    architecture = LlamaForCausalLM
    causal = True
    tiny_config: ClassVar[dict[str, Any]] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
    }

    @property
    def layers(self) -> Sequence[Layer]:
        return self._layers(None)

    @property
    def head_size(self) -> int:
        return int(self.model.model.layers[0].self_attn.head_dim)

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm; always causal."""
        return self._forward(self.layers, ids, sequence)

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        """Prompt and target go through the method in one forward pass."""
        ids, sequence = padded_left(ids, sequence)
        ids, sequence = appended(ids, sequence, target[:, :-1].clamp(min=0))
        logits: Tensor = self.model.lm_head(self.encode(ids, sequence)[:, -target.shape[1] :])
        return logits

    def loss(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        return cross_entropy(self.logits(ids, sequence, target).flatten(0, 1), target.flatten())

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """Only the new tokens, greedy, [B, ≤ max_new_tokens]; a row that has ended is padded.
        Raises Unsupported for a method that runs the layers on other tokens than the prompt's."""
        ids, sequence = padded_left(ids, sequence)
        cache = DynamicCache(config=self.model.config)
        layers = self._layers(cache)
        hidden = self._forward(layers, ids, sequence)[:, -1:]
        if any(cache.get_seq_length(layer.index) != ids.shape[1] for layer in layers):
            raise Unsupported("decoding needs every layer's keys of every token of the prompt")
        state = self.method.decoding_state() if self.method.decodes() else None
        ends = self._ends()
        ended = torch.zeros_like(ids[:, :1], dtype=torch.bool)
        tokens: list[Tensor] = []
        while True:
            token = self.model.lm_head(hidden).argmax(-1)
            token = torch.where(ended, ends[0], token) if len(ends) else token
            tokens.append(token)
            ended |= torch.isin(token, ends)
            if len(tokens) >= max_new_tokens or bool(ended.all()):
                return torch.cat(tokens, 1)
            ids, sequence = appended(ids, sequence, token)
            hidden = self._step(layers, ids, sequence, state)

    def _forward(self, layers: Sequence[Layer], ids: Tensor, sequence: SequenceInfo) -> Tensor:
        if sequence.valid is not None:
            sequence = sequence.replace(positions=counted(sequence, ids))
        hidden = self.model.model.embed_tokens(ids)
        hidden = self.method.encode(layers, hidden, sequence.replace(causal=True))
        output: Tensor = self.model.model.norm(hidden)
        return output

    def _step(
        self,
        layers: Sequence[LlamaLayer],
        ids: Tensor,
        sequence: SequenceInfo,
        state: DecodingState | None,
    ) -> Tensor:
        """The last token of ids [B, n], which attends to the cache → [B, 1, D]."""
        places = counted(sequence, ids)
        sequence = sequence.replace(positions=places, causal=False)
        hidden = self.model.model.embed_tokens(ids[:, -1:])
        for layer in layers:
            hidden = layer.step(hidden, sequence, not self.method.decodes(), state)
        output: Tensor = self.model.model.norm(hidden)
        return output

    def _layers(self, cache: Any) -> list[LlamaLayer]:
        stack = self.model.model
        return [
            LlamaLayer(self, block, index, stack.rotary_emb, cache)
            for index, block in enumerate(stack.layers)
        ]

    def _ends(self) -> Tensor:
        """The end-of-sequence tokens; the first one also pads."""
        ends = self.model.generation_config.eos_token_id
        tokens = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return torch.tensor(tokens, dtype=torch.long, device=self.model.device)


def padded_left(ids: Tensor, sequence: SequenceInfo) -> tuple[Tensor, SequenceInfo]:
    """The same rows with padding on the left, so that new tokens follow the last one."""
    valid = sequence.valid
    if valid is None or bool((valid[:, 1:] >= valid[:, :-1]).all()):
        return ids, sequence
    order = valid.long().argsort(dim=1, stable=True)
    moved = {
        name: value.gather(1, order)
        for name in ("positions", "valid", "vip", "log_multiplicity")
        if (value := getattr(sequence, name)) is not None
    }
    return ids.gather(1, order), sequence.replace(**moved)


def appended(ids: Tensor, sequence: SequenceInfo, more: Tensor) -> tuple[Tensor, SequenceInfo]:
    """The rows followed by the tokens `more` [B, t], none of them VIP."""
    t = more.shape[1]
    if t == 0:
        return ids, sequence
    longer: dict[str, Tensor] = {}
    if sequence.positions is not None:
        steps = torch.arange(1, t + 1, device=ids.device)
        longer["positions"] = torch.cat((sequence.positions, sequence.positions[:, -1:] + steps), 1)
    for name, value in (("valid", True), ("vip", False), ("log_multiplicity", 0)):
        old = getattr(sequence, name)
        if old is not None:
            longer[name] = torch.cat((old, old.new_full((len(ids), t), value)), 1)
    return torch.cat((ids, more), 1), sequence.replace(**longer)
