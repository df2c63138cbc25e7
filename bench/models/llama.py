"""Llama (Touvron et al., arXiv 2302.13971): a causal stack that a method reads.

The prompt goes through the method (prefill) and fills a key-value cache; the tokens after it are
decoded one by one. Keys and values of grouped queries reach the method as they are in the cache,
one head for each group (methods/base.py).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

from bench.models.attention import Route
from bench.models.base import Family
from bench.models.hf import HubFamily, counted, heads, positions
from methods.base import Layer, Memory, Sequence, Unsupported


@dataclass(frozen=True)
class LlamaLayer:
    """One block, as a method sees it. With a cache it adds its keys and values there."""

    family: Family
    block: Any
    rotary: Any
    index: int
    cache: Any = None

    def __call__(self, hidden: Tensor, sequence: Sequence) -> Tensor:
        return self.at(hidden, positions(sequence, hidden), sequence)

    def at(
        self,
        hidden: Tensor,
        places: Tensor,
        sequence: Sequence,
        exact: bool = False,
        memory: Memory | None = None,
    ) -> Tensor:
        """hidden [B, q, D] at places [B or 1, q], reading what `sequence` describes; exact: the
        method isn't asked; memory: what it has kept of the tokens before."""
        valid = sequence.valid
        reads = {"attention_mask": None if valid is None else valid[:, None, None]}
        route = Route(self.family, sequence, self.index, memory=memory)
        output: Tensor = self.block(
            hidden,
            position_embeddings=self.rotary(hidden, places),
            past_key_values=self.cache,
            **(reads if exact else {"route": route}),
        )
        return output

    def scores(
        self, queries: Tensor, query_sequence: Sequence, keys: Tensor, key_sequence: Sequence
    ) -> Tensor:
        attention, norm = self.block.self_attn, self.block.input_layernorm
        size, groups = attention.head_dim, attention.num_key_value_groups
        query, key = attention.q_proj(norm(queries)), attention.k_proj(norm(keys))
        query = self._turned(heads(query, query.shape[-1] // size), query_sequence, queries)
        key = self._turned(heads(key, key.shape[-1] // size), key_sequence, keys)
        scores: Tensor = query @ repeat_kv(key, groups).transpose(-1, -2) * attention.scaling
        return scores

    def _turned(self, x: Tensor, sequence: Sequence, tokens: Tensor) -> Tensor:
        """Each token's rotary turn, on x [B, H, n, d]."""
        turned: Tensor = apply_rotary_pos_emb(
            x, x, *self.rotary(tokens, positions(sequence, tokens))
        )[0]
        return turned


class LlamaFamily(HubFamily):
    """Any Llama checkpoint with a method in its stack. New tokens read the cache exactly, or, where
    `Method.decodes()` says so, by the method: one query over all keys."""

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
    def layers(self) -> Items[Layer]:
        return self._layers(None)

    @property
    def head_size(self) -> int:
        return int(self.model.model.layers[0].self_attn.head_dim)

    def encode(self, ids: Tensor, sequence: Sequence) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm; causal whatever the sequence says."""
        return self._walk(self.layers, ids, sequence)

    def logits(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        """Prompt and target are read in one walk, the method's from end to end."""
        ids, sequence = padded_left(ids, sequence)
        ids, sequence = appended(ids, sequence, target[:, :-1].clamp(min=0))
        logits: Tensor = self.model.lm_head(self.encode(ids, sequence)[:, -target.shape[1] :])
        return logits

    def loss(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        return cross_entropy(self.logits(ids, sequence, target).flatten(0, 1), target.flatten())

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> Tensor:
        """The new tokens alone, greedy, [B, ≤ max_new_tokens]; a row that has ended is padded.
        Raises Unsupported for a method that walks the layers on other tokens than the prompt's."""
        ids, sequence = padded_left(ids, sequence)
        cache = DynamicCache(config=self.model.config)
        layers = self._layers(cache)
        hidden = self._walk(layers, ids, sequence)[:, -1:]
        if any(cache.get_seq_length(layer.index) != ids.shape[1] for layer in layers):
            raise Unsupported("decoding needs every layer's keys of every token of the prompt")
        memory = self.method.memory() if self.method.decodes() else None
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
            hidden = self._step(layers, ids, sequence, memory)

    def _walk(self, layers: Items[Layer], ids: Tensor, sequence: Sequence) -> Tensor:
        if sequence.valid is not None:
            sequence = sequence.replace(positions=counted(sequence, ids))
        hidden = self.model.model.embed_tokens(ids)
        hidden = self.method.encode(layers, hidden, sequence.replace(causal=True))
        output: Tensor = self.model.model.norm(hidden)
        return output

    def _step(
        self, layers: Items[LlamaLayer], ids: Tensor, sequence: Sequence, memory: Memory | None
    ) -> Tensor:
        """The last token of ids [B, n], which reads all before it in the cache → [B, 1, D]."""
        places = counted(sequence, ids)
        sequence = sequence.replace(positions=places, causal=False)
        hidden = self.model.model.embed_tokens(ids[:, -1:])
        for layer in layers:
            exact = not self.method.decodes()
            hidden = layer.at(hidden, places[:, -1:], sequence, exact, memory)
        output: Tensor = self.model.model.norm(hidden)
        return output

    def _layers(self, cache: Any) -> list[LlamaLayer]:
        stack = self.model.model
        return [
            LlamaLayer(self, block, stack.rotary_emb, index, cache)
            for index, block in enumerate(stack.layers)
        ]

    def _ends(self) -> Tensor:
        """The tokens that end an answer, the one that pads it first."""
        ends = self.model.generation_config.eos_token_id
        found = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return torch.tensor(found, dtype=torch.long, device=self.model.device)


def padded_left(ids: Tensor, sequence: Sequence) -> tuple[Tensor, Sequence]:
    """The same rows with their padding first, so that what is appended follows the last token."""
    valid = sequence.valid
    if valid is None or bool((valid[:, 1:] >= valid[:, :-1]).all()):
        return ids, sequence
    order = valid.long().argsort(dim=1, stable=True)
    told = {
        name: value.gather(1, order)
        for name in ("positions", "valid", "vip", "log_multiplicity")
        if (value := getattr(sequence, name)) is not None
    }
    return ids.gather(1, order), sequence.replace(**told)


def appended(ids: Tensor, sequence: Sequence, more: Tensor) -> tuple[Tensor, Sequence]:
    """Rows with the tokens `more` [B, t] after them, none of them VIP."""
    t = more.shape[1]
    if t == 0:
        return ids, sequence
    told: dict[str, Tensor] = {}
    if sequence.positions is not None:
        steps = torch.arange(1, t + 1, device=ids.device)
        told["positions"] = torch.cat((sequence.positions, sequence.positions[:, -1:] + steps), 1)
    for name, value in (("valid", True), ("vip", False), ("log_multiplicity", 0)):
        given = getattr(sequence, name)
        if given is not None:
            told[name] = torch.cat((given, given.new_full((len(ids), t), value)), 1)
    return torch.cat((ids, more), 1), sequence.replace(**told)
