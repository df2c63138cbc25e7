"""Likelihood of given texts that a model reads after a prompt, through a method's cache.

Shapes: B batch, N tokens after the prompt, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Generator

import torch
from torch import Tensor

from bench.execution import arms
from bench.measure import integrity
from bench.measure.perturbed_inputs import Input
from bench.models.base import Decoding, Family
from bench.models.decoder import DecoderFamily


def predictions(family: Family, prompts: Input, tokens: Tensor, is_vanilla: bool) -> list[str]:
    """For each prompt the likelihood of its tokens [B, N], in the form of tasks.metrics.likelihood.
    A method reads the prompt and then the tokens through its cache; vanilla reads all in one pass,
    also as the reference of a method's predictions: about the cost of one more prefill for each
    row. Raises NotFiniteError, IntegrityError."""
    exact = exactly(family, prompts, tokens)
    if is_vanilla:
        return _json(nll=_nll(exact, tokens))
    attended, decoding = family.calls, family.prefill(*prompts)
    found = decoding.driven(reading(family, decoding, tokens, exact))
    integrity.check_attention_ran(family, attended)
    return found


def exactly(family: Family, prompts: Input, tokens: Tensor) -> Tensor:
    """[B, N, V]: vanilla's log-probabilities for each of the tokens [B, N]."""
    own, family.method = family.method, arms.vanilla()
    try:
        return family.logits(*prompts, tokens).float().log_softmax(-1)
    finally:
        family.method = own


def reading(
    family: Family, decoding: Decoding, tokens: Tensor, exact: Tensor, *, is_vanilla: bool = False
) -> Generator[Tensor, None, list[str]]:
    """Reads tokens [B, N] after a prompt: in one pass if the method's cache gives the same logits
    as for single tokens, else by yielding the next [B, 1] to read. Returns the predictions,
    compared with vanilla's from `exactly`. Raises NotFiniteError."""
    if is_vanilla:
        return _json(nll=_nll(exact, tokens))
    first, at_once = decoding.logits[:, None], None
    if isinstance(family, DecoderFamily):
        at_once = family.read_at_once(decoding, tokens[:, :-1])
    if at_once is not None:
        logits = torch.cat((first, at_once), 1)
    else:
        steps = [first]
        for token in tokens[:, :-1].split(1, 1):
            yield token
            steps.append(decoding.logits[:, None])
        logits = torch.cat(steps, 1)
    integrity.check_logits(logits)
    log_p = logits.float().log_softmax(-1)
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
