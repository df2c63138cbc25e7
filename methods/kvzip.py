"""KVzip (Kim et al., arXiv 2505.23416): the entries that the model needs to repeat its prompt.

After the prompt, the model reads it once more, `chunk` tokens at a time, each after a request to
repeat it. From the second chunk on, the last `overlap` tokens of the previous chunk follow the
request. An entry's score is the largest softmax weight that any of these queries gives it, in all
query heads that share its key; the softmax is over the first `sinks` tokens, the chunk and the
tokens of this reading. The entries of all layers and KV heads are ranked together. Those with the
highest scores and the sinks are kept, so that heads and layers hold different numbers. This needs
no question. The second reading takes longer than the first, and is part of the time to the first
token.

Differs from the official code (snu-mllab/KVzip, MIT):
- The sinks are the prompt's first tokens; there, they are the system prompt.
- The request has no chat template. A model without a tokenizer gets no request.
- Exactly the budget is kept; there, entries that tie with the lowest score that fits are dropped.
- Rows of a batch are read again one by one; there, a batch has one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, SequenceInfo, Workload
from methods.parts.attention import (
    CPU_WEIGHTS,
    WEIGHTS,
    batched_product,
    capped,
    logits,
    mask_future,
    softmax,
)
from methods.parts.kv_cache import CacheMethod
from methods.parts.parameters import Budget, NonNegative, Positive, entries, shortage
from methods.parts.ragged_entries import Choice, RaggedEntries, RaggedLayers

WINDOWS = "it reads the prompt again, over layers that keep all of it, and this model has windows"
REPEAT = "\n\nRepeat the previous context exactly."
REPEAT_PART = "\n\nRepeat the part of the previous context exactly, starting with "
Reread = tuple[Tensor, SequenceInfo, Callable[[Tensor, Tensor, Tensor, AttentionCall], Tensor]]


@dataclass(frozen=True)
class KVzip(CacheMethod):
    """Keeps the entries that are needed to repeat the prompt.

    budget   entries of the prompt, the mean over layers and KV heads (`Budget`)
    chunk    tokens that are repeated at a time
    overlap  last tokens of the previous chunk, repeated before a chunk
    sinks    first tokens, which are always kept
    """

    honours: ClassVar[frozenset[Feature]] = frozenset({Feature.SOFTCAP, Feature.SINKS})
    budget: Budget = 0.3
    chunk: Positive = 2048
    overlap: NonNegative = 8
    sinks: NonNegative = 4

    def kv_cache(self, workload: Workload) -> ZippedCache:
        return ZippedCache(self, workload)

    def kept(self, scores: Tensor, workload: Workload) -> Tensor:
        """Bool mask of a row's entries that are kept, given their scores [L, G, n] in all
        layers."""
        scores = scores.clone()
        scores[:, :, : self.sinks] = torch.inf
        layers, heads, n = scores.shape
        count = min(n, max(self.sinks, entries(self.budget, workload, n))) * layers * heads
        kept = torch.zeros_like(scores, dtype=torch.bool)
        kept.view(-1)[scores.flatten().topk(count).indices] = True
        return kept

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        return entries(self.budget, workload, workload.length) >= workload.length

    def unsupported(self, workload: Workload) -> str | None:
        if workload.window_layers:
            return WINDOWS
        reason = super().unsupported(workload)
        return reason or shortage(self.budget, workload, self.sinks + 1)

    def exact_limit(self) -> Self:
        return replace(self, budget=4096, prefill=None)

    def scaled_down(self) -> Self:
        return replace(self, budget=12, chunk=16, sinks=2)


class ZippedCache(RaggedLayers):
    """Holds all of a prompt until it has been read again.

    prompt  until then, for each layer the keys and values [B, G, n, d] and the valid tokens [B, n]
    memo    see `AttentionCall`: other budgets need the same scores
    """

    def __init__(self, method: KVzip, workload: Workload) -> None:
        super().__init__()
        self.method, self.workload = method, workload
        self.prompt: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self.memo: dict[Any, Tensor] | None = None

    def prefill(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        output = self.method.attend(query, key, value, call)
        self.take(query, key, value, call)
        return output

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        valid = call.sequence.valid
        if valid is None:
            valid = torch.ones_like(key[:, 0, :, 0], dtype=torch.bool)
        self.prompt[call.layer] = (key.clone(), value.clone(), valid.clone())
        if self.memo is None:
            self.memo = call.memo

    def rereads(self, ids: Tensor, tokenizer: Any) -> Iterator[Reread]:
        """See `KVCache`; then keeps the best entries of each row. A prompt that another cache has
        read again with the same chunks isn't read once more."""
        method, memo = self.method, {} if self.memo is None else self.memo
        of = (type(method), method.chunk, method.overlap, method.sinks)
        if of not in memo:
            key, _, _ = self.prompt[0]
            scores = key.new_zeros(len(self.prompt), *key.shape[:3], dtype=torch.float32)
            yield from self._rereads(ids, tokenizer, scores)
            memo[of] = scores
        kept = torch.zeros_like(memo[of], dtype=torch.bool)
        for row, first in enumerate(self._begins()):
            kept[:, row, :, first:] = method.kept(memo[of][:, row, :, first:], self.workload)
        self._keep(dict(enumerate(kept)))

    def _begins(self) -> list[int]:
        """The first valid token of each row."""
        _, _, valid = self.prompt[0]
        begins: list[int] = (~valid).sum(1).tolist()
        return begins

    def _rereads(self, ids: Tensor, tokenizer: Any, scores: Tensor) -> Iterator[Reread]:
        """Fills the scores [L, B, G, n] of all rows."""
        for row, (tokens, first) in enumerate(zip(ids, self._begins(), strict=True)):
            for start in range(first + self.method.sinks, len(tokens), self.method.chunk):
                chunk = slice(start, min(start + self.method.chunk, len(tokens)))
                more = self._request(tokens, chunk, first, tokenizer)
                places = torch.arange(len(tokens) - first + more.shape[1], device=ids.device)
                attend = partial(self._reread, row, first, chunk, scores)
                yield more, SequenceInfo(places[None], causal=True), attend

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if self.prompt:  # not yet read again
            everything = self.prompt.items()
            self._keep({layer: v[:, None].expand(k.shape[:3]) for layer, (k, _, v) in everything})
        return super().decode(query, key, value, call)

    def held(self) -> Sequence[Tensor]:
        return [*super().held(), *(part for parts in self.prompt.values() for part in parts)]

    def _keep(self, kept: dict[int, Tensor]) -> None:
        self.memo = None
        for layer, chosen in kept.items():
            key, value, _ = self.prompt.pop(layer)
            self.layers[layer] = RaggedEntries(key, value, Choice.of(chosen))

    def _request(self, tokens: Tensor, chunk: slice, first: int, tokenizer: Any) -> Tensor:
        """[1, t]: the request to repeat a chunk of the tokens [n], and the chunk."""
        begins = chunk.start == first + self.method.sinks
        words = tokenizer(REPEAT if begins else REPEAT_PART).input_ids if tokenizer else []
        before = chunk.start if begins else max(first, chunk.start - self.method.overlap)
        return torch.cat((tokens.new_tensor(words), tokens[before : chunk.stop]))[None]

    def _reread(
        self,
        row: int,
        first: int,
        chunk: slice,
        scores: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        call: AttentionCall,
    ) -> Tensor:
        """Exact attention of the tokens of this reading, query [1, H, t, d], to a row's prompt,
        which begins at `first`, and to each other; records the scores of the chunk."""
        old = (x[row : row + 1, :, first:] for x in self.prompt[call.layer][:2])
        keys, values = (torch.cat(pair, 2) for pair in zip(old, (key, value), strict=True))
        sinks, chunk_of = self.method.sinks, slice(chunk.start - first, chunk.stop - first)
        output, largest = _read_again(query, keys, values, call, sinks, chunk_of)
        scores[call.layer][row, :, chunk] = largest.unflatten(1, (key.shape[1], -1)).amax((0, 2))
        return output


