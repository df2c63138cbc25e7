"""Drawing of Pathfinder images: LRA's parameters, the pixels of each dash, and whole images.

Dashes and discs are drawn at twice the size and reduced with a Lanczos filter in 8 bits, with the
library of the official code, so that greys are the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

FULL = 255  # a completely covered pixel
FINE = 2  # sub-pixels per pixel and axis
FREE = 76  # a path may begin at pixels with at most this coverage: 0.3
SEEDS = 360
Dash = tuple[int, int, int]  # the pixel (y, x) from which it is drawn, and its index in Dashes
Point = tuple[int, int]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Hard:
    """LRA's parameters for an image size, in pixels; `dash` and `gap` are lengths, a path has
    `contour` dashes, and 90°/`continuity` is the sharpest turn.

    levels   grey of the targets' and the distractors' dashes, relative to the discs'
    """

    size: int
    gap: tuple[int, ...]
    dash: int
    seed_distance: int
    radius: float
    continuity: float
    distractors: int
    distractor_contour: int
    levels: tuple[float, float]
    thickness: float
    padding: int = 1
    contour: int = 14


HARD = {
    32: Hard(32, (1,), 2, 7, 1.5, 1.0, 5, 4, (1.5, 2.0), 0.5),
    64: Hard(64, (1,), 5, 12, 2.5, 1.8, 5, 4, (0.8, 0.8), 1.0),
    128: Hard(128, (2, 3), 5, 20, 3.0, 1.8, 8, 4, (0.9, 0.9), 1.5),
}


@dataclass(frozen=True)
class Dashes:
    """All dashes for a size and a gap. The first 360 begin a path: they are drawn from their first
    pixel, at whole degrees. The others continue a path, which turns at a pivot in the middle of a
    gap: they are drawn backwards from their end, a pixel near a circle around the pivot.

    angle  [m] radians, the direction of the path
    pivot  [m, 2] from the pixel at which drawing starts to its pivot
    step   [m, 2] from its pivot to the pivot of the next dash
    ends   [m - 360, 2] from the pivot to the pixels on the circle
    drawn  the covered pixels (dy, dx) relative to the pixel at which drawing starts, [m, p, 2], and
           their coverage, [m, p], 0…255; `kept` is the same dilated by the gap, `near` dilated
           twice
    clear  for each of the first 360, the pixels relative to its first that must be free, [q, 2]
    begins  for each of the first 360, whether a path may begin with it: the official code rejects
           it if for any pixel of the image all of `clear` is outside, however far from there the
           path would begin
    """

    angle: NDArray[np.float64]
    pivot: Ints
    step: Ints
    ends: Ints
    drawn: tuple[Ints, NDArray[np.uint8]]
    kept: tuple[Ints, NDArray[np.uint8]]
    near: tuple[Ints, NDArray[np.uint8]]
    clear: tuple[Ints, ...]
    begins: tuple[bool, ...]


@functools.cache
def dashes(size: int, gap: int) -> Dashes:
    """The dashes of an image size."""
    hard = HARD[size]
    ends, turned = _circle(hard.dash + gap)
    angle = np.concatenate([np.deg2rad(np.arange(SEEDS)), turned])
    # At the start of a path, the pivot is one gap before the first pixel, rounded twice.
    head = moved(angle[:SEEDS], hard.dash)
    begins = head + moved(angle[:SEEDS] + math.pi, hard.dash + gap)
    drawn_from = np.concatenate([angle[:SEEDS], turned + math.pi])
    lines = [_line(hard, gap, one) for one in drawn_from]
    reach = hard.dash + math.ceil(hard.thickness) + gap
    drawn = np.stack([_reduced(line) for line in lines])
    kept = np.stack([_reduced(dilate(line[None], gap * FINE)[0]) for line in lines])
    # Room for the second dilation.
    room = np.pad(kept, ((0, 0), (gap, gap), (gap, gap)))
    clear = []
    for one in kept[:SEEDS]:
        # One pixel off, as in the official code.
        offsets = np.argwhere(one == FULL) - reach + 1
        clear.append(offsets[(np.abs(offsets) <= hard.dash + gap).all(1)])
    return Dashes(
        angle=angle,
        pivot=np.concatenate([begins, -ends]),
        step=moved(angle, hard.dash + 2 * gap),
        ends=ends,
        drawn=_sparse(drawn, reach),
        kept=_sparse(kept, reach),
        near=_sparse(dilate(room, gap), reach + gap),
        clear=tuple(clear),
        begins=tuple(map(_everywhere, clear)),
    )


def _everywhere(offsets: Ints) -> bool:
    """Whether one of the pixels is inside for each corner of an image."""
    return all((offsets * (y, x) >= 0).all(1).any() for y in (-1, 1) for x in (-1, 1))


def moved(angle: NDArray[np.float64], length: float) -> Ints:
    """The displacement (dy, dx) [..., 2] in whole pixels, rounded up."""
    # The offset, of the size of an image, absorbs the rounding error of sin(π).
    shifted = 32 + length * np.stack([np.sin(angle), np.cos(angle)], -1)
    return np.ceil(shifted).astype(int) - 32


def _circle(radius: float) -> tuple[Ints, NDArray[np.float64]]:
    """Pixels (dy, dx) [k, 2] along a circle in steps of a pixel, truncated, and their directions
    [k]."""
    angle = np.deg2rad(np.arange(0, 360, 360 / (2 * math.pi * radius)))
    points = (32 + radius * np.stack([np.sin(angle), np.cos(angle)], -1)).astype(int) - 32
    points = np.unique(points, axis=0)
    return points, np.arctan2(points[:, 0], points[:, 1])


def _line(hard: Hard, gap: int, angle: float) -> NDArray[np.uint8]:
    """A line of a dash's length from the centre of a window, in sub-pixels."""
    centre = (hard.dash + math.ceil(hard.thickness) + gap) * FINE
    line = hard.dash * FINE * np.array([math.sin(angle), math.cos(angle)])
    y, x = np.ceil(centre + line).astype(int).tolist()
    window = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    width = round(hard.thickness * FINE)
    ImageDraw.Draw(window).line([(centre, centre), (x, y)], fill=FULL, width=width)
    return np.array(window)


