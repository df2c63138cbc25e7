"""PyramidKV (Cai et al., arXiv 2406.02069, §4): SnapKV with more entries in the lower layers.

Attention is wide in the lower layers and concentrated on few tokens in the upper ones, so a layer's
share of the budget falls linearly with its depth. With L layers and a mean of C entries, of which W
are the window, layer l keeps max - l · ⌊(max - min) / (L - 1)⌋ entries before the window, with min
= ⌊(C - W) / β⌋ and max = 2 (C - W) - min.

As in the official code (Zefan-Cai/KVCache-Factory, MIT), the first layer takes at most the prompt's
entries, and the last one gets the rest; prompts of fewer than 2 (C - W) tokens get C in each layer.
Steps are rounded down, so the sum over the layers is up to L (L - 1) / 2 above L · C. The scores of
a KV head's query heads are averaged and then pooled, where the official code repeats keys and
values for each query head. The pool is that of its runs on LongBench, the maximum over 7 tokens;
where a run doesn't set it, its code takes the mean over 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from methods.base import Workload
from methods.parts.observation_window import KernelSize, ObservationWindow
from methods.parts.parameters import Positive


@dataclass(frozen=True)
class PyramidKV(ObservationWindow):
    """Keeps the entries to which an observation window attends, with a budget for each layer.

    budget  C, the mean over the layers (`Budget`); the paper's is 64 to 2,048
    window  W
    beta    steepness: the top layer keeps about 1/β of the mean
    """

    window: Positive = 8
    kernel_size: KernelSize = 7
    beta: Positive = 20

    def capacity(self, workload: Workload, n: int, layer: int) -> int:
        mean = super().capacity(workload, n, layer)
        prefix = mean - self.window
        if n < max(mean, 2 * prefix):
            return mean
        highest = min(2 * prefix - prefix // self.beta, n - self.window)
        lowest = 2 * prefix - highest
        step = (highest - lowest) // max(1, workload.layers - 1)
        return highest - layer * step + self.window
