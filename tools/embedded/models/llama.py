"""A new Llama: its tokenizer, its first weights, and a fast way to train it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.functional import pad as pad_to
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from bench.request import plugins
from methods.base import AttentionCall, Method
from tools.embedded.models.tokenizer import LIKELY, unigram


def build_tokenizer(words: list[str]) -> Any:
    """Known words as one token, digits and marks one by one, any other text as pieces, letters and
    bytes."""
    known = [*(f"▁{word}" for word in words), *words, "▁<"]
    return unigram(
        [(LIKELY, known)], single="<s> $A", pair="<s> $A $B", prepend="never", bos_token="<s>"
    )


def looking_back(windows: Tensor, frequencies: Tensor, distances: int, steps: int) -> Tensor:
    """Queries [H, 2·F] that, over keys of ones and then zeros, look back by the distances of
    windows [H, 2] (lowest and highest), out of `distances`: a rotary score of constant queries and
    keys is a sum of waves in the distance, whose amplitudes are fitted here."""
    phase = torch.arange(distances)[:, None] * frequencies
    waves = torch.cat((phase.cos(), -phase.sin()), 1)
    distance = torch.arange(distances)
    wanted = (distance >= windows[:, :1]) & (distance <= windows[:, 1:])
    wanted = wanted / wanted.sum(1, keepdim=True)
    queries = torch.zeros(len(windows), waves.shape[1], requires_grad=True)
    optimizer = torch.optim.Adam([queries], lr=1.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1.0 - step / steps
        scores = queries @ waves.t()
        # Near the start of a text only the first distances exist.
        loss = torch.zeros(())
        for seen in (distances, distances // 16, distances // 128):
            loss = loss - (wanted[:, :seen] * scores[:, :seen].log_softmax(1)).sum()
        optimizer.zero_grad()
        (loss + 1e-4 * queries.square().sum()).backward()
        optimizer.step()
    return queries.detach()


def first_weights(new: Any) -> tuple[Any, Any]:
    """A new model, its attention laid out for retrieval, and its tokenizer.

    Retrieval by content needs tokens that encode the tokens before them and attend to similar ones;
    training alone stays on a plateau for a long time. At first each part has its own dimensions of
    the hidden state: words that name lines (`names` of them), other tokens (`marks`), the tokens
    one, two, … before (`back` each, one head of the first layer for each), and the names in a
    `window` of distances (one more head). In the last layer a query reads its own token and those
    before it, a key those one further back, and both the names: an induction head for a line. Its
    values are the tokens themselves. The remaining heads start at random.
    """
    words, naming = plugins.load(new.vocabulary)()
    tokenizer = build_tokenizer([*words, *naming])
    sizes: Any = OmegaConf.to_container(new.config)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        tie_word_embeddings=True,
        attention_bias=True,
        **sizes,
    )
    model = LlamaForCausalLM(config)
    first, *_, last = [block.self_attn for block in model.model.layers]
    frequencies = model.model.rotary_emb.inv_freq
    windows = torch.tensor([*([n, n] for n in range(1, new.shifts + 1)), [*new.window]])
    queries = looking_back(windows, frequencies, new.distances, steps=400)
    tokens = [tokenizer.convert_tokens_to_ids([word, f"▁{word}"]) for word in naming]
    with torch.no_grad():
        place(model.model.embed_tokens.weight, torch.tensor(tokens), new)
        look_back(first, queries)
        reads = copy_tokens(first, config.hidden_size, new)
        retrieve(last, reads, new, frequencies)
    return model, tokenizer


def place(table: Tensor, tokens: Tensor, new: Any) -> None:
    """Sets embeddings of length 1 or so: `tokens` [words, forms] in the dimensions for names, the
    same for each form, and all other tokens in those for marks."""
    table.zero_()
    table[:, : new.marks] = torch.randn(len(table), new.marks) / new.marks**0.5
    table[tokens] = 0
    own = torch.randn(len(tokens), 1, new.names) / new.names**0.5
    table[tokens, new.marks : new.marks + new.names] = own


def look_back(attention: Any, queries: Tensor) -> None:
    """Sets the queries [H, d] of `looking_back` in the first heads, the same for all tokens."""
    size, placed = attention.head_dim, queries.numel()
    key = (size**0.5 * queries.square().mean().sqrt()).sqrt()
    keys = torch.tensor([key, 0.0]).repeat_interleave(size // 2)
    attention.q_proj.bias[:placed] = (queries * size**0.5 / key).flatten()
    attention.k_proj.bias[:placed] = keys.repeat(len(queries))
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight[:placed] = 0


def copy_tokens(attention: Any, width: int, new: Any) -> list[Tensor]:
    """Lets the first heads copy the attended tokens. Returns projections to the parts of the hidden
    state, each [dimensions, D]: the token as a head copies it, the tokens before it, the names."""
    size, own = attention.head_dim, new.marks + new.names
    # A normed token has length √D.
    mark = torch.zeros(new.back, width)
    mark[:, : new.marks] = nn.init.orthogonal_(torch.empty(new.back, new.marks)) / width**0.5
    name = torch.zeros(new.names, width)
    name[:, new.marks : own] = torch.eye(new.names) / width**0.5
    seen = new.window[1] - new.window[0] + 1
    reads, at = [mark * width**0.5], own
    attention.o_proj.weight *= 0.3
    for head, values in enumerate([*[mark] * new.shifts, name * seen]):
        rows = slice(head * size, head * size + len(values))
        whole = slice(head * size, (head + 1) * size)
        attention.v_proj.weight[whole] = 0
        attention.v_proj.weight[rows] = values
        attention.o_proj.weight[:, whole] = 0
        attention.o_proj.weight[at : at + len(values), rows] = torch.eye(len(values))
        reads.append(torch.eye(width)[at : at + len(values)])
        at += len(values)
    return reads


def retrieve(attention: Any, reads: list[Tensor], new: Any, frequencies: Tensor) -> None:
    """Lets each head attend to the token that followed these tokens in a line of this name, in the
    dimensions that rotate too slowly to encode distances, and copy it."""
    *tokens, name = reads
    size = attention.head_dim
    still = (frequencies < new.still).nonzero()[:, 0]
    still = torch.cat((still, still + size // 2))
    for projection in (attention.q_proj, attention.k_proj):
        projection.weight *= 0.1
    attention.v_proj.weight.zero_()
    attention.o_proj.weight.zero_()
    for head in range(attention.q_proj.out_features // size):
        rows = head * size + still
        for asked, held, gain in [
            (name, name, new.likeness),
            *((asked, held, new.order) for asked, held in itertools.pairwise(tokens)),
        ]:
            mixed = gain * torch.randn(len(still), len(asked)) / len(still) ** 0.5
            attention.q_proj.weight[rows] += mixed @ asked
            attention.k_proj.weight[rows] += mixed @ held
        rows = slice(head * size, (head + 1) * size)
        copied = nn.init.orthogonal_(torch.empty(size, new.marks)) * new.copying
        attention.v_proj.weight[rows, : new.marks] = copied
        attention.o_proj.weight[: new.marks, rows] = copied.t()


@dataclass(frozen=True)
class Nearby(Method):
    """Vanilla for a model whose layers attend only to the last few tokens: a token reads at least
    `size` and at most 2 · `size` tokens. For training."""

    size: int = 64

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """query, key, value [B, H, n, d] → [B, H, n, d]"""
        n, size = query.shape[2], self.size
        pad = (0, 0, size, -n % size)
        # Keys are padded by one block, so block i of the queries reads their blocks i and i + 1.
        key, value = (
            pad_to(x, pad).unfold(2, 2 * size, size).transpose(-1, -2) for x in (key, value)
        )
        query = pad_to(query, (0, 0, 0, -n % size)).unflatten(2, (-1, size))
        place = torch.arange(query.shape[2])[:, None, None] * size
        of_query, of_key = place + torch.arange(size)[:, None], place + torch.arange(-size, size)
        seen = (of_key >= 0) & (of_key <= of_query)
        blocks = scaled_dot_product_attention(query, key, value, seen, scale=call.scale)
        return blocks.flatten(2, 3)[:, :, :n]
