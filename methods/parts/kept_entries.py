"""The entries that an evicting method keeps of one layer of a decoder's cache.

Shapes: B batch, G key heads, H query heads, n tokens, E entries, d head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from methods.parts.attention import batched_product, capped, logits, softmax
from methods.parts.kv_cache import BLOCK, Entries
from methods.parts.sequence import AttentionCall


@dataclass(frozen=True)
class Rows:
    """The rows of a batch; each field but `seen` is [B or 1, 1, 1].

    first  the number of each row's first token: 0 without padding
    seen   tokens so far, padding included
    most   entries that each row may hold in a KV head
    """

    first: Tensor
    seen: int
    most: Tensor


class KeptEntries(Entries):
    """The entries that an evicting method keeps of one layer. A row may have fewer of them than
    others: the rest of its entries have the token -1 and are not read.

    score  [B, G, E] a number of the method for each entry; 0 for new ones
    place  [B, G, 1] index of the entry that the next token replaces; None: it comes at the end
    read   bytes of keys and values read so far
    """

    def __init__(
        self, key: Tensor, value: Tensor, kept: Tensor, rows: Rows, *score: Tensor
    ) -> None:
        """Copies the entries at indices `kept` [B, G, E] (-1: none) of the prompt's keys and values
        [B, G, n, d], and of `score` [B, G, n] if given."""
        at = kept.clamp(min=0)
        parts = [x.gather(2, _wide(at, x)) for x in (key, value)]
        super(Entries, self).__init__(
            [*parts, kept.contiguous(), *(x.gather(2, at) for x in score)]
        )
        self.seen, self.read, self._rows = rows.seen, 0, rows
        self.limit, self.padded = int(rows.most.max()), bool((kept < 0).any())
        self.place: Tensor | None = None
        self._left_at = self.size

    @property
    def rows(self) -> Rows:
        return Rows(self._rows.first, self.seen, self._rows.most)

    @property
    def score(self) -> Tensor:
        return self._parts[3][:, :, : self.size]

    def dropped(self) -> Tensor:
        """[B, 1]: how many tokens of each row are no longer held."""
        held = (self.token[:, :1] >= 0).sum(-1) if self.padded else self.size
        return self.seen - self._rows.first[:, :, 0] - held

    def append(self, key: Tensor, value: Tensor) -> None:
        """Adds the next tokens' keys and values [B, G, t, d]: one at the index that `displace`
        chose, or all at the end."""
        seen, place = self.seen + key.shape[2], self.place
        if place is None:
            token = torch.arange(self.seen, seen, device=key.device)
            self.add(key, value, token, *(x.new_zeros(()) for x in self._parts[3:]))
        else:
            # Entries as rows of a matrix: `scatter_` would copy all of them in half precision.
            heads, room = place.numel(), self._parts[2].shape[2]
            row = place.flatten() + torch.arange(0, heads * room, room, device=place.device)
            for part, new in zip(self._parts, (key, value), strict=False):
                part.view(heads * room, -1).index_copy_(0, row, new.flatten(0, 2))
            for part, number in zip(self._parts[2:], (self.seen, 0), strict=False):
                part.view(-1).index_fill_(0, row, number)
        self.seen, self.place = seen, None

    def displace(self, worth: Tensor, spare: int, call: AttentionCall) -> None:
        """Lets the next token replace the entry of least `worth` [B, G, E], in rows that hold
        `spare` more than they may. Entries outside the window are worth nothing."""
        if self.size < self.limit + spare:
            return
        if call.window is not None:
            worth = worth.masked_fill(self.token <= self.seen - call.window, -inf)
        if self.padded:
            hole = self.token < 0
            full = (~hole).sum(-1, keepdim=True) >= self._rows.most + spare
            worth = worth.masked_fill(hole & full, inf).masked_fill(hole & ~full, -inf)
        self.place = worth.argmin(-1, keepdim=True)

    def leave_window(self, call: AttentionCall) -> None:
        """Frees the entries that no later query reaches, after every `BLOCK` new tokens. The
        entries are in the order of their tokens."""
        if call.window is None or self.size < self._left_at + BLOCK:
            return
        within = (self.token >= 0) & (self.token > self.seen - call.window)
        most = int(within.sum(-1).max())
        last = within.to(torch.int8).argsort(dim=-1, stable=True)[:, :, -most:]
        self.padded = not bool(within.gather(2, last).all())
        self.token.masked_fill_(~within, -1)
        self._parts = [
            part.gather(2, _wide(last, part) if part.dim() == 4 else last) for part in self.parts()
        ]
        self.size = self._left_at = most

    def attend(self, query: Tensor, call: AttentionCall) -> Tensor:
        self.read += self.bytes()
        return super().attend(query, call)

    def attend_by(self, scores: Tensor, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Scores [B, H, t, E] of `logits` → the output [B, H, t, d] and weights [B, H, t, E]."""
        self.read += self.bytes()
        weights, value = softmax(scores, call), self.value
        by_head = weights.to(value.dtype).view(value.shape[0] * value.shape[1], -1, self.size)
        output = batched_product(by_head, value.flatten(0, 1))
        return output.view(*weights.shape[:3], -1), weights

    def logits(self, query: Tensor, call: AttentionCall, count: int | None = None) -> Tensor:
        """The query of the newest token [B, H, 1, d] → its scores [B, H, 1, E] in float32 or wider,
        or those of the first `count` entries; -inf where nothing is read."""
        scores = capped(logits(query, self.key[:, :, :count], call.scale), call)
        visible = self._visible(query, call)
        return scores if visible is None else scores.masked_fill_(~visible[..., :count], -inf)

    def held(self) -> list[Tensor]:
        place = [] if self.place is None else [self.place]
        return [*super().held(), self._rows.first, self._rows.most, *place]

    def _visible(self, query: Tensor, call: AttentionCall) -> Tensor | None:
        t = query.shape[2]
        window = self.seen if call.window is None else call.window
        if t == 1 and not self.padded and window >= self.seen:
            return None
        at = torch.arange(self.seen - t, self.seen, device=query.device)[:, None]
        token = self.token[:, :, None]
        visible = (token >= 0) & (token <= at) & (token > at - window)
        return visible.repeat_interleave(query.shape[1] // self.key.shape[1], 1)


def _wide(index: Tensor, x: Tensor) -> Tensor:
    """Indices [B, G, k] of entries of x [B, G, E, d], expanded for `gather`."""
    return index[..., None].expand(*index.shape, x.shape[3])
