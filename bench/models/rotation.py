"""Rotation of a decoder's cached keys to other positions: rotary embeddings (Su et al., arXiv
2104.09864, §3.2) in the layouts of transformers' models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

STATIC = ("default", "linear", "llama3", "yarn", "proportional")
"""Kinds of frequencies that don't depend on the length of the input."""


@dataclass(frozen=True)
class Rotation:
    """Dimension pairs (i, i + r/2) of the first r, or (2i, 2i + 1) if `interleaved`, turn by
    frequencies[i] [r/2] radians a position. Without frequencies, keys have no positions."""

    frequencies: Tensor
    interleaved: bool = False

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys x [B, H, n, d], moved on by positions [B or 1, n] or [B, H, n]."""
        half = len(self.frequencies)
        if not half:
            return x
        positions = positions if positions.dim() == 3 else positions[:, None]
        angle = positions[..., None] * self.frequencies.to(x.device)
        cos, sin = angle.cos(), angle.sin()
        turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
        shape = (half, 2) if self.interleaved else (2, half)
        along = -1 if self.interleaved else -2
        one, other = turned.unflatten(-1, shape).unbind(along)
        pairs = torch.stack((one * cos - other * sin, other * cos + one * sin), along)
        return torch.cat((pairs.flatten(-2).to(x.dtype), rest), -1)

    def explains(self, key: Tensor, moved: Tensor, by: int) -> bool:
        """Whether keys [1, G, n, d] of the same tokens, `by` positions later, are `moved`."""
        if 2 * len(self.frequencies) > key.shape[-1]:
            return False
        turned = self(key, torch.full((1, key.shape[2]), by, device=key.device))
        tolerance = 8 * torch.finfo(key.dtype).eps * key.abs().max()
        return bool((turned - moved).abs().max() <= tolerance)


def rotations(model: nn.Module) -> Iterator[Rotation]:
    """A rotation without frequencies, then those with the model's frequencies, in both layouts."""
    yield Rotation(torch.empty(0))
    for module, name, kind in _embeddings(model):
        frequencies = getattr(module, f"{name}_inv_freq" if name else "inv_freq", None)
        if isinstance(frequencies, Tensor) and kind in STATIC:
            yield Rotation(frequencies.float())
            yield Rotation(frequencies.float(), interleaved=True)


def changes_past(model: Any) -> int | None:
    """The length of an input past which the frequencies depend on it: LongRoPE (arXiv 2402.13753)
    has two sets of them, dynamic NTK one for each length. None: they never depend on it."""
    for module, name, kind in _embeddings(model):
        settings = module.config.rope_parameters if kind not in STATIC else {}
        if kind == "longrope":
            return int((settings[name] if name else settings)["original_max_position_embeddings"])
        if "dynamic" in kind:
            return int(module.original_max_seq_len)
    return None


def read_anew_past(model: Any) -> int | None:
    """The length past which transformers' `generate` drops the cache and reads all tokens again,
    with the frequencies of the longer input (Phi-3, Phi-3.5-MoE); None: it keeps the cache."""
    past = getattr(model.config, "original_max_position_embeddings", None)
    if past is None or past != changes_past(model):
        return None
    ids = torch.ones(1, past + 1, dtype=torch.long, device=model.device)
    seen = SimpleNamespace(get_seq_length=lambda: past, is_compileable=False)
    inputs = model.prepare_inputs_for_generation(ids, next_sequence_length=1, cache=seen)
    return past if inputs["input_ids"].shape[1] > past else None


def forget_lengths(model: nn.Module) -> None:
    """Dynamic frequencies stay those of the longest input so far until an input is short. After
    this call they depend only on the next input's length, as in a newly loaded model."""
    for module, name, kind in _embeddings(model):
        if "dynamic" in kind:
            place = torch.zeros(1, 1, dtype=torch.long, device=module.inv_freq.device)
            module(place.float(), place, **({"layer_type": name} if name else {}))


def _embeddings(model: nn.Module) -> Iterator[tuple[Any, str, str]]:
    """Modules of rotary embeddings, each with its type of layers ("": all), and the kind of its
    frequencies."""
    for module in model.modules():
        kind = getattr(module, "rope_type", "default")
        of_layers = kind.items() if isinstance(kind, dict) else [("", kind)]
        yield from ((module, name, one) for name, one in of_layers)
