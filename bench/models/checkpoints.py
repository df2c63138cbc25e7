"""Reading Hugging Face checkpoints from local folders, and drawing random weights. Every error is a
ValueError with one line; nothing is downloaded, and no remote code runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoTokenizer
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from bench.errors import unknown
from bench.models.auto import CONTAINER
from bench.models.base import Spec
from bench.models.own_parameters import NAME as METHOD_PARAMETERS

# The first call compiles a thousand patterns: here the fork server does it once for all children.
get_checkpoint_conversion_mapping("")

TEXT_MODELS = {"qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen3_vl_text": "qwen3"}
"""Text models of multimodal containers for which transformers has no separate class → the equal
type on text, where the three positions of a token are equal."""
TEXT_WEIGHTS = {
    r"^(?:model\.)?(?:language_model|text_model)\.(?:model\.)?(?!lm_head\.)": "model.",
    r"^(?:model\.)?language_model\.lm_head\.": "lm_head.",
}
"""Names of a container's weights → names in its text model."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


def torch_dtype(name: str) -> torch.dtype:
    """Raises ValueError for a dtype that models do not take."""
    if name not in DTYPES:
        raise ValueError(f"dtype is {name!r}; a model takes {', '.join(DTYPES)}")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def cast(model: Any, dtype: torch.dtype) -> Any:
    """The model with all its weights in this dtype. Buffers outside checkpoints keep their dtype:
    rotary frequencies in bfloat16 would misplace the tokens of a long input."""
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a checkpoint."""
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
    except Exception as error:  # transformers passes on any type from its parsers
        raise ValueError(f"{path} has a tokenizer that can't be read: {_line(error)}") from None


def load_weights(
    architecture: Any, spec: Spec, dtype: torch.dtype, may_lack: tuple[str, ...] = ()
) -> tuple[Any, Sequence[str]]:
    """The model, and the names of the weights that the checkpoint lacks. Only names that begin with
    one of `may_lack` may be missing; these weights are drawn from the seed. A checkpoint
    of a multimodal model gives its text model."""
    # A method's own parameters are loaded by own_parameters.restore.
    ignored = {*(architecture._keys_to_ignore_on_load_unexpected or ()), rf"^{METHOD_PARAMETERS}\."}
    architecture._keys_to_ignore_on_load_unexpected = sorted(ignored)
    stored, text = read_config(spec.path), merged_config(spec.path, None)
    container = {} if text == stored else {"config": _config(text), "key_mapping": TEXT_WEIGHTS}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            model, report = architecture.from_pretrained(
                spec.path,
                dtype=dtype,
                attn_implementation=_attention_of(architecture),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                **container,
            )
    except Exception as error:  # OSError, SafetensorError, RuntimeError on other sizes, …
        raise ValueError(
            f"{spec.path} has no safetensors weights of its config: {_line(error)}"
        ) from None
    check_numbers(model, spec.path)
    missing = sorted(report["missing_keys"])  # transformers initializes them at random
    lost = [name for name in missing if not name.startswith(may_lack or "\0")]
    if lost:
        raise ValueError(f"{spec.path} lacks {len(lost)} of its model's weights, first {lost[0]}")
    return model, missing


def check_numbers(model: Any, path: Path) -> None:
    """Raises ValueError for a weight that contains NaN: all results would be NaN, too."""
    for name, weight in model.named_parameters():
        # A sum reads the weights once, and allocates no memory.
        if bool(weight.detach().sum().isnan()) and bool(weight.isnan().any()):
            count = int(weight.isnan().sum())
            raise ValueError(f"{path}: weight {name} holds NaN ({count} of {weight.numel():,})")


def merged_config(folder: Path, given: dict[str, Any] | None) -> dict[str, Any]:
    """The folder's config.json; for a multimodal model, the part that describes its text model.
    Fields in `given` replace those of the file; if they name another model_type, they are the
    config."""
    config = _of_text(read_config(folder))
    if given is None:
        return config
    same = given.get("model_type") in (None, config.get("model_type"))
    return {**(config if same else {}), **given}


def check_config(config: dict[str, Any], given: dict[str, Any]) -> None:
    """Raises ValueError for a `given` field that the configuration of this `model_type` doesn't
    have, and for a value that it refuses. Other fields of a folder's config.json may be older."""
    kind = CONFIG_MAPPING[config["model_type"]]
    fields = {name: value for name, value in config.items() if name != "model_type"}
    try:
        kind(**fields)
        default = kind()
    except Exception as error:  # its validators raise any type
        raise ValueError(f"model.config: {str(error).splitlines()[-1].strip()}") from None
    known = default.to_dict().keys() - {"_name_or_path", "transformers_version"}
    for name, value in given.items():
        if not hasattr(default, name):
            raise ValueError(str(unknown("field of model.config", name, known)))
        if isinstance(value, str) and isinstance(getattr(default, name), int | float):
            raise ValueError(f"model.config.{name} is {value!r}, which is no number")


def random_weights(
    architecture: Any, config: dict[str, Any], seed: int, device: str = "cpu"
) -> Any:
    """A model of this size with random weights, drawn on the device where they are used: a CPU
    takes 30 s for 10⁹ of them. The global random state is restored."""
    built = _config(config)
    built._attn_implementation = _attention_of(architecture)
    cuda = [torch.cuda.current_device()] if device == "cuda" else []
    with torch.random.fork_rng(devices=cuda), torch.device(device):
        torch.manual_seed(seed)
        return architecture(built)


def _config(config: dict[str, Any]) -> Any:
    """The configuration as an object of transformers."""
    fields = {name: value for name, value in config.items() if name != "model_type"}
    return CONFIG_MAPPING[config["model_type"]](**fields)


def _of_text(config: dict[str, Any]) -> dict[str, Any]:
    """The config of a multimodal container's text model; for other models, `config` unchanged."""
    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING or not CONTAINER & config.keys():
        return config
    whole = _config(config)
    text = whole.get_text_config(decoder=True)
    values: dict[str, Any] = text.to_dict() | {"tie_word_embeddings": whole.tie_word_embeddings}
    if "logit_scale" in values:
        values["logit_scale"] = 1.0  # containers don't apply it
    if values["model_type"] in TEXT_MODELS:
        rope = {k: v for k, v in values["rope_parameters"].items() if "mrope" not in k}
        values |= {"model_type": TEXT_MODELS[values["model_type"]], "rope_parameters": rope}
    return values


def _attention_of(architecture: Any) -> str:
    """Fused attention if transformers has it for this architecture."""
    return "sdpa" if architecture._supports_sdpa else "eager"


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
