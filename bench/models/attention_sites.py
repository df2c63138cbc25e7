"""The modules of a decoder that compute attention through transformers' attention interface, in
order of the layers, with the features of each. They are found by one short forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.attention import NAME, hung
from bench.models.rotation import Rotation, rotations
from methods.base import Feature

PLACES = ((0, 1), (7, 8))
"""Positions of the two rows of the pass: their tokens are equal, so their keys differ only by the
positions."""


@dataclass(frozen=True)
class AttentionSite:
    """The attention module of one layer, by its name in the model; the sizes of its queries and
    keys, its window and its other features; the rotation of its keys."""

    name: str
    heads: int
    key_heads: int
    head_size: int
    window: int | None
    features: frozenset[Feature]
    rotation: Rotation | None


@dataclass
class _Probe:
    """A route that records its calls and reads nothing."""

    name: str
    layer: int
    calls: list[tuple[Tensor, Tensor, dict[str, Any]]] = field(default_factory=list)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        dropout: float,
        **settings: Any,
    ) -> Tensor:
        self.calls.append((query, key, settings))
        return query.new_zeros(*query.shape[:3], value.shape[3])


def attention_sites(model: Any) -> Sequence[AttentionSite]:
    """One site for each layer. Raises ValueError with the reason for an architecture that doesn't
    call once a layer, or whose layers keep more of the past than keys and values."""
    kind, config = model.config.model_type, model.config.get_text_config()
    if reason := _closed(model, config):
        raise ValueError(f"a model of type {kind!r} can't be entered: {reason}")
    probes = {
        module: _Probe(name, module.layer_idx)
        for name, module in model.named_modules()
        if getattr(module, "layer_idx", None) is not None
    }
    model.set_attn_implementation(NAME)
    places = torch.tensor(PLACES, device=model.device)
    try:
        with hung(probes), torch.no_grad():
            model(torch.ones_like(places), position_ids=places, use_cache=False, logits_to_keep=1)
    except Exception as error:  # an unknown architecture may raise any type
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"a model of type {kind!r} can't be entered: {line}") from None
    called = sorted((one for one in probes.values() if one.calls), key=lambda one: one.layer)
    layers = range(config.num_hidden_layers)
    if [one.layer for one in called for _ in one.calls] != [*layers]:
        raise ValueError(
            f"a model of type {kind!r} can't be entered: {len(called)} of its {len(layers)} layers "
            f"call transformers' attention interface once"
        )
    return [_site(one, model) for one in called]


def table_of_positions(model: Any) -> int | None:
    """The number of learned positions of a model; None if positions are computed."""
    places: int | None = getattr(model.config, "max_position_embeddings", None)
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    # Some tables have two rows more, for padding.
    if places is None or not any(0 <= table.num_embeddings - places <= 2 for table in tables):
        return None
    return places


def _closed(model: Any, config: Any) -> str | None:
    """Why keys and values, or causal windows as masks, aren't enough; None if they are."""
    if getattr(model, "_is_stateful", False):
        return "its layers have a state that isn't keys and values"
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return "it attends within chunks, which no argument of its attention tells"
    if not getattr(config, "is_causal", True) or getattr(
        config, "use_bidirectional_attention", False
    ):
        return "it isn't causal"
    return None


def _site(probe: _Probe, model: Any) -> AttentionSite:
    ((query, key, settings),) = probe.calls
    named = {"softcap": Feature.SOFTCAP, "sinks": Feature.SINKS}
    turn = PLACES[1][0] - PLACES[0][0]
    candidates = rotations(model.base_model) if table_of_positions(model) is None else iter(())
    rotation = next((one for one in candidates if one.explains(key[:1], key[1:], turn)), None)
    return AttentionSite(
        name=probe.name,
        heads=query.shape[1],
        key_heads=key.shape[1],
        head_size=query.shape[3],
        window=settings.get("window"),
        features=frozenset(feature for name, feature in named.items() if name in settings),
        rotation=rotation,
    )
