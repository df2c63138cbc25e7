"""SnapKV (Li et al., arXiv 2404.14469, §3): the entries that the end of the prompt attends to.

The last `window` queries of the prompt observe the others: an entry's score is the softmax weight
that it receives from them, summed, and pooled along the tokens by a pool of `kernel_size` (zeros
outside), so that what surrounds a wanted token stays as well. The window itself stays, and so do
all later tokens.

The pool is that of the official runs (FasterDecoding/SnapKV, Apache-2.0): the maximum over 7
tokens, in its three configurations for LongBench. Where a configuration gives none, its code takes
the mean over 5, `kernel_size=5 pooling=avg`.

Differs from the official code: that repeats keys and values for each query head before it selects,
so that grouped-query attention holds as many times the bytes; here the scores of the query heads of
a KV head are averaged, and then pooled.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.parts.observation_window import KernelSize, ObservationWindow
from methods.parts.parameters import Positive


@dataclass(frozen=True)
class SnapKV(ObservationWindow):
    """Keeps what an observation window attends to.

    budget  entries of the prompt in all, the window's included (`methods.parts.budget`); the
            official code's default is 2,048
    """

    window: Positive = 32
    kernel_size: KernelSize = 7
