"""Grey images in other sizes, uint8 [height, width]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]


def enlarge(pixels: Pixels, size: int) -> Pixels:
    """Bilinear with aligned pixel centres (as tf.image.resize), rounded: [h, w] → [size, size]."""

    def weights(old: int) -> NDArray[np.float64]:
        at = ((np.arange(size) + 0.5) * old / size - 0.5).clip(0, old - 1)
        return (1 - np.abs(at[:, None] - np.arange(old))).clip(0)

    height, width = pixels.shape
    return np.rint(weights(height) @ pixels @ weights(width).T).astype(np.uint8)


def shrink(pixels: Pixels, length: int, reduction: str) -> Pixels:
    """A square image halved until it has at most `length` pixels; each new pixel is the `mean` or
    the `max` of four."""
    while pixels.size > length:
        side = len(pixels) // 2
        pixels = getattr(pixels.reshape(side, 2, side, 2), reduction)((1, 3)).astype(np.uint8)
    return pixels
