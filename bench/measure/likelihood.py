"""Likelihood of texts that a model is made to read after a prompt, through a method's cache.

Shapes: B batch, N tokens after the prompt, V vocabulary.
"""

from __future__ import annotations

import json

from torch import Tensor

from bench.execution import arms
from bench.measure import integrity
from bench.measure.forced_answer import forced
from bench.measure.perturbed_inputs import Input
from bench.models.base import Family


def predictions(family: Family, prompts: Input, tokens: Tensor, is_vanilla: bool) -> list[str]:
    """For each prompt the likelihood of its tokens [B, N], as tasks.metrics.likelihood has it. A
    method reads the prompt at once and the tokens one by one; vanilla reads all in one pass, also
    for what a method's predictions are compared with: about the cost of one more prefill for each
    row. Raises NotFiniteError, IntegrityError."""
    own, family.method = family.method, family.method if is_vanilla else arms.vanilla()
    try:
        exact = family.logits(*prompts, tokens).float().log_softmax(-1)
    finally:
        family.method = own
    if is_vanilla:
        return _json(nll=_nll(exact, tokens))
    attended = family.calls
    log_p = forced(family, prompts, tokens).float().log_softmax(-1)
    integrity.check_attention_ran(family, attended)
    kl = (exact.exp() * (exact - log_p)).sum(-1).clamp_min(0)
    equal = (exact.argmax(-1) == log_p.argmax(-1)).int()
    return _json(nll=_nll(log_p, tokens), kl=kl, equal=equal)


def _nll(log_p: Tensor, tokens: Tensor) -> Tensor:
    """[B, N]"""
    return -log_p.gather(-1, tokens[..., None]).squeeze(-1)


def _json(**values: Tensor) -> list[str]:
    """An object for each row of values [B, N], numbers to six digits."""
    named = {name: x.tolist() for name, x in values.items()}
    return [
        json.dumps({name: [float(f"{x:.6g}") if isinstance(x, float) else x for x in rows[i]]
                    for name, rows in named.items()}, separators=(",", ":"))
        for i in range(len(next(iter(named.values()))))
    ]  # fmt: skip