def _read_again(
    query: Tensor, keys: Tensor, values: Tensor, call: AttentionCall, sinks: int, chunk: slice
) -> tuple[Tensor, Tensor]:
    """Attention of the queries [B, H, t, d] to the keys and values [B, G, m, d], of which the last
    t are the queries' own → the output [B, H, t, d], and the largest weight [B, H, c] of each entry
    of the chunk in a softmax over the first `sinks` entries, the chunk and the queries' own.
    Computed in blocks of queries; a block doesn't read the keys after it."""
    (batch, heads, t, _), (groups, m) = query.shape, keys.shape[1:3]
    at_once = 2 * CPU_WEIGHTS if query.device.type == "cpu" else WEIGHTS  # fewer multiply slowly
    rows, old = max(1, at_once // (batch * heads * m)), m - t
    largest = query.new_zeros(batch, heads, chunk.stop - chunk.start, dtype=torch.float32)
    outputs = []
    for start in range(0, t, rows):
        end = old + min(start + rows, t)
        block = logits(query[:, :, start : start + rows], keys[:, :, :end], call.scale)
        block = capped(block, call)
        block[..., old + start :] = mask_future(block[..., old + start :], 0)
        weights = softmax(block, call)
        by_head = weights.to(values.dtype).view(batch * groups, -1, end)
        output = batched_product(by_head, values[:, :, :end].flatten(0, 1))
        outputs.append(output.view(*weights.shape[:3], -1))
        of_chunk = weights[..., chunk]
        if sinks < chunk.start or chunk.stop < old:
            parts = (weights[..., :sinks], of_chunk, weights[..., old:])
            total = sum(part.sum(-1, keepdim=True) for part in parts)
            if call.sinks is not None:  # their weight is left out of `weights`
                total = total + 1 - weights.sum(-1, keepdim=True)
            of_chunk = of_chunk / total
        largest = torch.maximum(largest, of_chunk.amax(2))
    return torch.cat(outputs, 2), largest