def _reduced(fine: NDArray[Any]) -> NDArray[np.uint8]:
    """Reduce sub-pixels to pixels, [2·h (+ 1), …] → [h (+ 1), …]."""
    height, width = ((side + 1) // FINE for side in fine.shape)
    image = Image.fromarray(fine.astype(np.uint8))
    return np.array(image.resize((width, height), Image.Resampling.LANCZOS))


def dilate(dense: NDArray[Any], by: int) -> NDArray[Any]:
    """Dilation: images [n, h, w] with the maximum over all pixels within a distance."""
    wide = dense.copy()
    for dy in range(-by, by + 1):
        for dx in range(-by, by + 1):
            if dy * dy + dx * dx <= by * by:
                wide = np.maximum(wide, _shifted(dense, dy, dx))
    return wide


def _shifted(dense: NDArray[Any], dy: int, dx: int) -> NDArray[Any]:
    """Images [n, h, w] shifted, with zeros at the border."""
    shifted = np.zeros_like(dense)
    height, width = dense.shape[1:]
    to_y, to_x = slice(max(0, dy), height + min(0, dy)), slice(max(0, dx), width + min(0, dx))
    of_y, of_x = slice(max(0, -dy), height - max(0, dy)), slice(max(0, -dx), width - max(0, dx))
    shifted[:, to_y, to_x] = dense[:, of_y, of_x]
    return shifted


def draw(
    size: int, gap: int, paths: Sequence[Sequence[Dash]], discs: Iterable[Point]
) -> NDArray[np.uint8]:
    """The image of paths, the first two of them the targets, and discs: their maximum, scaled to
    0…255."""
    hard = HARD[size]
    edge = hard.dash + 2 * gap + 4
    canvas = np.zeros((size + 2 * edge, size + 2 * edge))
    offsets, values = dashes(size, gap).drawn
    for index, path in enumerate(paths):
        level = hard.levels[int(index >= 2)] / FULL
        for y, x, number in path:
            where = tuple((offsets[number] + (y + edge, x + edge)).T)
            canvas[where] = np.maximum(canvas[where], level * values[number])
    image = canvas[edge:-edge, edge:-edge]
    for disc in discs:
        image = np.maximum(image, _disc(size, hard.radius, disc) / FULL)
    pixels: NDArray[np.uint8] = (image * (FULL / image.max()) + 0.5).astype(np.uint8)
    return pixels


def _disc(size: int, radius: float, at: Point) -> NDArray[np.uint8]:
    """An image of one disc."""
    y, x = (np.arange(size * FINE) - one * FINE for one in at)
    inside = y[:, None] ** 2 + x**2 <= (radius * FINE) ** 2
    return _reduced(inside * FULL)


def _sparse(dense: NDArray[np.uint8], centre: int) -> tuple[Ints, NDArray[np.uint8]]:
    most = int((dense > 0).sum((1, 2)).max())
    offsets, values = [], []
    for one in dense:
        y, x = np.nonzero(one)
        take = np.minimum(np.arange(most), len(y) - 1)  # padded with the last pixel
        offsets.append(np.stack([y[take], x[take]], 1) - centre)
        values.append(one[y[take], x[take]])
    return np.array(offsets), np.array(values)
