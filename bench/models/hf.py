"""What families of Hugging Face models share: loading, errors, random weights, and answering.

A family names its config's `model_type`s and its model class; a layer of it says how the block is
called. Weights come from a local folder in safetensors; nothing is fetched, no remote code runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CONFIG_MAPPING, AutoTokenizer
from transformers.modeling_outputs import BaseModelOutput

from bench.models.attention import NAME
from bench.models.base import Family, Spec
from methods.base import Method, Sequence, Shape

DTYPES = ("float32", "bfloat16", "float16", "float64")


class HubFamily(Family):
    """A family whose models load by `from_pretrained`.

    kinds         the `model_type`s that it takes
    architecture  the model class
    may_lack      weights whose names begin so may be missing; they are drawn from the seed
    tiny_config   the smallest model that is still one of the family, for tests
    causal, position_bias  see methods.base.Shape
    """

    kinds: ClassVar[tuple[str, ...]]
    architecture: ClassVar[Any]
    may_lack: ClassVar[tuple[str, ...]] = ()
    tiny_config: ClassVar[dict[str, Any]]
    causal: ClassVar[bool] = False
    position_bias: ClassVar[bool] = False

    model: Any
    lacks: Items[str] = ()

    def __init__(self, model: nn.Module, tokenizer: Any, method: Method) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.method = method
        self.calls = 0
        self.routed().set_attn_implementation(NAME)

    def routed(self) -> Any:
        """The module whose attention may have a route."""
        return self.model

    @property
    def head_size(self) -> int:
        config = self.model.config
        return int(config.hidden_size // config.num_attention_heads)

    def shape(self, length: int, batch: int) -> Shape:
        config = self.model.config
        return Shape(
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
        )

    @classmethod
    def load(cls, spec: Spec, method: Method, dtype: str, device: str) -> Self:
        """Raises ValueError with one line when the folder is no complete checkpoint of the family.
        A `config` that names its own model_type takes nothing but the tokenizer from the folder."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}; a model takes {', '.join(DTYPES)}")
        kind = torch_dtype(dtype)
        config = cls._config(spec)
        tokenizer = cls.read_tokenizer(spec.path)
        if spec.config is None:
            model, lacks = load_weights(cls.architecture, spec, kind, cls.may_lack)
        else:
            model, lacks = random_weights(cls.architecture, config, spec.seed), ()
        family = cls(cast(model, kind).to(device), tokenizer, method)
        family.lacks = lacks
        return family

    @classmethod
    def tiny(cls, method: Method, seed: int = 0) -> Self:
        """Of `tiny_config`, with weights so large that attention and positions matter."""
        model = random_weights(
            cls.architecture, {"model_type": cls.kinds[0], **cls.tiny_config}, seed
        )
        draw = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data.normal_(std=0.3, generator=draw)
        return cls(model, None, method)

    @classmethod
    def read_tokenizer(cls, folder: Path) -> Any:
        return load_tokenizer(folder)

    @classmethod
    def _config(cls, spec: Spec) -> dict[str, Any]:
        config = read_config(spec.path)
        if spec.config is not None:
            apart = spec.config.get("model_type", config.get("model_type"))
            config = {**({} if apart != config.get("model_type") else config), **spec.config}
        kind = config.get("model_type")
        if kind not in cls.kinds:
            accepted = " or ".join(repr(one) for one in cls.kinds)
            raise ValueError(
                f"{spec.path} holds a model of type {kind!r}; this family takes {accepted}"
            )
        return config

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> list[str]:
        tokens = self.generate_ids(ids, sequence, max_new_tokens)
        answers: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return answers


