"""T5 (Raffel et al., arXiv 1910.10683): a method walks and reads its encoder.

The decoder stays Hugging Face's own, exact, and sees the encoder's whole output. Nothing is
patched: the encoder's blocks are called one by one, with a route to the method's attention.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from bench.models.attention import NAME, Route
from bench.models.base import Family, Spec
from methods.base import Layer, Method, Sequence, Shape

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class RelativeBias:
    """T5's relative position bias (§2.1), looked up only where it is asked for.

    table [H, 2·reach+1] holds the bias at distances -reach … reach; T5's buckets are the same
    from max_distance on, so farther distances read its ends. Differentiable in the table.
    """

    table: Tensor

    @classmethod
    def of(cls, attention: Any) -> RelativeBias:
        """From the T5Attention that holds the bucket embedding (a stack's first layer)."""
        reach = attention.relative_attention_max_distance
        weight = attention.relative_attention_bias.weight
        buckets = attention._relative_position_bucket(
            torch.arange(-reach, reach + 1, device=weight.device),
            bidirectional=True,
            num_buckets=attention.relative_attention_num_buckets,
            max_distance=reach,
        )
        return cls(weight.t().index_select(1, buckets))

    def __call__(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """[B, H, q, k] for positions [B, q] and [B, k]."""
        distance = key_positions[:, None, :] - query_positions[:, :, None]
        return self._at(distance).view(-1, *distance.shape).transpose(0, 1)

    def diagonals(self, n: int) -> Tensor:
        """[H, 2n-1]: the bias at key position minus query position = -(n-1) … n-1."""
        return self._at(torch.arange(1 - n, n, device=self.table.device))

    def _at(self, distance: Tensor) -> Tensor:
        reach = self.table.shape[1] // 2
        index = distance.clamp(-reach, reach).add_(reach)
        # One flat gather for all heads: 4 times as fast as indexing, and rows stay contiguous.
        return self.table.index_select(1, index.flatten())


@dataclass(frozen=True)
class T5Layer:
    """One encoder block, as a method sees it."""

    family: T5Family
    block: Any
    bias: RelativeBias
    index: int

    def __call__(self, hidden: Tensor, sequence: Sequence) -> Tensor:
        route = Route(self.family, sequence, self.index, self.bias)
        # A position bias that isn't None keeps the block from building its own n×n tensor.
        output: Tensor = self.block(hidden, position_bias=self.bias, route=route)[0]
        return output

    def scores(
        self, queries: Tensor, query_sequence: Sequence, keys: Tensor, key_sequence: Sequence
    ) -> Tensor:
        attention, norm = self.block.layer[0].SelfAttention, self.block.layer[0].layer_norm
        query = _heads(attention.q(norm(queries)), attention.n_heads)
        key = _heads(attention.k(norm(keys)), attention.n_heads)
        bias = self.bias(_positions(query_sequence, queries), _positions(key_sequence, keys))
        scores: Tensor = query @ key.transpose(-1, -2) * attention.scaling + bias
        return scores


class T5Family(Family):
    """A T5 encoder-decoder (any T5 v1.0 or v1.1 checkpoint) with a method in its encoder."""

    model: Any

    def __init__(self, model: nn.Module, tokenizer: Any, method: Method) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.method = method
        self.calls = 0
        self.model.get_encoder().set_attn_implementation(NAME)

    @classmethod
    def load(cls, spec: Spec, method: Method, dtype: str, device: str) -> T5Family:
        """Raises ValueError with one line when the folder is no complete T5 checkpoint."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; T5 takes {', '.join(DTYPES)}")
        config = _read_config(spec)
        tokenizer = _load_tokenizer(spec.path)
        if spec.config is None:
            model = _load_weights(spec.path, getattr(torch, dtype))
        else:
            model = _random_weights(T5Config(**{**config, **spec.config}), spec.seed)
        return cls(model.to(device=device, dtype=getattr(torch, dtype)), tokenizer, method)

    @property
    def layers(self) -> Items[Layer]:
        """The encoder's blocks; made anew each time, as the bias table follows the weights."""
        blocks = self.model.get_encoder().block
        bias = RelativeBias.of(blocks[0].layer[0].SelfAttention)
        return [T5Layer(self, block, bias, index) for index, block in enumerate(blocks)]

    def shape(self, length: int, batch: int) -> Shape:
        config = self.model.config
        return Shape(
            length=length,
            batch=batch,
            heads=config.num_heads,
            head_size=config.d_kv,
            layers=config.num_layers,
            hidden_size=config.d_model,
            position_bias=True,
            training=self.model.training,
            bytes_per_element=self.model.dtype.itemsize,
        )

    def encode(self, ids: Tensor, sequence: Sequence) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm."""
        encoder = self.model.get_encoder()
        hidden = encoder.dropout(encoder.embed_tokens(ids))
        hidden = self.method.encode(self.layers, hidden, sequence)
        output: Tensor = encoder.dropout(encoder.final_layer_norm(hidden))
        return output

    def logits(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        logits: Tensor = self._decode(ids, sequence, target).logits
        return logits

    def loss(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        loss: Tensor = self._decode(ids, sequence, target).loss
        return loss

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> list[str]:
        tokens = self.generate_ids(ids, sequence, max_new_tokens)
        answers: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return answers

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> Tensor:
        """Greedy answers as tokens, [B, ≤ 1 + max_new_tokens], the decoder's start token first."""
        tokens: Tensor = self.model.generate(
            **self._encoded(ids, sequence),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            num_beams=1,
        )
        return tokens

    def _decode(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Any:
        return self.model(
            **self._encoded(ids, sequence), labels=target.contiguous(), use_cache=False
        )

    def _encoded(self, ids: Tensor, sequence: Sequence) -> dict[str, Any]:
        valid = torch.ones_like(ids) if sequence.valid is None else sequence.valid.long()
        output = BaseModelOutput(last_hidden_state=self.encode(ids, sequence))
        return {"encoder_outputs": output, "attention_mask": valid}


def _heads(x: Tensor, heads: int) -> Tensor:
    """[B, n, H·d] → [B, H, n, d]"""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _positions(sequence: Sequence, tokens: Tensor) -> Tensor:
    if sequence.positions is not None:
        return sequence.positions
    return torch.arange(tokens.shape[1], device=tokens.device)[None]


def _read_config(spec: Spec) -> dict[str, Any]:
    path = Path(spec.path) / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{spec.path} is no checkpoint: it has no config.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {_line(error)}") from None
    kind = config.get("model_type")
    if kind != "t5":
        raise ValueError(f"{spec.path} holds a model of type {kind!r}; this family takes 't5'")
    return config


def _load_tokenizer(path: Path) -> Any:
    if not any((path / name).exists() for name in ("tokenizer.json", "spiece.model")):
        raise ValueError(f"{path} has no tokenizer.json or spiece.model: no tokenizer")
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises what its parsers raise
        raise ValueError(f"{path} has a tokenizer that can't be read: {_line(error)}") from None


def _load_weights(path: Path, dtype: torch.dtype) -> Any:
    try:
        model, report = T5ForConditionalGeneration.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # OSError, SafetensorError, RuntimeError on other sizes, …
        raise ValueError(
            f"{path} has no safetensors weights of its config: {_line(error)}"
        ) from None
    if report["missing_keys"]:  # transformers would fill them with random numbers
        missing = sorted(report["missing_keys"])
        raise ValueError(f"{path} lacks {len(missing)} of T5's weights, first {missing[0]}")
    return model


def _random_weights(config: T5Config, seed: int) -> Any:
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return T5ForConditionalGeneration(config)


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
