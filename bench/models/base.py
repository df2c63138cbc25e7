"""The contract of a family: where a method enters one kind of model.

A family gives a method the model's layers and routes their attention to `Method.attend`.
It counts the calls: a method that never ran is an error, not a fast method.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from methods.base import Layer, Method, Sequence, Shape


@dataclass(frozen=True)
class Spec:
    """A model to load: `path` is a checkpoint folder (config.json, safetensors, tokenizer);
    `config` replaces its size and then weights are random, from `seed`; `marks` are texts that
    should be tokens of their own."""

    name: str
    path: Path
    config: dict[str, Any] | None = None
    seed: int = 0
    marks: tuple[str, ...] = ()


class Family:
    """A loaded model with a method in it.

    An encoder with a class head answers with a class: see bench.models.hf.Classifier, and
    bench.models.heads for other heads. A causal model reads its prompt with the method, and answers
    with the new tokens alone.

    answers     text, class, choice or span: see tasks.base.Task.answers
    model       the Hugging Face module, in eval mode
    tokenizer   its tokenizer
    method      what reads and walks; assign another to compare at the same weights
    calls       how often the method was called since it was last set to 0
    """

    answers: ClassVar[str] = "text"

    model: nn.Module
    tokenizer: Any
    method: Method
    calls: int

    @classmethod
    def load(cls, spec: Spec, method: Method, dtype: str, device: str) -> Self:
        """Raises OSError or ValueError with one line when the folder is no such checkpoint."""
        raise NotImplementedError

    @classmethod
    def tiny(cls, method: Method, seed: int = 0) -> Self:
        """The smallest model of the family, in float32, with random weights and no tokenizer:
        what `bench check` runs a method in. Ids below 64, at least 2 layers."""
        raise NotImplementedError

    @property
    def layers(self) -> Items[Layer]:
        raise NotImplementedError

    def shape(self, length: int, batch: int) -> Shape:
        raise NotImplementedError

    def encode(self, ids: Tensor, sequence: Sequence) -> Tensor:
        """ids [B, n] → hidden [B, n, D] after the whole encoder (or causal stack)."""
        raise NotImplementedError

    def logits(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        """[B, t, vocabulary] for target [B, t], each position seeing the targets before it."""
        raise NotImplementedError

    def loss(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        """Mean cross-entropy over target [B, t]; -100 is ignored."""
        raise NotImplementedError

    def learned(
        self, ids: Tensor, sequence: Sequence, target: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The loss that training lowers, and the share of targets that come first, both []; of one
        forward. `smoothing` of the labels."""
        logits = self.logits(ids, sequence, target).flatten(0, 1).float()
        wanted = target.flatten()
        loss = cross_entropy(logits, wanted, ignore_index=-100, label_smoothing=smoothing)
        counted = wanted != -100
        return loss, (logits.argmax(-1) == wanted)[counted].float().mean()

    def generate_ids(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> Tensor:
        """Greedy answers as tokens [B, ≤ 1 + max_new_tokens], a decoder's start token first."""
        raise NotImplementedError

    def generate(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> list[str]:
        """Greedy answers, one a row, special tokens dropped."""
        raise NotImplementedError
