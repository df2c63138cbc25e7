"""The small encoder of Long Range Arena in PyTorch (Nyströmformer's harness, Xiong et al., arXiv
2102.03902; the code of VCC, IceFormer and Fourier Transformer is based on it).

Learned positions, pre-norm layers, biases everywhere, mean or CLS pooling, a head for one text or
for a pair. Two habits of that harness change its results, so they are options: see LRAConfig.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt, log, pi
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, initialization

from bench.models.attention import BlockLayer, Projections, Route, heads
from bench.models.checkpoints import load_tokenizer
from bench.models.hf import Classifier, all_valid, counted
from methods.base import Layer, SequenceInfo

PICTURE_SCALE, GREY_WAVES = 0.3, 8
"""With `picture`: the scale of the initial tables, and the half waves over all grey levels."""

Attend = Callable[[Tensor, Tensor, Tensor, float, float], Tensor]
"""query, key, value [B, H, n, d], scale, dropout → [B, H, n, d]"""


class LRAConfig(PreTrainedConfig):  # type: ignore[misc]
    """Sizes default to the harness's own; `num_labels` classes, named 0, 1, …

    pooling       "mean" over the valid tokens, or "cls": the state of a token before each text
    dual          rows are pairs: the first half of a batch are first texts, the other half second
    attention_dropout  of the attention weights; None: as `dropout`. Above 0 the CPU has no
                  fused kernel
    mean_of_all   the mean is divided by the padded length, as in the harness
    picture       the tables of tokens and positions are initialized as waves of grey level, row and
                  column of a square image, not at random: neighbours start out alike
    near          query weights are initialized this many times as large, and key weights equal to
                  them: each token first attends to those like it, in a picture its neighbours. 0:
                  both are random
    cls_takes_id  the CLS token is the vocabulary's last id and replaces the text's last token, as
                  in the harness (where that id may be a pixel's too)
    """

    model_type = "lra"

    vocab_size: int = 512
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    head_size: int = 32
    max_position_embeddings: int = 4096
    dropout: float = 0.1
    attention_dropout: float | None = None
    pooling: str = "mean"
    dual: bool = False
    mean_of_all: bool = False
    cls_takes_id: bool = False
    picture: bool = False
    near: float = 0.0

    def __post_init__(self, **rest: Any) -> None:
        if self.pooling not in ("mean", "cls"):
            raise ValueError(f"pooling is {self.pooling!r}; it is 'mean' or 'cls'")
        places = self.max_position_embeddings
        if self.picture and isqrt(places) ** 2 != places:
            raise ValueError(f"picture: {places} positions are no square image's")
        count = rest.pop("num_labels", 10)
        labels: Any = getattr(self, "id2label", None)
        if labels is None:
            self.id2label = {number: str(number) for number in range(count)}
        super().__post_init__(**rest)


class LRABlock(nn.Module):
    """hidden + attention(norm(hidden)), then the same with a two-layer perceptron."""

    def __init__(self, config: LRAConfig) -> None:
        super().__init__()
        inner = config.num_attention_heads * config.head_size
        self.head_size, self.scale = config.head_size, config.head_size**-0.5
        self.norm1 = nn.LayerNorm(config.hidden_size)
        self.query, self.key, self.value = (nn.Linear(config.hidden_size, inner) for _ in range(3))
        if config.near:
            self._init_near(config.near)
        self.output = nn.Linear(inner, config.hidden_size)
        self.norm2 = nn.LayerNorm(config.hidden_size)
        attention = config.attention_dropout
        self.attention_dropout = config.dropout if attention is None else attention
        self.dropout = nn.Dropout(config.dropout)
        self.mlp = nn.Sequential(
            nn.Linear(config.hidden_size, config.intermediate_size),
            nn.GELU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.intermediate_size, config.hidden_size),
            nn.Dropout(config.dropout),
        )

    @torch.no_grad()
    def _init_near(self, gain: float) -> None:
        self.query.weight.mul_(gain)
        self.key.weight.copy_(self.query.weight)
        self.query.bias.zero_()
        self.key.bias.zero_()

    def forward(self, hidden: Tensor, attend: Attend) -> Tensor:
        return self.around(hidden, self.attention(self.norm1(hidden), attend))

    def attention(self, normed: Tensor, attend: Attend) -> Tensor:
        """The attention sub-layer, [B, n, D] → [B, n, D]."""
        query, key, value = (
            heads(project(normed), self.head_size) for project in (self.query, self.key, self.value)
        )
        dropout = self.attention_dropout if self.training else 0.0
        read = attend(query, key, value, self.scale, dropout).transpose(1, 2).flatten(2)
        output: Tensor = self.output(read)
        return output

    def around(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """The layer around its attention sub-layer's output; `hidden` is the residual."""
        hidden = hidden + self.dropout(mixed)
        output: Tensor = hidden + self.mlp(self.norm2(hidden))
        return output


class LRAModel(PreTrainedModel):  # type: ignore[misc]
    """The encoder with its head, as in a checkpoint."""

    config_class = LRAConfig
    base_model_prefix = "lra"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: LRAConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        own = config.pooling == "cls" and not config.cls_takes_id
        self.tokens = nn.Embedding(config.vocab_size + own, width)
        self.positions = nn.Embedding(config.max_position_embeddings, width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(LRABlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(
            nn.Linear(4 * width if config.dual else width, config.intermediate_size),
            nn.ReLU(),
            nn.Linear(config.intermediate_size, config.num_labels),
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, nn.Embedding):
            return
        if not self.config.picture:
            initialization.normal_(module.weight, std=0.02)
            return
        count, width = module.weight.shape
        if module is self.tokens:
            start = waves(count, width, GREY_WAVES)
        else:
            line = waves(isqrt(count), width // 2, isqrt(count))
            start = torch.cat((line.repeat_interleave(len(line), 0), line.repeat(len(line), 1)), 1)
        initialization.copy_(module.weight, PICTURE_SCALE * start)

    def embed(self, ids: Tensor, places: Tensor) -> Tensor:
        """Raises ValueError past the last learned position."""
        limit = self.positions.num_embeddings
        if ids.shape[1] > limit:
            raise ValueError(f"{ids.shape[1]} tokens; the model has {limit} positions")
        hidden: Tensor = self.dropout(self.tokens(ids) + self.positions(places))
        return hidden

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """ids [B, n], no padding on the left, mask 1 where valid → [B, n, D]; exact attention."""
        mask = None if attention_mask is None else attention_mask.bool()[:, None, None]

        def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, dropout: float) -> Tensor:
            return scaled_dot_product_attention(q, k, v, mask, dropout, scale=scale)

        hidden = self.embed(input_ids, torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            hidden = layer(hidden, attend)
        output: Tensor = self.norm(hidden)
        return output


def waves(count: int, width: int, fastest: float) -> Tensor:
    """[count, width]: sines and cosines of 0 … count - 1, from a quarter of a wave over all of them
    to `fastest` half waves."""
    rates = torch.linspace(log(pi / 2), log(pi * fastest), width // 2).exp()
    angles = torch.arange(count)[:, None] / count * rates
    return torch.cat((angles.sin(), angles.cos()), 1)


AutoConfig.register("lra", LRAConfig)


@dataclass(frozen=True)
class LRALayer(BlockLayer):
    """One pre-norm block: a `methods.base.NormedLayer`."""

    def __call__(self, hidden: Tensor, sequence: SequenceInfo) -> Tensor:
        mixed = self.mix(self.normed(hidden), self.route(sequence))
        output: Tensor = self.block.around(hidden, mixed)
        return output

    def normed(self, hidden: Tensor) -> Tensor:
        output: Tensor = self.block.norm1(hidden)
        return output

    def from_normed(self, normed: Tensor, sequence: SequenceInfo) -> Tensor:
        output: Tensor = self.block.around(normed, self.mix(normed, self.route(sequence)))
        return output

    projected = normed

    def attend(self, projected: Tensor, route: Route) -> Tensor:
        output: Tensor = self.block.attention(projected, route)
        return output

    def projections(self) -> Projections:
        block = self.block
        return Projections(block.query, block.key, block.value, block.output, block.head_size,
                           block.scale, block.attention_dropout)  # fmt: skip


class LRAFamily(Classifier):
    """The LRA encoder with the method in it, from scratch or from a checkpoint of this project."""

    kinds = ("lra",)
    architecture = LRAModel
    tiny_config: ClassVar[dict[str, Any]] = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "head_size": 8,
        "intermediate_size": 64,
    }

    @classmethod
    def read_tokenizer(cls, folder: Path) -> Any:
        """The tokenizer, or None if there is none: LRA's tasks have their own ids."""
        return load_tokenizer(folder) if (Path(folder) / "tokenizer.json").exists() else None

    @property
    def layers(self) -> Sequence[Layer]:
        return [LRALayer(self, block, index) for index, block in enumerate(self.model.layers)]

    @property
    def head_size(self) -> int:
        return int(self.model.config.head_size)

    def encode(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, n, D] after the last norm, zeros at padding; [B, m, D] with a method
        that returns fewer states, which are then pooled."""
        hidden: Tensor = self.model.embed(ids, counted(sequence, ids))
        hidden, sequence = self.method.encode_shorter(self.layers, hidden, sequence)
        hidden = self.model.norm(hidden)
        return hidden if sequence.valid is None else hidden * sequence.valid[..., None]

    def classify(self, ids: Tensor, sequence: SequenceInfo) -> Tensor:
        """ids [B, n] → [B, classes]; a dual model's [2·B, n], first texts first → [B, classes]."""
        config = self.model.config
        if config.pooling == "cls":
            ids, sequence = self._with_cls(ids, sequence)
        hidden = self.model.embed(ids, counted(sequence, ids))
        hidden, sequence = self.method.encode_shorter(self.layers, hidden, sequence)
        hidden = self.model.norm(hidden)
        if config.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            valid = all_valid(hidden[..., 0], sequence)
            counts = valid.sum(1, keepdim=True).clamp(min=1).to(hidden.dtype)
            divisor = hidden.shape[1] if config.mean_of_all else counts
            pooled = (hidden * valid[..., None]).sum(1) / divisor
        if config.dual:
            one, other = pooled.chunk(2)
            pooled = torch.cat((one, other, one * other, one - other), 1)
        logits: Tensor = self.model.head(pooled)
        return logits

    def _with_cls(self, ids: Tensor, sequence: SequenceInfo) -> tuple[Tensor, SequenceInfo]:
        """With a CLS token, valid and VIP, before each row."""
        config = self.model.config
        keep = ids.shape[1] - config.cls_takes_id
        number = config.vocab_size - config.cls_takes_id
        valid, vip = sequence.valid, sequence.vip
        if vip is None:
            vip = torch.zeros_like(ids, dtype=torch.bool)
        return pad(ids[:, :keep], (1, 0), value=number), SequenceInfo(
            valid=None if valid is None else pad(valid[:, :keep], (1, 0), value=True),
            vip=pad(vip[:, :keep], (1, 0), value=True),
        )
