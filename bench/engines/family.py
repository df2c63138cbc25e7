"""A decoder that an engine runs, in the place of a family that runs in this process."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn
from transformers import AutoConfig

from bench.engines.base import Answer, Engine, Session, Start
from bench.models.base import Family, Spec
from bench.models.checkpoints import load_tokenizer
from methods.base import Layer, SequenceInfo, Unsupported, Workload


class EngineFamily(Family):
    """
    session  the engine with the model
    answers  derived from its text
    """

    def __init__(self, session: Session, engine: Engine, config: Any, tokenizer: Any) -> None:
        self.session, self.method, self.tokenizer = session, engine, tokenizer
        self.model = nn.Module()
        self.model.config = config
        self.calls = 0

    @classmethod
    def started(cls, spec: Spec, engine: Engine, tokens: int, threads: int) -> Self:
        """The engine with a checkpoint, for prompts and answers of at most `tokens`. Raises
        OSError, ValueError, RequestError."""
        if spec.config is not None:
            raise ValueError("an engine reads a checkpoint; this model's weights are random")
        config = AutoConfig.from_pretrained(
            spec.path, local_files_only=True, trust_remote_code=False
        )
        tokenizer = load_tokenizer(spec.path)
        session = engine.start(Start(spec.path, tokenizer, tokens, threads))
        return cls(session, engine, config, tokenizer)

    @property
    def layers(self) -> list[Layer]:
        return []

    def workload(self, length: int, batch: int) -> Workload:
        config: Any = self.model.config
        heads = config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
        return Workload(
            length, batch, heads, head_size, config.num_hidden_layers, config.hidden_size,
            causal=True, key_heads=getattr(config, "num_key_value_heads", None),
        )  # fmt: skip

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        raise Unsupported("an engine gives no probabilities of given tokens")

    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        return [self.answer(row, max_new_tokens).text for row in ids]

    def answer(self, ids: Tensor, new_tokens: int, exactly: bool = False) -> Answer:
        """The engine's answer to a prompt of token ids [n]."""
        self.calls += 1
        return self.session.generate(ids.tolist(), new_tokens, self.stop, exactly)
