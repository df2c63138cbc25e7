"""Decoding of a forced answer: every arm reads the same prompt and then the same tokens, one by
one, so that all do equal work. An end token among them ends nothing.

Shapes: B batch, N new tokens, V vocabulary.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

import torch
from torch import Tensor

from bench.measure import finite, integrity
from bench.measure.perturbed_inputs import Input, PerturbedInputs
from bench.measure.timed_call import Arm, Drawn, Forward
from bench.models.base import Decoding, Family
from methods.base import Method

SEED = 1
"""Seeds for each prompt and step, so that a method draws the same numbers in each answer."""


def greedy(family: Family, prompt: Input, new_tokens: int) -> tuple[Tensor, Tensor]:
    """The likeliest next tokens [B, N], and the logits [B, N, V] that they were chosen by."""
    decoding = family.prefill(*prompt)
    tokens, logits = [decoding.logits.argmax(-1, keepdim=True)], [decoding.logits]
    while len(tokens) < new_tokens:
        logits.append(decoding.step(tokens[-1]))
        tokens.append(logits[-1].argmax(-1, keepdim=True))
    return torch.cat(tokens, 1), torch.stack(logits, 1)


def forced(family: Family, prompt: Input, tokens: Tensor) -> Tensor:
    """[B, N, V]: the logits before each of the tokens [B, N], given those before it. Raises
    NotFiniteError."""
    decoding = family.prefill(*prompt)
    steps = (decoding.step(token[:, None]) for token in tokens[:, :-1].unbind(1))
    logits = torch.stack([decoding.logits, *steps], 1)
    if found := finite.not_finite(logits):
        raise finite.NotFiniteError(f"the model gave {found} as logits of a new token")
    return logits


class ForcedAnswers:
    """Prompts that no method has read before, each followed by the same tokens [B, N]. The first
    token is what a prompt's reading gives; the steps read it and those after it."""

    def __init__(self, inputs: PerturbedInputs, tokens: Tensor) -> None:
        self.inputs, self.tokens = inputs, tokens
        self.prompts: list[Input] = []

    @property
    def steps(self) -> int:
        """Of one answer."""
        return self.tokens.shape[1] - 1

    def prompt(self, number: int) -> Input:
        while len(self.prompts) <= number:
            ids, sequence = self.inputs.perturbed(len(self.prompts))
            self.prompts.append((ids.clone(), sequence))
        return self.prompts[number]

    def token(self, step: int) -> Tensor:
        """[B, 1]"""
        return self.tokens[:, step : step + 1]


@dataclass(eq=False)
class DecodingArm(Arm):
    """One timed step of decoding with `method` in the model, independent of the number that it is
    called with: an answer's steps follow one another after its prompt is read untimed, and then the
    next answer begins. Arms of the same `answers` that make equally many calls since their last
    `reset` read equal tokens after equally long prompts.

    number, step  the answer in hand, and how many of its steps have been taken
    """

    answers: ForcedAnswers = field(kw_only=True)
    decoding: Decoding | None = None
    number: int = 0
    step: int = 0

    @property
    def prefill_ns(self) -> int:
        """Nanoseconds of the first prompt since the last reset."""
        return self.between[0]

    def of(self, method: Method) -> DecodingArm:
        return DecodingArm(
            self.family, method, self.inputs, self.device, self.process, answers=self.answers
        )

    def reset(self) -> None:
        super().reset()
        self.decoding, self.number = None, len(self.answers.prompts)

    def draw(self, i: int, calls: int) -> Drawn | None:
        return None  # the tokens follow from how many calls an arm has made

    def prepared(self, i: int, drawn: Mapping[str, Tensor] | None = None) -> Forward:
        started = perf_counter_ns()
        forward = self._next()
        self.between.append(perf_counter_ns() - started)
        return forward

    @property
    def most_calls(self) -> int:
        return self.answers.steps

    def drawn(self, calls: int) -> dict[str, Tensor]:
        """Tokens [B, calls] of this answer, at random, and its prompt for the first of them."""
        tokens = self.answers.tokens
        chosen = torch.randint(0, tokens.shape[1], (len(tokens), calls))
        inputs = {"tokens": tokens.gather(1, chosen.to(tokens.device))}
        if self.decoding is None:
            inputs["prompt"] = self.answers.prompt(self.number)[0].clone()
            inputs["batch"] = torch.tensor(self.number % len(self.inputs))
        return inputs

    def read(self, inputs: Mapping[str, Tensor]) -> None:
        if "prompt" in inputs:
            self.family.method = self.method
            prompt = self.inputs.put(int(inputs["batch"]), inputs["prompt"])
            self.decoding = self._prefilled(prompt)

    def answered(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self.decoding is not None
        self.family.method = self.method
        steps = [self.decoding.step(token[:, None]) for token in inputs["tokens"].unbind(1)]
        return {str(i): logits.float() for i, logits in enumerate(steps)}

    def catch_up(self, calls: int) -> None:
        started = perf_counter_ns()
        self.family.method = self.method
        for _ in range(calls):
            self._next()()
        self.between.append(perf_counter_ns() - started)

    def _next(self) -> Forward:
        if self.decoding is None or self.step == self.answers.steps:
            self.number += self.decoding is not None
            self.decoding = self.last = None
            gc.collect()  # the last answer's cache, before the next one is filled
            self.decoding, self.step = self._prefilled(self.answers.prompt(self.number)), 0
        forward = self._step(self.decoding, self.step)
        self.step += 1
        return forward

    def check_attended(self, before: int) -> None:
        # The decoder of an encoder-decoder is the model's own in both arms; the encoder was
        # checked.
        if self.decoding is None or self.decoding.cache is not None:
            super().check_attended(before)

    def _prefilled(self, prompt: Input) -> Decoding:
        torch.manual_seed(SEED)
        attended = self.family.calls
        decoding = self.family.prefill(*prompt)
        integrity.check_attention_ran(self.family, attended)
        return decoding

    def _step(self, decoding: Decoding, step: int) -> Forward:
        torch.manual_seed(SEED)
        return partial(decoding.step, self.answers.token(step))
