"""How far the method's output is from exact attention at the same weights and input."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional

from bench.children import arms
from bench.children.wrapped import Wrapped
from bench.models.base import Family
from methods.base import Call, Method, Sequence


def fidelity(family: Family, exact: Method, batch: tuple[Tensor, Sequence]) -> dict[str, Any]:
    """Errors over the valid tokens of the last hidden states, and of the first logits; means
    over layers of what the method tells of its choices.
    The family's method is left as it was."""
    ids, sequence = batch
    method = family.method
    outputs = []
    for one in (exact, method):
        family.method = one
        hidden = family.encode(ids, sequence).float()
        if sequence.valid is not None and hidden.shape[:2] == sequence.valid.shape:
            hidden = hidden[sequence.valid]
        logits = arms.first_token(family, ids, sequence).float()
        outputs.append((hidden.flatten(0, -2), logits.flatten(0, -2)))
    (hidden, logits), (got_hidden, got_logits) = outputs
    if got_hidden.shape != hidden.shape:
        return {"fid_reason": "the method's output has another length than its input"}
    error = got_hidden - hidden
    family.method = looking = Diagnosed(method)
    family.encode(ids, sequence)
    family.method = method
    log_exact, log_got = logits.log_softmax(-1), got_logits.log_softmax(-1)
    return {
        "fid_rel_l2": float(error.norm() / hidden.norm()),
        "fid_max_abs": float(error.abs().max()),
        "fid_cos_min": float(functional.cosine_similarity(got_hidden, hidden, dim=-1).min()),
        "fid_kl_mean": float((log_exact.exp() * (log_exact - log_got)).sum(-1).mean().clamp_min(0)),
        "fid_top1_agree": float((logits.argmax(-1) == got_logits.argmax(-1)).float().mean()),
        **{f"fid_{name}": statistics.mean(values) for name, values in looking.found.items()},
    }


@dataclass(frozen=True)
class Diagnosed(Wrapped):
    """A method that is asked in each layer how well it chose what to read."""

    found: dict[str, list[float]] = field(default_factory=dict)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        for name, value_found in self.method.diagnose(query, key, call).items():
            self.found.setdefault(name, []).append(value_found)
        return super().attend(query, key, value, call)
