"""R-KV (Cai et al., arXiv 2505.24133, §3): a cache for long outputs that keeps important keys that
are not redundant.

After the prompt, and again after every `buffer` new tokens, each KV head keeps the last entries and
those with the best scores, within the budget. No entry is dropped until the cache exceeds the
budget for the first time. A score is λ · importance − (1 − λ) · redundancy:

- Importance is the softmax weight of a key for each of the last queries, over the keys before the
  window, averaged over these queries, then the largest among neighbouring entries. Of query heads
  that share keys, the largest logit counts.
- Redundancy is a softmax over the keys of the mean cosine similarity of all keys with a key. Each
  key leaves out its similarity with itself and with the latest key to which it is more similar than
  the threshold, so the latest of similar keys is kept.

Similarities are computed in blocks of keys, without an n×n tensor; their number is still n². A
model's attention sinks count in the output, not in the importance.

Differs from the official code (Zefan-Cai/R-KV, Apache-2.0):
- It keeps the whole prompt until `buffer` new tokens have come; here the prompt is cut to the
  budget at once, as in other methods.
- For a key that is similar to no other, it leaves out the similarity with the first key.
- Some of its versions compute only the similarities of the first row of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Self

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, normalize, pad

from methods.base import AttentionCall, Workload
from methods.parts.attention import CPU_WEIGHTS, WEIGHTS, capped, logits, widened
from methods.parts.eviction import Evicting, EvictingCache, KeptEntries, Rows
from methods.parts.observation_window import KernelSize
from methods.parts.parameters import Budget, Positive, Range

Share = Annotated[float, Range(least=0, most=1)]


@dataclass(frozen=True)
class RKV(Evicting):
    """Keeps important entries that are not similar to others.

    budget       total entries after a choice (`Budget`); the official scripts use
                 numbers such as 1,024
    buffer       new tokens after which entries are chosen again
    window       last tokens, which are kept and whose queries give the importance
    kernel_size  neighbouring entries over which importance is the maximum
    mix_lambda   λ, the weight of importance
    threshold    cosine similarity above which a later key represents an earlier one
    """

    budget: Budget = 0.25
    buffer: Positive = 128
    window: Positive = 8
    kernel_size: KernelSize = 7
    mix_lambda: Share = 0.07
    threshold: Share = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.buffer < self.window:
            raise ValueError(f"buffer is {self.buffer}; it takes window={self.window} or more")

    def scores(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        gone = 0 if call.window is None else max(0, key.shape[2] - call.window)
        score = self.mixed(query[:, :, -self.window :], key[:, :, gone:], None, call)
        return pad(score, (gone, 0))

    def mixed(
        self, query: Tensor, key: Tensor, visible: Tensor | None, call: AttentionCall
    ) -> Tensor:
        """The scores [B, G, m] of keys [B, G, m, d], given in the order of tokens with the window
        last, from the window's queries [B, H, w, d]; `visible` [B, G, m]: None: all."""
        key = widened(key)
        score = capped(logits(widened(query), key, call.scale), call)
        score, least = score.unflatten(1, (key.shape[1], -1)).amax(2), torch.finfo(score.dtype).min
        if visible is not None:
            score = score.masked_fill(~visible[:, :, None], least)
        score[..., -self.window :] = least
        weight = score.softmax(-1).mean(2)
        importance = max_pool1d(weight, self.kernel_size, 1, self.kernel_size // 2)
        similar = redundancy(key, visible, self.threshold)
        return self.mix_lambda * importance - (1 - self.mix_lambda) * similar

    def protected(self, token: Tensor, rows: Rows) -> Tensor:
        return token >= rows.seen - self.window

    def least(self) -> int:
        return self.window + 1

    def scaled_down(self) -> Self:
        return replace(self, budget=12, buffer=6, window=4)

    def kv_cache(self, workload: Workload) -> RKVCache:
        return RKVCache(self, workload)


def redundancy(key: Tensor, visible: Tensor | None, threshold: float) -> Tensor:
    """[B, G, m]: how similar each key of [B, G, m, d] is to the others, as a softmax over the keys
    that are `visible` [B, G, m]; None: all."""
    direction = normalize(key, dim=3)
    if visible is not None:
        direction = direction * visible[..., None]
    m = key.shape[2]
    at_once = CPU_WEIGHTS if key.device.type == "cpu" else WEIGHTS
    rows = max(1, at_once // (key.shape[0] * key.shape[1] * m))
    number, total = torch.arange(1, m + 1, device=key.device), direction.new_zeros(key.shape[:3])
    for start in range(0, m, rows):
        similar = direction[:, :, start : start + rows] @ direction.mT
        similar.diagonal(start, 2, 3).zero_()
        latest = (number * (similar > threshold)).amax(3, keepdim=True)
        total += similar.masked_fill_(number == latest, 0).sum(2)
    if visible is None:
        return (total / m).softmax(-1)
    mean = total / visible.sum(2, keepdim=True).clamp(min=1)
    return mean.masked_fill(~visible, torch.finfo(mean.dtype).min).softmax(-1)


class RKVCache(EvictingCache):
    """The cache of `RKV`.

    prompt  tokens of the prompt, padding included
    recent  the last queries [B, H, window, d] of each layer, in a ring
    """

    method: RKV

    def __init__(self, method: RKV, workload: Workload) -> None:
        super().__init__(method, workload)
        self.prompt = 0
        self.recent: dict[int, Tensor] = {}

    def take(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> None:
        super().take(query, key, value, call)
        self.prompt, (batch, heads, _, size) = key.shape[2], query.shape
        self.recent[call.layer] = query.new_zeros(batch, heads, self.method.window, size)

    def decode(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        entries, buffer, outputs = self.layers[call.layer], self.method.buffer, []
        entries.leave_window(call)
        left = buffer - (entries.seen - self.prompt) % buffer
        cuts = list(range(left, query.shape[2], buffer))
        for q, k, v in zip(*(x.tensor_split(cuts, 2) for x in (query, key, value)), strict=True):
            entries = self.layers[call.layer]
            entries.append(k, v)
            outputs.append(entries.attend(q, call))
            self._record(q, entries.seen, call.layer)
            if (entries.seen - self.prompt) % buffer == 0:
                self._choose(entries, call)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)

    def held(self) -> list[Tensor]:
        return [*super().held(), *self.recent.values()]

    def _record(self, query: Tensor, seen: int, layer: int) -> None:
        """Puts the last of the queries [B, H, t, d] into the ring."""
        last = query[:, :, -self.method.window :]
        token = torch.arange(seen - last.shape[2], seen, device=query.device)
        self.recent[layer][:, :, token % self.method.window] = last

    def _choose(self, entries: KeptEntries, call: AttentionCall) -> None:
        """Frees all but the best entries in rows that hold more than they may."""
        if entries.size <= entries.limit:
            return
        recent, (*_, size) = self.recent[call.layer], entries.key.shape
        order = entries.token.argsort(-1)
        token = entries.token.gather(2, order)
        visible = token >= 0
        if call.window is not None:
            visible &= token > entries.seen - call.window
        key = entries.key.gather(2, order[..., None].expand(-1, -1, -1, size))
        scores = self.method.mixed(recent, key, None if visible.all() else visible, call)
        worth = self.method.worth(scores, token, entries.rows).masked_fill(~visible, -inf)
        best = worth.topk(entries.limit)
        rank = torch.arange(entries.limit, device=token.device)
        none = (rank >= entries.rows.most) | (best.values == -inf)
        index = order.gather(2, best.indices).masked_fill_(none, -1).sort().values
        kept = KeptEntries(entries.key, entries.value, index, entries.rows)
        kept.token.copy_(entries.token.gather(2, index.clamp(min=0)).masked_fill_(index < 0, -1))
        kept.read = entries.read + recent.nbytes
        self.layers[call.layer] = kept
