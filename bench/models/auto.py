"""The family of a checkpoint, by the `model_type` of its config.json. Imports no torch."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

AUTO = "bench.models.auto:AutoFamily"
FAMILIES = {
    "bart": "bench.models.bart:BartFamily",
    "bert": "bench.models.bert:BertFamily",
    "llama": "bench.models.llama:LlamaFamily",
    "lra": "bench.models.lra:LRAFamily",
    "roberta": "bench.models.bert:RobertaFamily",
    "t5": "bench.models.t5:T5Family",
    "xlm-roberta": "bench.models.bert:RobertaFamily",
}
HEADS = {
    ("bench.models.bert:RobertaFamily", "choice"): "bench.models.heads:RobertaChoice",
    ("bench.models.bert:RobertaFamily", "span"): "bench.models.heads:RobertaSpan",
}
"""(family, kind of answer of tasks.base) → the family with the head for such answers."""


def headed(target: str, answers: str) -> str:
    """The target of a family, or of the one with a head for such answers where there is one."""
    return HEADS.get((target, answers), target)


def resolve(target: str, folder: Path, config: Mapping[str, Any] | None = None) -> str:
    """The target of a model's family: `target`, or where that is AUTO, by the model_type of
    `config` or of the folder's config.json. Raises ValueError with one line for an unknown type."""
    if target != AUTO:
        return target
    kind = (config or {}).get("model_type")
    if kind is None:
        try:
            kind = json.loads((Path(folder) / "config.json").read_text()).get("model_type")
        except (OSError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{folder} is no checkpoint: no config.json to read ({error})"
            ) from None
    if kind not in FAMILIES:
        raise ValueError(
            f"{folder} holds a model of type {kind!r}; there are families for {', '.join(FAMILIES)}"
        )
    return FAMILIES[kind]


class AutoFamily:
    """Loads a checkpoint with its family: `AutoFamily.load(spec, method, dtype, device)`."""

    @classmethod
    def load(cls, spec: Any, method: Any, dtype: str, device: str) -> Any:
        """A bench.models.base.Family. Raises ValueError as the family's own load does."""
        module, _, name = resolve(AUTO, spec.path, spec.config).partition(":")
        return getattr(importlib.import_module(module), name).load(spec, method, dtype, device)
