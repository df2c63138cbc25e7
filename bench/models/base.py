"""The contract of a model family: how a method is plugged into one kind of model.

A family passes the model's layers to `Method.encode`, their attention sub-layers to `Method.mix`
and the attention inside these to `Method.attend`. It counts the calls, so that a method that never
ran is reported as an error and not as fast.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bench.errors import RequestError
from methods.base import KVCache, Layer, Method, SequenceInfo, Workload

T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """A model to load: `path` is a checkpoint folder (config.json, safetensors, tokenizer); with
    `config`, which overrides its config, weights are random, from `seed`; `marks` are strings that
    the tokenizer must treat as single tokens."""

    name: str
    path: Path
    config: dict[str, Any] | None = None
    seed: int = 0
    marks: tuple[str, ...] = ()


@dataclass
class Decoding:
    """A batch that a model has read and continues, all rows at once.

    logits    [B, V] of the next token
    sequence  all tokens so far, padding on the left, with their true positions
    cache     the cache of the method, or a `parts.kv_cache.FullCache`; None: the decoder of an
              encoder-decoder keeps its own
    forward   runs the model on new ids [B, t], the last tokens of the sequence → logits [B, V]
    """

    logits: Tensor
    sequence: SequenceInfo
    cache: KVCache | None
    forward: Callable[[Tensor, SequenceInfo], Tensor]

    def step(self, ids: Tensor) -> Tensor:
        """Reads the next tokens [B, t] → logits [B, V] of the one after them."""
        self.sequence = self.sequence.followed_by(ids.shape[1])
        self.logits = self.forward(ids, self.sequence)
        return self.logits

    def driven(self, wanted: Generator[Tensor, None, T]) -> T:
        """Reads the tokens [B, t] that a generator yields, and returns the generator's result."""
        while True:
            try:
                ids = next(wanted)
            except StopIteration as end:
                answer: T = end.value
                return answer
            self.step(ids)


class Family:
    """A loaded model with a method in it.

    An encoder with a class head answers with a class: see bench.models.hf.Classifier, and
    bench.models.heads for other heads. A causal model runs the method on its prompt, and answers
    with only the new tokens.

    answers     text, class, choice or span: see tasks.base.Task.answers
    model       the Hugging Face module, in eval mode
    tokenizer   its tokenizer
    method      the method; assign another to compare at the same weights
    drawn       names of the method's own parameters that were drawn at random, since the checkpoint
                has none
    calls       attention calls of the method since this was last set to 0
    is_over     whether a text has a stop string, at which a family may stop generating; decoders do
    stop        the stop strings, which are passed to an engine
    """

    answers: ClassVar[str] = "text"
    drawn: Sequence[str] = ()
    is_over: Callable[[str], bool] | None = None
    stop: Sequence[str] = ()

    model: nn.Module
    tokenizer: Any
    method: Method
    calls: int

    @classmethod
    def load(cls, spec: Spec, method: Method, dtype: str, device: str) -> Self:
        """Raises OSError or ValueError with one line when the folder isn't such a checkpoint."""
        raise NotImplementedError

    @classmethod
    def tiny(cls, method: Method, seed: int = 0) -> Self:
        """The smallest model of the family, for `bench check`: float32, random weights, no
        tokenizer, ids below 64, at least 2 layers."""
        raise NotImplementedError

    @property
    def layers(self) -> Sequence[Layer]:
        raise NotImplementedError

    @property
    def exact_layers(self) -> frozenset[int]:
        """The layers that are read exactly, since they have a window, which the method ignores."""
        return frozenset()

    def workload(self, length: int, batch: int) -> Workload:
        raise NotImplementedError

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → hidden [B, n, D] after the whole encoder (or causal stack)."""
        raise NotImplementedError

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        """[B, t, vocabulary] for target [B, t]; each position sees the targets before it."""
        raise NotImplementedError

    def loss(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        """Mean cross-entropy over target [B, t]; -100 is ignored."""
        raise NotImplementedError

    def learned(
        self, ids: Tensor, sequence: SequenceInfo, target: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """The training loss with label `smoothing`, and the top-1 accuracy over the targets, both
        []; from one forward pass."""
        logits = self.logits(ids, sequence, target).flatten(0, 1).float()
        labels = target.flatten()
        loss = cross_entropy(logits, labels, ignore_index=-100, label_smoothing=smoothing)
        counted = labels != -100
        return loss, (logits.argmax(-1) == labels)[counted].float().mean()

    def prefill(self, ids: Tensor, sequence: SequenceInfo) -> Decoding:
        """Reads the prompts ids [B, n] into the method's cache. Raises RequestError for a family
        that has no decoder, Unsupported for a method that doesn't give every layer all tokens."""
        kind = type(self).__name__.removesuffix("Family")
        raise RequestError(f"{kind} is no decoder: it has no prefill and no next token")

    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """Greedy answers as token ids [B, ≤ 1 + max_new_tokens], a decoder's start token first."""
        raise NotImplementedError

    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        """Greedy answers, one per row, without special tokens."""
        raise NotImplementedError
