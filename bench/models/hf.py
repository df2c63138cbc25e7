"""The parts that the families of Hugging Face models share: loading and generation.

A family names its `model_type`s and its model class; its layer class, a subclass of
`bench.models.attention.BlockLayer`, defines how a block runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from bench.models import own_parameters
from bench.models.attention import NAME
from bench.models.base import Decoding, Family, Spec
from bench.models.checkpoints import (
    cast,
    check_config,
    load_tokenizer,
    load_weights,
    merged_config,
    random_weights,
    torch_dtype,
)
from methods.base import Method, SequenceInfo, Workload
from tasks.base import ANSWERS


class HubFamily(Family):
    """A family whose models load by `from_pretrained`.

    kinds         the `model_type`s that it takes
    architecture  the model class
    may_lack      prefixes of weights that a checkpoint may lack; they are drawn from the seed
    tiny_config   the smallest model of the family, for tests
    causal, position_bias, model_attention  see methods.base.Workload
    """

    kinds: ClassVar[tuple[str, ...]]
    architecture: ClassVar[Any]
    may_lack: ClassVar[tuple[str, ...]] = ()
    tiny_config: ClassVar[dict[str, Any]]
    causal: ClassVar[bool] = False
    position_bias: ClassVar[bool] = False

    model: Any
    lacks: Sequence[str] = ()

    def __init__(self, model: nn.Module, tokenizer: Any, method: Method, seed: int = 0) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.seed = seed
        self.method = method
        self.calls = 0
        if not self.model_attention:  # there the layers call the route themselves
            self.routed().set_attn_implementation(NAME)

    @property
    def method(self) -> Method:
        return self._method

    @method.setter
    def method(self, method: Method) -> None:
        """Set the method. Its own parameters become a part of the model, drawn from the seed."""
        self._method = method
        workload = self.workload(1, 1)
        own_parameters.install(self.model, self.layers, method, workload, self.seed)

    def routed(self) -> Any:
        """The module whose attention layers get a route."""
        return self.model

    @property
    def model_attention(self) -> str:
        """Text that names the model's replacement of exact attention; "": there is none."""
        return ""

    @property
    def head_size(self) -> int:
        config = self.model.config
        return int(config.hidden_size // config.num_attention_heads)

    def workload(self, length: int, batch: int) -> Workload:
        config = self.model.config
        return Workload(
            length=length,
            batch=batch,
            heads=config.num_attention_heads,
            head_size=self.head_size,
            layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            causal=self.causal,
            position_bias=self.position_bias,
            training=self.model.training,
            bytes_per_element=self.model.dtype.itemsize,
            model_attention=self.model_attention,
            key_heads=getattr(config, "num_key_value_heads", None),
        )

    @classmethod
    def load(cls, spec: Spec, method: Method, dtype: str, device: str) -> Self:
        """Raises ValueError with one line unless the folder is a complete checkpoint of the family.
        With a `config` of another model_type, only the tokenizer is read from the folder."""
        kind = torch_dtype(dtype)
        config = merged_config(spec.path, spec.config)
        architecture = cls.architecture_of(config.get("model_type"), spec.path)
        tokenizer = cls.read_tokenizer(spec.path)
        if spec.config is None:
            model, lacks = load_weights(architecture, spec, kind, cls.may_lack)
        else:
            check_config(config, spec.config)
            model, lacks = random_weights(architecture, config, spec.seed, device), ()
        family = cls(cast(model, kind).to(device), tokenizer, method, spec.seed)
        family.lacks = lacks
        if spec.config is None:
            family.drawn = own_parameters.restore(
                family.model, method, family.workload(1, 1), spec.path
            )
        return family

    @classmethod
    def tiny(cls, method: Method, seed: int = 0) -> Self:
        """A model of `tiny_config`, with weights so large that attention and positions matter."""
        config = {"model_type": cls.kinds[0], **cls.tiny_config}
        architecture = cls.architecture_of(config["model_type"])
        model = random_weights(architecture, config, seed)
        draw = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data.normal_(std=0.3, generator=draw)
        return cls(model, None, method, seed)

    @classmethod
    def read_tokenizer(cls, folder: Path) -> Any:
        return load_tokenizer(folder)

    @classmethod
    def architecture_of(cls, kind: str | None, folder: Path | str = "this request") -> Any:
        """The model class for a `model_type`. Raises ValueError for one of another family."""
        if kind in cls.kinds:
            return cls.architecture
        accepted = " or ".join(repr(one) for one in cls.kinds)
        raise ValueError(f"{folder} holds a model of type {kind!r}; this family takes {accepted}")

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        tokens = self.generate_ids(ids, sequence, max_new_tokens)
        answers: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return answers


class EncoderDecoder(HubFamily):
    """The method runs the encoder; the decoder is Hugging Face's own, exact, and attends to all of
    the encoder's output."""

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        logits: Tensor = self._decode(ids, sequence, target).logits
        return logits

    def loss(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        loss: Tensor = self._decode(ids, sequence, target).loss
        return loss

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """Greedy answers as token ids, [B, ≤ 1 + max_new_tokens], decoder start token first."""
        tokens: Tensor = self.model.generate(
            **self._encoded(ids, sequence),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
        )
        return tokens

    def prefill(self, ids: Tensor, sequence: SequenceInfo) -> Decoding:
        """The encoder and the decoder's first step. The decoder's cache is transformers' own."""
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        forward = partial(self._decoder_logits, cache, self._encoded(ids, sequence))
        start = ids.new_full((len(ids), 1), self.model.config.decoder_start_token_id)
        return Decoding(forward(start, sequence), SequenceInfo(), None, forward)

    def _decoder_logits(
        self, cache: EncoderDecoderCache, given: Mapping[str, Any], ids: Tensor, _: SequenceInfo
    ) -> Tensor:
        """[B, V] after the decoder's new tokens ids [B, t]."""
        output = self.model(**given, decoder_input_ids=ids, past_key_values=cache, use_cache=True)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _decode(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Any:
        return self.model(
            **self._encoded(ids, sequence), labels=target.contiguous(), use_cache=False
        )

    def _encoded(self, ids: Tensor, sequence: SequenceInfo) -> dict[str, Any]:
        output = BaseModelOutput(last_hidden_state=self.encode(ids, sequence))
        return {"encoder_outputs": output, "attention_mask": all_valid(ids, sequence).long()}


class Classifier(HubFamily):
    """An encoder with a class head. Logits are [B, 1, classes] for every target, a target is
    [B, 1] of class numbers, an answer is the class's label."""

    answers: ClassVar[str] = "class"

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, classes]"""
        raise NotImplementedError

    def check_trained(self) -> None:
        """Raises ValueError if the checkpoint has no trained head: answers would be random."""
        if self.lacks:
            raise ValueError(
                f"this checkpoint has no trained head for {ANSWERS[self.answers]} "
                f"(no {self.lacks[0]}): a recipe trains one"
            )

    def logits(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        return self.classify(ids, sequence)[:, None]

    def loss(self, ids: Tensor, sequence: SequenceInfo, target: Tensor) -> Tensor:
        return cross_entropy(self.classify(ids, sequence), target[:, 0])

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> Tensor:
        """The likeliest class of each row, [B, 1]."""
        return self.classify(ids, sequence).argmax(-1, keepdim=True)

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: SequenceInfo, max_new_tokens: int) -> list[str]:
        self.check_trained()
        labels = self.model.config.id2label
        return [labels[number] for number in self.generate_ids(ids, sequence, 1)[:, 0].tolist()]


def clamped(hidden: Tensor) -> Tensor:
    """Clamps as in transformers' T5 and BART, so that float16 does not overflow."""
    if hidden.dtype != torch.float16:
        return hidden
    most = torch.finfo(torch.float16).max - 1000
    return hidden.clamp(-most, most)


def all_valid(ids: Tensor, sequence: SequenceInfo) -> Tensor:
    """[B, n] bool"""
    return torch.ones_like(ids, dtype=torch.bool) if sequence.valid is None else sequence.valid


def positions(sequence: SequenceInfo, tokens: Tensor) -> Tensor:
    """[B or 1, n]: the positions of the sequence, or 0 … n-1; tokens [B, n, …]."""
    if sequence.positions is not None:
        return sequence.positions
    return torch.arange(tokens.shape[1], device=tokens.device)[None]


def counted(sequence: SequenceInfo, tokens: Tensor) -> Tensor:
    """[B or 1, n]: the positions of the sequence, or those counted from each row's first valid
    token, so that padding on the left does not shift absolute positions."""
    if sequence.positions is None and sequence.valid is not None:
        return (sequence.valid.cumsum(1) - 1).clamp(min=0)
    return positions(sequence, tokens)
