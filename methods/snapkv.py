"""SnapKV (Li et al., arXiv 2404.14469, §3): the entries that the end of the prompt attends to.

An entry's score is the softmax weight that it receives from the last `window` queries of the
prompt, summed over these and pooled along the tokens with a pool of `kernel_size` (zeros outside),
so that the neighbours of a wanted token are kept as well. The window itself and all later tokens
are kept.

The pool is that of the official runs (FasterDecoding/SnapKV, Apache-2.0): the maximum over 7
tokens, in its three configurations for LongBench. Where a configuration doesn't set it, its code
takes the mean over 5, `kernel_size=5 pooling=avg`.

Differs from the official code: that code repeats keys and values for each query head before it
selects, so that grouped-query attention holds G times the bytes for G query heads to a KV head;
here their scores are averaged, and then pooled.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.parts.observation_window import KernelSize, ObservationWindow
from methods.parts.parameters import Positive


@dataclass(frozen=True)
class SnapKV(ObservationWindow):
    """Keeps the entries to which an observation window attends.

    budget  entries of the prompt, including the window (`Budget`); the official
            code's default is 2,048
    """

    window: Positive = 32
    kernel_size: KernelSize = 7
