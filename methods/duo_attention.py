"""DuoAttention (Xiao et al., arXiv 2410.10819): some KV heads keep all entries, others stream.

A streaming head keeps the first `sinks` tokens and the last `recent` ones; each new token replaces
the oldest of these. With a share s of such heads and n tokens, the cache holds 1 - s (1 - (sinks +
recent) / n) of the entries: `share` is not the ratio of compression.

A `pattern`, a table of numbers by layer and KV head, chooses the heads: the `share` of all heads
with the lowest numbers streams. That is the format of the paper's learned patterns
(full_attention_heads.tsv of the official code), which exist for six models.

Without a pattern a rule of this project, not of the paper, chooses: in each layer, the heads stream
in which the last `observed` queries of the prompt attend least to the entries that streaming drops.
Each layer has its share of streaming heads, which differ between prompts.

Differs from the official code (mit-han-lab/duo-attention, MIT):
- All heads read the prompt exactly; there, streaming heads read only sinks and recent tokens.
- Ties in a pattern are broken by order; there, by noise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, Workload
from methods.parts.attention import attention_received, per_key_head
from methods.parts.kv_cache import CacheMethod, once
from methods.parts.parameters import NonNegative, Positive, Range
from methods.parts.ragged_entries import Choice, RaggedCache

INLINE = re.compile(r"[-+.\deE,; ]+")


@dataclass(frozen=True)
class DuoAttention(CacheMethod):
    """Keeps all entries in some heads, and only sinks and recent entries in the others.

    share     of the KV heads that stream
    sinks     first tokens that a streaming head keeps
    recent    last tokens that a streaming head keeps
    pattern   a file with a line of numbers for each layer, or the table itself, "1 0.2; 0 0.9";
              None: each prompt decides. A row stores the table
    observed  last queries of the prompt that choose the heads when there is no pattern
    """

    # A model's own window would need the token of each entry that a head holds.
    honours: ClassVar[frozenset[Feature]] = frozenset({Feature.SOFTCAP, Feature.SINKS})
    share: Annotated[float, Range(least=0, most=1)] = 0.5
    sinks: NonNegative = 128
    recent: Positive = 256
    pattern: str | None = None
    observed: Positive = 32

    def kv_cache(self, workload: Workload) -> RaggedCache:
        return RaggedCache(self, workload)

    def choice(
        self, row: int, prompt: Sequence[Tensor], call: AttentionCall, workload: Workload
    ) -> Choice:
        query, key, _ = prompt
        n, token = key.shape[2], torch.arange(key.shape[2], device=key.device)
        if self.pattern is not None:
            of_layer = torch.tensor(self._by_pattern(workload)[call.layer], device=key.device)
            streams = of_layer.expand(key.shape[:2])
        else:
            rule = (replace(self, share=0.5, prefill=None), row)
            far = once(call, rule, lambda: self._read_far(query, key, call))
            order = far.argsort(dim=1, stable=True)[:, : self._count(workload, call.layer)]
            streams = torch.zeros_like(far, dtype=torch.bool).scatter_(1, order, True)
        near = (token < self.sinks) | (token >= n - self.recent)
        return Choice(near | ~streams[:, :, None], streams, range(self.sinks, self._most()))

    def keeps_all(self, workload: Workload, layer: int) -> bool:
        if workload.length <= self._most():
            return True
        if self.pattern is not None:
            return not any(self._by_pattern(workload)[layer])
        return self._count(workload, layer) == 0

    def unsupported(self, workload: Workload) -> str | None:
        if self.pattern is not None and workload.causal:
            try:
                self._by_pattern(workload)
            except (OSError, ValueError) as error:
                return f"pattern={self.pattern}: {error}"
        return super().unsupported(workload)

    def exact_limit(self) -> DuoAttention:
        return replace(self, share=0.0, prefill=None)

    def scaled_down(self) -> DuoAttention:
        return replace(self, share=0.5, sinks=2, recent=6)

    def _most(self) -> int:
        return self.sinks + self.recent

    def _count(self, workload: Workload, layer: int) -> int:
        """How many heads of a layer stream, so that up to each layer the share of all heads
        streams."""
        heads = workload.key_heads or workload.heads
        until, before = (math.floor(self.share * heads * i + 0.5) for i in (layer + 1, layer))
        return until - before

    def _read_far(self, query: Tensor, key: Tensor, call: AttentionCall) -> Tensor:
        """[B, G]: the weight that the last queries give to what a streaming head drops."""
        received = attention_received(query, key, call, self.observed)
        return per_key_head(received[:, :, self.sinks : -self.recent].sum(-1), key)

    def _by_pattern(self, workload: Workload) -> list[list[bool]]:
        """For each layer, which heads stream. Raises OSError and ValueError."""
        table, heads = _table(str(self.pattern)), workload.key_heads or workload.heads
        if {len(line) for line in table} != {heads} or len(table) != workload.layers:
            raise ValueError(f"it takes {workload.layers} lines of {heads} numbers for this model")
        numbers = [number for line in table for number in line]
        lowest = sorted(range(len(numbers)), key=numbers.__getitem__)
        chosen = {*lowest[: math.floor(self.share * len(numbers) + 0.5)]}
        return [[i * heads + j in chosen for j in range(heads)] for i in range(workload.layers)]


def _table(pattern: str) -> list[list[float]]:
    """The numbers of a file, or those given as the pattern itself. Raises OSError and
    ValueError."""
    inline = INLINE.fullmatch(pattern) is not None
    text = pattern.replace(";", "\n") if inline else Path(pattern).expanduser().read_text()
    lines = [line.replace(",", " ").split() for line in text.splitlines() if line.strip()]
    table = [[float(word) for word in line] for line in lines]
    if not all(math.isfinite(number) for line in table for number in line):
        raise ValueError("it takes finite numbers")
    return table
