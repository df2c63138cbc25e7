"""The family of a checkpoint, by the `model_type` of its config.json. Imports no torch."""

from __future__ import annotations

import functools
import importlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.base import ANSWERS

AUTO = "bench.models.auto:AutoFamily"
DECODER = "bench.models.decoder:DecoderFamily"
DECODERS = (
    "cohere2", "gemma", "gemma2", "gemma3_text", "glm", "gpt2", "gpt_neox", "gpt_oss", "granite",
    "llama", "mistral", "nemotron", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3", "smollm3",
    "stablelm", "starcoder2",
)  # fmt: skip
"""Types of decoders that are tested here; for others the class named in config.json decides."""
DECODER_CLASSES = ("ForCausalLM", "LMHeadModel")
CONTAINER = {"text_config", "vision_config"}
"""Fields in the config.json of a multimodal model, from which only the text model is loaded."""
FAMILIES = {
    **dict.fromkeys(DECODERS, DECODER),
    "bart": "bench.models.bart:BartFamily",
    "bert": "bench.models.bert:BertFamily",
    "led": "bench.models.led:LEDFamily",
    "longt5": "bench.models.longt5:LongT5Family",
    "lra": "bench.models.lra:LRAFamily",
    "roberta": "bench.models.bert:RobertaFamily",
    "t5": "bench.models.t5:T5Family",
    "xlm-roberta": "bench.models.bert:RobertaFamily",
}
ANSWERS_OF = {
    FAMILIES["bart"]: ("text",),
    FAMILIES["led"]: ("text",),
    DECODER: ("text",),
    FAMILIES["longt5"]: ("text",),
    FAMILIES["lra"]: ("class",),
    FAMILIES["t5"]: ("text",),
}
"""Family with one kind of head → the kinds of its answers."""
BERT, ROBERTA = FAMILIES["bert"], FAMILIES["roberta"]
POSITIONS = ("max_encoder_position_embeddings", "max_position_embeddings")
TILED = ("bart", "bert", "led", "roberta", "xlm-roberta")
"""Types of models whose families restart the table of positions past its end."""
NEUTRAL_SEARCH = {"do_sample": False, "num_beams": 1}
NEUTRAL_PENALTIES = {
    "repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0,
    "bad_words_ids": [], "suppress_tokens": [], "begin_suppress_tokens": [],
}  # fmt: skip
"""Settings of generation → their values that change no answer."""
OWN_HEADS = {
    (ROBERTA, "choice"): "bench.models.heads:RobertaChoice",
    (ROBERTA, "span"): "bench.models.heads:RobertaSpan",
}
"""(family, kind of answer of tasks.base) → the family with the head that this project trains."""
HUB_HEADS = {
    (BERT, "choice"): "bench.models.hub_heads:BertMultipleChoice",
    (BERT, "span"): "bench.models.hub_heads:BertQuestionAnswering",
    (ROBERTA, "choice"): "bench.models.hub_heads:RobertaMultipleChoice",
    (ROBERTA, "span"): "bench.models.hub_heads:RobertaQuestionAnswering",
}
"""(family, kind of answer) → the family with the head of transformers."""

TYPES = {
    "model_type": (str, "a name"),
    "architectures": (list, "a list of names"),
    "pad_token_id": (int, "an integer"),
    **dict.fromkeys(POSITIONS, (int, "an integer")),
}
"""Field of a config.json → its type, and the name of that type in errors."""


def headed(target: str, answers: str, folder: Path | None = None) -> str:
    """The target of a family, or of the family with a head for such answers if there is one: the
    head of the checkpoint in `folder`, else this project's own."""
    kinds = trained_heads(target, folder) if folder else {}
    return kinds.get(answers) or OWN_HEADS.get((target, answers), target)


def trained_heads(target: str, folder: Path) -> dict[str, str]:
    """Kind of answer → target of the family with its head, for the heads that have weights in a
    checkpoint of a BERT or RoBERTa. Other families have one kind of answer: `text` or `class`."""
    if target not in (BERT, ROBERTA):
        return {}
    names = weight_names(folder)
    found = {
        answers: OWN_HEADS[target, answers]
        for answers, head in (("choice", "heads.choice."), ("span", "heads.kind."))
        if (target, answers) in OWN_HEADS and any(name.startswith(head) for name in names)
    }
    if "qa_outputs.weight" in names:
        found["span"] = HUB_HEADS[target, "span"]
    if any(name.startswith("classifier.") for name in names):
        # The head of a single class has the same weights as one that scores choices.
        classes = read_config(folder).get("architectures") or ()
        chooses = any("MultipleChoice" in str(name) for name in classes)
        found |= {"choice": HUB_HEADS[target, "choice"]} if chooses else {"class": target}
    return found


def answers_with(target: str, folder: Path | None) -> Collection[str]:
    """The kinds of answers of tasks.base that a family gives with the trained heads of the
    checkpoint in `folder`; without a folder, with the heads that random weights may have."""
    if target in (BERT, ROBERTA):
        return trained_heads(target, folder) if folder else ("class", "choice", "span")
    return ANSWERS_OF.get(target, tuple(ANSWERS))