class EncoderDecoder(HubFamily):
    """A method walks and reads the encoder; the decoder is Hugging Face's own, exact, and sees the
    encoder's whole output."""

    def logits(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        logits: Tensor = self._decode(ids, sequence, target).logits
        return logits

    def loss(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        loss: Tensor = self._decode(ids, sequence, target).loss
        return loss

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
        output = BaseModelOutput(last_hidden_state=self.encode(ids, sequence))
        return {"encoder_outputs": output, "attention_mask": all_valid(ids, sequence).long()}


class Classifier(HubFamily):
    """An encoder with a head: the answer is a class. Logits are [B, 1, classes] whatever the
    target holds, a target is [B, 1] of class numbers, an answer the class's label."""

    answers: ClassVar[str] = "class"

    def classify(self, ids: Tensor, sequence: Sequence) -> Tensor:
        """ids [B, n] → [B, classes]"""
        raise NotImplementedError

    def check_trained(self) -> None:
        """Raises ValueError where the checkpoint has no trained head: its answers mean nothing."""
        if self.lacks:
            raise ValueError(
                f"the checkpoint has no trained head (no {self.lacks[0]}): train it first"
            )

    def logits(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        return self.classify(ids, sequence)[:, None]

    def loss(self, ids: Tensor, sequence: Sequence, target: Tensor) -> Tensor:
        return cross_entropy(self.classify(ids, sequence), target[:, 0])

    @torch.no_grad()
    def generate_ids(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> Tensor:
        """The likeliest class of each row, [B, 1]."""
        return self.classify(ids, sequence).argmax(-1, keepdim=True)

    @torch.no_grad()
    def generate(self, ids: Tensor, sequence: Sequence, max_new_tokens: int) -> list[str]:
        self.check_trained()
        labels = self.model.config.id2label
        return [labels[number] for number in self.generate_ids(ids, sequence, 1)[:, 0].tolist()]


def heads(x: Tensor, count: int) -> Tensor:
    """[B, n, H·d] → [B, H, n, d]"""
    return x.view(*x.shape[:2], count, -1).transpose(1, 2)


def dots(queries: Tensor, keys: Tensor, count: int, scale: float) -> Tensor:
    """Projected queries [B, q, H·d] and keys [B, k, H·d] → their scores [B, H, q, k]."""
    scores: Tensor = heads(queries, count) @ heads(keys, count).transpose(-1, -2) * scale
    return scores


def all_valid(ids: Tensor, sequence: Sequence) -> Tensor:
    """[B, n] bool"""
    return torch.ones_like(ids, dtype=torch.bool) if sequence.valid is None else sequence.valid


def positions(sequence: Sequence, tokens: Tensor) -> Tensor:
    """[B or 1, n], as told, or 0 … n-1; tokens [B, n, …]."""
    if sequence.positions is not None:
        return sequence.positions
    return torch.arange(tokens.shape[1], device=tokens.device)[None]


def counted(sequence: Sequence, tokens: Tensor) -> Tensor:
    """[B or 1, n], as told, or counted from each row's first valid token: what a table of absolute
    positions needs, so that padding on the left moves nothing."""
    if sequence.positions is None and sequence.valid is not None:
        return (sequence.valid.cumsum(1) - 1).clamp(min=0)
    return positions(sequence, tokens)


def torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def cast(model: Any, dtype: torch.dtype) -> Any:
    """The model with all its weights in this dtype. Buffers that no checkpoint holds keep theirs:
    rotary frequencies in bfloat16 would misplace the tokens of a long input."""
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint. Raises ValueError with one line."""
    path = Path(folder) / "config.json"
    try:
        config: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"{folder} is no checkpoint: it has no config.json") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {_line(error)}") from None
    return config


def load_tokenizer(path: Path) -> Any:
    names = ("tokenizer.json", "spiece.model", "vocab.txt", "vocab.json", "tokenizer.model")
    if not any((path / name).exists() for name in names):
        raise ValueError(f"{path} has no {' or '.join(names[:2])}: no tokenizer")
    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises what its parsers raise
        raise ValueError(f"{path} has a tokenizer that can't be read: {_line(error)}") from None


def load_weights(
    architecture: Any, spec: Spec, dtype: torch.dtype, may_lack: tuple[str, ...] = ()
) -> tuple[Any, Items[str]]:
    """The model, and the names of the weights that the checkpoint lacks and may lack."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            model, report = architecture.from_pretrained(
                spec.path,
                dtype=dtype,
                attn_implementation="sdpa",
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except Exception as error:  # OSError, SafetensorError, RuntimeError on other sizes, …
        raise ValueError(
            f"{spec.path} has no safetensors weights of its config: {_line(error)}"
        ) from None
    missing = sorted(report["missing_keys"])  # transformers fills them with random numbers
    lost = [name for name in missing if not name.startswith(may_lack or "\0")]
    if lost:
        raise ValueError(f"{spec.path} lacks {len(lost)} of its model's weights, first {lost[0]}")
    return model, missing


def random_weights(architecture: Any, config: dict[str, Any], seed: int) -> Any:
    """A model of this size with random weights; the global random state stays as it is."""
    given = {name: value for name, value in config.items() if name != "model_type"}
    made = CONFIG_MAPPING[config["model_type"]](**given)
    made._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture(made)


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
