"""Ada-KV (Feng et al., arXiv 2407.11550): SnapKV's budget, shared unequally by the KV heads of
a layer.

The budget is B entries a head before the observation window. The entries of the G heads of a layer
are ranked together, and a head's number among the best B · G is its count c. A head then keeps its
own best c (1 - α) + ⌊α B⌋ entries, rounded half to even, and the window: heads that attend to few
tokens give entries to heads that attend widely. Because of rounding, a layer's sum may differ from
B · G. All later tokens stay, in every head.

Another eviction may give the scores (`scorer`); its protected entries are then kept instead of the
window. TOVA's scores are the same in all heads, so it gains nothing. Expected attention with these
budgets and ε = 0.01 is the entry of kvpress's leaderboard.

CriticalKV (Feng et al., arXiv 2502.03805), `critical`: half of what a head keeps is chosen by
score, the rest by (score + 0.0001) · ‖W v‖₁, W the part of the output projection that reads the
head's value v; averaged over the query heads of a KV head. A score is here the mean over the
window, as in kvpress, to which its authors gave the code. Counts are Ada-KV's.

Differs from the official code (FFY0/AdaKV, MIT):
- It repeats keys and values for each query head unless `gqa_support` is set, with which it suggests
  α = 0.2; here query heads of a KV head are averaged, as in `parts.observation_window`.
- `normalize` is an option of the official code, not of the paper: in the common ranking, a head's
  scores are multiplied by its share of the score that lies in its own best B.
- It runs one row at a time and copies the flat cache at each step; here storage grows in blocks.
kvpress (NVIDIA, Apache-2.0) guarantees each head its own best 20 % instead, counts the window in
CriticalKV's first half, and masks the dropped entries: it frees no memory. Where no head needs its
20 %, Ada-KV with α = 0 and kvpress's window and pool gives its logits up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from methods.base import AttentionCall, Feature, Method, Unsupported, Workload
from methods.parts.attention import per_key_head
from methods.parts.eviction import Evicting, Rows
from methods.parts.kv_cache import once
from methods.parts.observation_window import ObservationWindow
from methods.parts.parameters import Range
from methods.parts.ragged_entries import Choice, RaggedCache

NO_PROJECTION = (
    "critical=true reads the output projection o_proj, which this model's attention lacks"
)
EPSILON = 1e-4
NEGATIVE = "critical=true multiplies scores, and those of its scorer are negative"


@dataclass(frozen=True)
class AdaKV(ObservationWindow):
    """Keeps the entries to which an observation window attends, more in heads that attend widely.

    budget     entries of the prompt, including the protected ones: the mean over the KV heads of a
               layer (`Budget`)
    scorer     the eviction that gives the scores; None: SnapKV's by `window`, `kernel_size` and
               `pooling`
    alpha      the share of the budget that every head keeps in any case
    normalize  the official code's option (see above)
    critical   CriticalKV's second stage
    """

    # A model's own window would need the token of each entry that a head holds.
    honours: ClassVar[frozenset[Feature]] = frozenset({Feature.SOFTCAP, Feature.SINKS})
    alpha: Annotated[float, Range(least=0, most=1)] = 0.5
    normalize: bool = False
    critical: bool = False
    scorer: Method | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scorer is not None and not isinstance(self.scorer, Evicting):
            raise ValueError(f"scorer={type(self.scorer).__name__} gives entries no scores")

    @property
    def reads_modules(self) -> bool:  # type: ignore[override]
        return self.critical

    def kv_cache(self, workload: Workload) -> RaggedCache:  # type: ignore[override]
        return RaggedCache(self, workload)

    def choice(
        self, row: int, prompt: Sequence[Tensor], call: AttentionCall, workload: Workload
    ) -> Choice:
        query, key, value = prompt
        n, scorer = key.shape[2], self.scoring()
        kept = key.new_ones(key.shape[:3], dtype=torch.bool)
        capacity = self.capacity(workload, n, call.layer)
        if capacity < n:
            scores = once(call, (scorer, row), lambda: scorer.scores(query, key, value, call))
            rows = Rows(torch.tensor(0), n, torch.tensor(capacity))
            protected = scorer.protected(torch.arange(n, device=key.device), rows)
            free = torch.arange(n, device=key.device) if protected is None else _where(~protected)
            scores = scores[:, :, free]
            counts = self.counts(scores, capacity - n + len(free))
            if self.critical:
                if bool((scores < 0).any()):
                    raise Unsupported(NEGATIVE)
                first = best(scores, counts // 2)
                if isinstance(scorer, ObservationWindow):
                    scores = scores / scorer.window
                effect = (scores + EPSILON) * _projected_length(value[:, :, free], call)
                scores = effect.masked_fill(first, torch.inf)
            kept[:, :, free] = best(scores, counts)
        return Choice.of(kept)

    def scoring(self) -> Evicting:
        """The eviction that gives the scores, without a budget."""
        if isinstance(self.scorer, Evicting):
            return replace(self.scorer, budget=1.0, prefill=None)
        return ObservationWindow(1.0, self.window, self.kernel_size, self.pooling)

    def least(self) -> int:
        return self.scoring().least()

    def unsupported(self, workload: Workload) -> str | None:
        return self.scoring().unsupported(workload) or super().unsupported(workload)

    def counts(self, scores: Tensor, budget: int) -> Tensor:
        """Scores [B, G, m] → how many entries each head keeps before the window, [B, G]."""
        if self.normalize:
            own = scores.topk(budget).values.sum(-1, keepdim=True)
            scores = scores * own / scores.sum(-1, keepdim=True)
        heads, m = scores.shape[1:]
        head = scores.flatten(1).topk(heads * budget).indices // m
        won = torch.zeros_like(scores[:, :, 0], dtype=torch.float64)
        won.scatter_add_(1, head, torch.ones_like(head, dtype=won.dtype))
        return (won * (1 - self.alpha) + int(self.alpha * budget)).round().long()


def _where(chosen: Tensor) -> Tensor:
    return chosen.nonzero()[:, 0]


def best(scores: Tensor, counts: Tensor) -> Tensor:
    """Bool mask of the `counts` [B, G] largest scores of each head; scores [B, G, m]."""
    most = scores.topk(int(counts.max())).indices
    chosen = torch.arange(most.shape[2], device=scores.device) < counts[:, :, None]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(2, most, chosen)


def _projected_length(value: Tensor, call: AttentionCall) -> Tensor:
    """Values [B, G, m, d] → [B, G, m]: the L1 norm of what a value adds to the output of its
    sub-layer, averaged over its query heads. Raises Unsupported."""
    projection = getattr(call.module and call.module.module, "o_proj", None)
    if projection is None:
        raise Unsupported(NO_PROJECTION)
    weights = projection.weight.unflatten(1, (-1, value.shape[3])).unbind(1)  # H of [D, d]
    group = len(weights) // value.shape[1]
    lengths = [(value[:, i // group] @ w.T).abs().sum(-1) for i, w in enumerate(weights)]
    return per_key_head(torch.stack(lengths, 1), value)