def learned_positions(folder: Path, config: Mapping[str, Any] | None = None) -> int | None:
    """Positions in the table of a model whose longer inputs read the table again from its start
    (BERT, RoBERTa, BART, LED); None for other models."""
    values = dict(config or {})
    if "model_type" not in values:
        values = read_config(folder) | values
    kind, size = (
        values.get("model_type"),
        next((values[name] for name in POSITIONS if name in values), None),
    )
    if kind not in TILED or size is None:
        return None
    before = int(values.get("pad_token_id") or 0) + 1 if FAMILIES[kind] == ROBERTA else 0
    return int(size) - before


def rotary_positions(folder: Path, config: Mapping[str, Any] | None = None) -> int | None:
    """The positions that a decoder was configured for, `max_position_embeddings`; later ones are
    extrapolated by its rotation. None for other models."""
    stored = read_config(folder)
    values = stored | dict(config or {})
    values |= values.get("text_config") or {}
    kind, size = values.get("model_type"), values.get("max_position_embeddings")
    is_decoder = FAMILIES.get(str(kind), DECODER) == DECODER
    return int(size) if is_decoder and isinstance(size, int) else None


def has_chat_template(folder: Path) -> bool:
    """Whether the tokenizer of a checkpoint has a chat template."""
    if (Path(folder) / "chat_template.jinja").is_file():
        return True
    try:
        given = json.loads((Path(folder) / "tokenizer_config.json").read_text())
        return bool(given.get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def ignored_generation(folder: Path, family: str) -> str | None:
    """The settings of a checkpoint's generation_config.json that its family does not apply, such as
    "repetition_penalty=1.1"; None where there is none. All families decode greedily; decoders use
    no other setting than the end-of-sequence tokens."""
    try:
        given = json.loads((Path(folder) / "generation_config.json").read_text())
        named = {**NEUTRAL_SEARCH, **(NEUTRAL_PENALTIES if family == DECODER else {})}
        found = [f"{name}={given[name]}" for name, neutral in named.items()
                 if given.get(name) not in (None, neutral)]  # fmt: skip
    except (OSError, ValueError, AttributeError):
        return None
    return ", ".join(found) or None


def weight_names(folder: Path) -> set[str]:
    """The names of a checkpoint's weights. Raises ValueError as `weight_shapes`."""
    return set(weight_shapes(folder))


@functools.cache
def n_parameters(folder: Path) -> int:
    """Number of parameters of the checkpoint in a folder; 0 if none can be read."""
    try:
        return sum(math.prod(shape) for shape in weight_shapes(folder).values())
    except (TypeError, ValueError):
        return 0


def weight_shapes(folder: Path) -> dict[str, Sequence[int]]:
    """The shapes of a checkpoint's weights by name, from the headers of its safetensors files.
    Raises ValueError with one line for a file that has none."""
    weights: dict[str, Sequence[int]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        try:
            with path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(size, path.stat().st_size)))
            header.pop("__metadata__", None)
            weights |= {name: entry["shape"] for name, entry in header.items()}
        except (
            OSError,
            ValueError,
            AttributeError,
            LookupError,
            TypeError,
            RecursionError,
        ) as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from None
    return weights


def read_config(folder: Path) -> dict[str, Any]:
    """A checkpoint's config.json. Raises ValueError, also for a field of a wrong type among those
    that are read before the weights are loaded."""
    path = Path(folder) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder} is no checkpoint: no config.json to read ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds {json.dumps(config):.60}; it takes an object")
    for name, (kind, takes) in TYPES.items():
        if not isinstance(value := config.get(name), kind | None):
            raise ValueError(f"{path}: {name} is {json.dumps(value):.60}; it takes {takes}")
    return config


def resolve(target: str, folder: Path, config: Mapping[str, Any] | None = None) -> str:
    """The target of a model's family: `target`, or if that is AUTO, by the model_type of
    `config` or of the folder's config.json. Raises ValueError with one line for an unknown type."""
    if target != AUTO:
        return target
    values = config if config and config.get("model_type") else read_config(folder)
    kind, classes = values.get("model_type"), values.get("architectures") or []
    if kind in FAMILIES:
        return FAMILIES[kind]
    if CONTAINER & values.keys() or any(str(name).endswith(DECODER_CLASSES) for name in classes):
        return DECODER
    raise ValueError(
        f"{folder} holds a model of type {kind!r}; there are families for {', '.join(FAMILIES)} "
        "and other decoders"
    )


class AutoFamily:
    """Loads a checkpoint with its family: `AutoFamily.load(spec, method, dtype, device)`."""

    @classmethod
    def load(cls, spec: Any, method: Any, dtype: str, device: str) -> Any:
        """A bench.models.base.Family. Raises ValueError like the family's own `load`."""
        module, _, name = resolve(AUTO, spec.path, spec.config).partition(":")
        return getattr(importlib.import_module(module), name).load(spec, method, dtype, device)
