"""Reformer (Kitaev et al., arXiv 2001.04451): attention among tokens that hash to the same bucket.

Queries and keys are one vector x, keys of length 1 (§2, "shared-QK"). h(x) = argmax [xR; -xR] for a
random R; tokens are sorted by bucket and position and cut into chunks, and a token reads the tokens
of its bucket in its own and the previous chunk (§2, eqs. 4-5; cyclic). It reads itself only if
there is no other. Several rounds of hashing are merged in one softmax. O(n · rounds · chunk · d + n
log n).

x is the mean of query and key: with weights trained with W_q = W_k it equals both; other weights
become such a model with (W_q + W_k)/2, and need training. Scores have no scale, as in the official
code.

Official codes: google/trax, google-research/long-range-arena and transformers' (all Apache-2.0).

Differs from official codes:
- transformers' reads other buckets in the two chunks (`own_bucket`), counts a pair in each round
  that contains it (`multiplicity`), and chains the rounds: the first chunk of each reads the last
  chunk of the previous round (`before_first`); its hashes change with every forward pass.
- LRA's multiplies scores by √d, keeps keys' lengths, masks neither padding nor the token itself,
  and always has 10 chunks, so that it is quadratic.
- A causal sequence is refused: later tokens move chunks, so an output would depend on them in spite
  of masks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from methods.base import AttentionCall, Method, Unsupported, Workload
from methods.parts.attention import per_head, widened
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.partial import Partial
from methods.parts.sequence import without_padding
from methods.reformer.lsh import Chunks, rotations

CAUSAL = "chunks of sorted tokens move with later tokens, so a causal model would see its future"
SELF = -1e5
"""The score of a token for itself: it counts only where there is no other."""
DRAWN = 1_000_003  # the seeds of two layers differ by this


@dataclass(frozen=True)
class Reformer(Method):
    """LSH attention.

    chunk         tokens in a chunk
    rounds        of hashing
    buckets       an even number; None: 2 · ⌈n / chunk⌉, two for each chunk (§2)
    own_bucket    whether only tokens of the same bucket are read in the two chunks
    multiplicity  a pair in several rounds counts "once" (the paper's), or is "counted" each time
    before_first  the chunk before a round's first one: the last chunk of the "same" or of the
                  "previous" round, which for the first round is the last one. Buckets of two rounds
                  can't be compared: "previous" needs own_bucket=false and multiplicity=counted
    seed          seed of the hashes, drawn for each layer, head and round

    No attention dropout. Raises Unsupported for a causal sequence.
    """

    chunk: Positive = 64
    rounds: Positive = 1
    buckets: Annotated[int, Range(least=2, step=2)] | None = None
    own_bucket: bool = True
    multiplicity: Literal["once", "counted"] = "once"
    before_first: Literal["same", "previous"] = "same"
    seed: NonNegative = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.before_first == "previous" and (self.own_bucket or self.multiplicity == "once"):
            raise ValueError(
                "before_first=previous needs own_bucket=false and multiplicity=counted"
            )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        if call.sequence.causal:
            raise Unsupported(CAUSAL)
        return without_padding(self._unpadded, query, key, value, call)

    def unsupported(self, workload: Workload) -> str | None:
        return CAUSAL if workload.causal else None

    def scaled_down(self) -> Method:
        return replace(self, chunk=8, buckets=2)

    def state_bytes(self, workload: Workload) -> int:
        """The scores of one layer."""
        pairs = workload.length * min(2 * self.chunk, workload.length) * self.rounds
        return workload.bytes_per_element * workload.batch * workload.heads * pairs

    def hashes(self, x: Tensor, layer: int) -> Tensor:
        """[rounds, B, H, n]: the buckets of x [B, H, n, d]."""
        buckets = self.buckets or 2 * -(-x.shape[2] // self.chunk)
        size = (self.rounds, x.shape[1], x.shape[3], buckets // 2)
        turned = x.detach() @ rotations(size, self.seed + DRAWN * layer).to(x)[:, None]
        return torch.cat((turned, -turned), -1).argmax(-1)

    def _unpadded(
        self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall, valid: Tensor | None
    ) -> Tensor:
        q, k, v = (widened(x) for x in (query, *per_head(query, key, value)))
        x, n, chunk = (q + k) / 2, query.shape[2], min(self.chunk, query.shape[2])
        buckets = self.hashes(x, call.layer)
        orders = (buckets * n + torch.arange(n, device=x.device)).argsort(-1)
        ranks = orders.argsort(-1)  # rank of each token in that order
        merged: Partial | None = None
        rounds = [Chunks.of(order, chunk) for order in orders]
        if self.before_first == "previous":
            rounds = [chunks.after(rounds[i - 1]) for i, chunks in enumerate(rounds)]
        for index, chunks in enumerate(rounds):
            keys = chunks.of_keys(normalize(x, dim=-1))
            scores = chunks.of_queries(x) @ keys.transpose(3, 4) + chunks.bias(call, x)
            visible = (chunks.keys >= 0)[..., None, :]
            if self.own_bucket:
                visible = visible & chunks.in_bucket(buckets[index].int())
            if self.multiplicity == "once" and self.rounds > 1:
                scores = scores - self._times(chunks, buckets, ranks // chunk).log()
            itself = chunks.queries[..., :, None] == chunks.keys[..., None, :]
            scores = scores.masked_fill(itself, SELF)
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
            part = Partial.from_scores(scores, chunks.of_keys(v))
            back = ranks[index][..., None]
            output = part.output.flatten(2, 3).gather(2, back.expand_as(v))
            part = Partial(output, part.log_sum.flatten(2, 3).gather(2, back))
            merged = part if merged is None else merged.merged(part)
        assert merged is not None
        return merged.output.to(query.dtype)

    def _times(self, chunks: Chunks, buckets: Tensor, places: Tensor) -> Tensor:
        """[B, H, C, chunk, 2 chunk] float32: how many rounds contain a pair, by their buckets and
        chunks of the tokens [rounds, B, H, n]; at least 1."""
        times = torch.zeros((), device=buckets.device)
        for bucket, place in zip(buckets.int(), places.int(), strict=True):
            shown = chunks.in_reach(place)
            times = times + (shown & chunks.in_bucket(bucket) if self.own_bucket else shown)
        return times.clamp(min=1)
