"""The spectral filter of Fourier Transformer (arXiv 2305.15099, §4.1) on the rows of a batch, and
the upsampling to a state for each token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from methods.fourier.dct import resample
from methods.parts.sequence import Packed


@dataclass(frozen=True)
class SpectralFilter:
    """r: share of the frequencies that is kept; cls: number of tokens at the start that are not
    filtered (0 or 1); rescale: whether a constant signal keeps its value."""

    r: float
    cls: int
    rescale: bool

    def kept(self, n: int) -> int:
        """How many states n tokens are shortened to, including the CLS token."""
        if n <= self.cls:
            return n
        return self.cls + min(n - self.cls, math.ceil(self.r * n - 1e-9))  # 0.07·100 is 7 exactly

    def shortened(self, state: Packed) -> Packed:
        """The filtered state. Rows of the same length share one transform."""
        if len(set(state.lengths)) == 1 and state.lengths[0]:
            m = self.kept(state.lengths[0])
            hidden, positions = self._row(state.hidden, state.positions, state.lengths[0])
            return Packed(hidden, [m] * len(hidden), positions, state.order)
        kept = [self.kept(n) for n in state.lengths]
        width = max(1, *kept)
        hidden = state.hidden.new_zeros(len(kept), width, state.hidden.shape[2])
        positions = state.positions.new_zeros(len(kept), width)
        for n in set(state.lengths):
            row = [i for i, length in enumerate(state.lengths) if length == n]
            short, places = self._row(state.hidden[row], state.positions[row], n)
            hidden[row] = pad(short, (0, 0, 0, width - short.shape[1]))
            positions[row] = pad(places, (0, width - places.shape[1]))
        return Packed(hidden, kept, positions, state.order)

    def _row(self, hidden: Tensor, positions: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """hidden [B, ≥n, D] and positions [B, ≥n] of rows of n tokens → [B, m, D] and [B, m]; a
        state's position is that of the middle one of the tokens it represents."""
        cls, m = self.cls, self.kept(n)
        hidden, positions = hidden[:, :n], positions[:, :n]
        if m <= cls:
            return hidden, positions
        spectral = resample(hidden[:, cls:], m - cls)
        if self.rescale:
            spectral = spectral * math.sqrt((m - cls) / (n - cls))
        places = positions.index_select(1, _middles(n, m, cls, positions.device))
        return torch.cat((hidden[:, :cls], spectral), 1) if cls else spectral, places

    def upsampled(self, state: Packed, to: Packed) -> Tensor:
        """The nearest state for each token of `to`, in hidden [B, m, D]."""
        if state.lengths == to.lengths:
            return state.hidden
        cls, device = self.cls, state.hidden.device
        short, long = (torch.tensor(x.lengths, device=device)[:, None] - cls for x in (state, to))
        token = torch.arange(to.hidden.shape[1], device=device)[None] - cls
        index = torch.minimum(token, long - 1) * short // long.clamp(min=1) + cls
        index = torch.where(token < 0, 0, index).clamp(min=0)
        return state.hidden.gather(1, index[..., None].expand(-1, -1, state.hidden.shape[2]))


@lru_cache(maxsize=64)
def _middles(n: int, m: int, cls: int, device: torch.device) -> Tensor:
    """[m] int64: the middle one of the tokens, out of n, that each state represents."""
    index = torch.arange(m - cls, device=device)
    middle = cls + (2 * index + 1) * (n - cls) // (2 * (m - cls))
    return torch.cat((torch.arange(cls, device=device), middle))
