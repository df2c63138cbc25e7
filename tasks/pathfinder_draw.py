"""How Pathfinder images look: LRA's parameters, what a dash covers, and whole images."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FULL = 100  # a pixel wholly covered
FINE = 8  # sub-pixels a side
Dash = tuple[int, int, int]  # its first pixel (y, x), and its direction in whole degrees
Point = tuple[int, int]


@dataclass(frozen=True)
class Stroke:
    """How a dash looks, fitted to the official images (which are drawn by other libraries): its
    width, over how much its edge fades, the most that a pixel is covered, how far it reaches
    beyond both ends, and by how much it is off the middle of its pixels."""

    width: float
    blur: float
    most: float
    before: float
    behind: float
    shift: float = 0.0


THIN = Stroke(0.46, 0.39, 0.7, 0.27, 0.34)
THICK = Stroke(1.1, 0.2, 1.0, 0.5, 0.3, 0.35)


@dataclass(frozen=True)
class Hard:
    """LRA's parameters of an image size, in pixels; `dash` and `gap` are lengths, a path has
    `contour` dashes, and 90°/`continuity` is the sharpest turn.

    levels   grey of the targets' and the distractors' dashes where a disc has 1
    strokes  of both
    clear    how far from everything a distractor begins; fitted to the official images
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
    strokes: tuple[Stroke, Stroke]
    clear: int
    thickness: float
    padding: int = 1
    contour: int = 14


HARD = {
    32: Hard(32, (1,), 2, 7, 1.5, 1.0, 5, 4, (1.5, 2.0), (THIN, THIN), 3, 0.5),
    64: Hard(64, (1,), 5, 12, 2.5, 1.8, 5, 4, (0.8, 0.8), (THICK, THIN), 9, 1.0),
    # There are no official images of this size to compare with: strokes and clear are guesses.
    128: Hard(
        128, (2, 3), 5, 20, 3.0, 1.8, 8, 4, (0.9, 0.9),
        (Stroke(1.6, 0.2, 1.0, 0.5, 0.3), THIN), 14, 1.5,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Stamps:
    """What a dash of each whole degree covers, as pixels (dy, dx) from its start, [360, m, 2],
    and how much of each, [360, m]: as drawn (0…1), as widened by the gap, and widened twice
    (both 0…100)."""

    drawn: tuple[NDArray[np.int64], NDArray[Any]]
    kept: tuple[NDArray[np.int64], NDArray[Any]]
    near: tuple[NDArray[np.int64], NDArray[Any]]


@functools.cache
def stamps(stroke: Stroke, dash: int, gap: int) -> Stamps:
    """The stamps of all directions, 360 small images reduced from sub-pixels."""
    reach = dash + 4
    weights, at = _reduce(2 * reach + 1)
    at = at - reach - stroke.shift
    dense = np.empty((360, 2 * reach + 1, 2 * reach + 1))
    for degrees, angle in enumerate(np.deg2rad(np.arange(360))):
        along = at[:, None] * np.sin(angle) + at * np.cos(angle)
        across = at[:, None] * np.cos(angle) - at * np.sin(angle)
        covered = (0.5 + (stroke.width / 2 - abs(across)) / stroke.blur).clip(0, 1)
        covered *= (along > -stroke.before) & (along < dash + stroke.behind)
        dense[degrees] = weights @ covered @ weights.T
    dense = dense.clip(0, stroke.most)
    # Room for what is widened.
    dense = np.pad(dense, ((0, 0), (2 * gap, 2 * gap), (2 * gap, 2 * gap)))
    reach += 2 * gap
    kept = widened(np.rint(dense * FULL).astype(np.uint8), gap)
    drawn = np.floor(dense * 255) / 255
    return Stamps(*(_sparse(one, reach) for one in (drawn, kept, widened(kept, gap))))


def widened(dense: NDArray[Any], by: int) -> NDArray[Any]:
    """Each image of [n, h, w] with its grey carried to all pixels within a distance."""
    wide = dense.copy()
    for dy in range(-by, by + 1):
        for dx in range(-by, by + 1):
            if dy * dy + dx * dx <= by * by:
                wide = np.maximum(wide, np.roll(dense, (dy, dx), (1, 2)))
    return wide


def draw(
    size: int, gap: int, paths: Sequence[Sequence[Dash]], discs: Sequence[Point]
) -> NDArray[np.uint8]:
    """Pixels of paths, the first two of them the targets, and discs: the brightest wins, and the
    whole is stretched to 0…255."""
    hard = HARD[size]
    edge = hard.dash + 2 * gap + 4
    canvas = np.zeros((size + 2 * edge, size + 2 * edge))
    for index, path in enumerate(paths):
        kind = int(index >= 2)
        offsets, values = stamps(hard.strokes[kind], hard.dash, gap).drawn
        for y, x, degrees in path:
            where = tuple((offsets[degrees] + (y + edge, x + edge)).T)
            canvas[where] = np.maximum(canvas[where], hard.levels[kind] * values[degrees])
    disc = _disc(hard.radius)
    reach = len(disc) // 2
    for y, x in discs:
        top, left = y + edge - reach, x + edge - reach
        window = canvas[top : top + len(disc), left : left + len(disc)]
        np.maximum(window, disc, out=window)
    canvas = canvas[edge:-edge, edge:-edge]
    return (canvas * (255 / canvas.max())).astype(np.uint8)


@functools.cache
def _disc(radius: float) -> NDArray[np.float64]:
    reach = int(radius) + 3
    weights, at = _reduce(2 * reach + 1)
    inside = (at[:, None] - reach) ** 2 + (at - reach) ** 2 <= radius**2
    return (weights @ inside @ weights.T).clip(0, 1)


def _reduce(points: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Lanczos-3 weights [points, sub-pixels] that reduce a line of sub-pixels, and where they
    lie."""
    at = (np.arange(points * FINE) + 0.5) / FINE - 0.5
    away = at - np.arange(points)[:, None]
    weight = np.sinc(away) * np.sinc(away / 3) * (np.abs(away) < 3)
    return weight / weight.sum(1, keepdims=True), at


def _sparse(dense: NDArray[Any], centre: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    most = int((dense > 0).sum((1, 2)).max())
    offsets, values = [], []
    for one in dense:
        y, x = np.nonzero(one)
        take = np.minimum(np.arange(most), len(y) - 1)  # the last pixel again, up to a full row
        offsets.append(np.stack([y[take], x[take]], 1) - centre)
        values.append(one[y[take], x[take]])
    return np.array(offsets), np.array(values)
