"""Pathfinder images of LRA's hard kind (Linsley et al., 2018, arXiv:1805.08315; Tay et al., 2021,
arXiv:2011.04006): two long dashed paths, short distractors, and two discs. The label says whether
both discs lie on one path.

An image is grown as a list of dashes. A path starts near the centre; each next dash begins a gap
behind the last one's end, and its direction is drawn with weight cos² of the turn among the places
that are free. A dash that lies on a drawn one is drawn again, twice at most; then both paths start
anew, which happens to most. So hundreds of attempts grow side by side in numpy, and the survivors
get their distractors. The dashes are kept: `solve` reads the label from them alone.

    python -m tasks.pathfinder OUT --size 32 --rows 1000 --seed 0 --jobs 2

writes LRA's layout, OUT/pathfinder32/curv_contour_length_14/{imgs,metadata}, and beside them
paths/*.jsonl with the dashes. Images of the official code have, at 32×32 (100 images) and 64×64
(20), the figures on the left of each pair; 400 of this code those on the right:

    STATS
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VERSION = 1
BATCH = 8  # images that share one random stream: the n-th image doesn't depend on how many follow
ATTEMPTS = 192  # pairs of paths that grow side by side
FULL, OVERLAP = 100, 180  # a pixel wholly covered; the sum of two at which a dash is refused


@dataclass(frozen=True)
class Hard:
    """LRA's parameters of an image size, in pixels; `dash` and `gap` are lengths, a path has
    `contour` dashes, and a turn of 90°/continuity is the sharpest.

    target, distractor   grey levels of the dashes where a disc has 1
    shift                by which lines are off the middle of their pixels
    """

    size: int
    gap: tuple[int, ...]
    dash: int
    thickness: tuple[float, float]
    shift: float
    seed_distance: int
    radius: float
    continuity: float
    distractors: int
    target: float
    distractor: float
    padding: int = 1
    contour: int = 14
    distractor_contour: int = 4


HARD = {
    32: Hard(32, (1,), 2, (0.6, 0.6), 0.0, 7, 1.5, 1.0, 5, 1.5, 2.0),
    64: Hard(64, (1,), 5, (1.1, 0.6), 0.3, 12, 2.5, 1.8, 5, 0.8, 0.8),
    128: Hard(128, (2, 3), 5, (1.65, 0.6), 0.0, 20, 3.0, 1.8, 8, 0.9, 0.9),
}


@dataclass(frozen=True)
class Image:
    """`pixels` uint8 [size, size]; `paths` the two targets, then distractors: each a list of
    dashes (y, x, degrees); `discs` two points (y, x)."""

    pixels: NDArray[np.uint8]
    label: int
    paths: tuple[tuple[tuple[int, int, int], ...], ...]
    discs: tuple[tuple[int, int], tuple[int, int]]
    gap: int


# --- drawing ----------------------------------------------------------------------------------


def _lanczos(points: int, fine: int) -> NDArray[np.float64]:
    """[points, points·fine]: Lanczos-3 weights that reduce a line of fine pixels."""
    at = (np.arange(points * fine) + 0.5) / fine - 0.5 - np.arange(points)[:, None]
    weight = np.sinc(at) * np.sinc(at / 3) * (np.abs(at) < 3)
    return weight / weight.sum(1, keepdims=True)


@dataclass(frozen=True)
class Stamps:
    """What a dash of each whole degree covers, as pixels (dy, dx) from its start, [360, m, 2],
    and how much of each, [360, m]: as drawn, as widened by the gap (which must stay free), and
    widened twice (where no dash may end)."""

    drawn: tuple[NDArray[np.int64], NDArray[np.float64]]
    kept: tuple[NDArray[np.int64], NDArray[np.uint8]]
    near: tuple[NDArray[np.int64], NDArray[np.uint8]]


def _sparse(dense: NDArray, centre: int) -> tuple[NDArray[np.int64], NDArray]:
    most = int((dense > 0).sum((1, 2)).max())
    offsets, values = [], []
    for one in dense:
        y, x = np.nonzero(one)
        take = np.minimum(np.arange(most), len(y) - 1)  # the last pixel again, up to a full row
        offsets.append(np.stack([y[take], x[take]], 1) - centre)
        values.append(one[y[take], x[take]])
    return np.array(offsets), np.array(values)


def _widened(dense: NDArray, by: int) -> NDArray:
    wide = dense.copy()
    for dy in range(-by, by + 1):
        for dx in range(-by, by + 1):
            if dy * dy + dx * dx <= by * by:
                wide = np.maximum(wide, np.roll(dense, (dy, dx), (1, 2)))
    return wide


@functools.cache
def _stamps(hard: Hard, gap: int, thickness: float) -> Stamps:
    reach, fine = hard.dash + 2 * gap + 4, 8
    side = 2 * reach + 1
    weights = _lanczos(side, fine)
    at = (np.arange(side * fine) + 0.5) / fine - 0.5 - reach - hard.shift
    dense = np.empty((360, side, side))
    for degrees, angle in enumerate(np.deg2rad(np.arange(360))):
        # Drawn lines are half a fine pixel longer at both ends, as the official ones.
        along = at[:, None] * np.sin(angle) + at * np.cos(angle)
        across = at[:, None] * np.cos(angle) - at * np.sin(angle)
        inside = (0.5 + (thickness / 2 - abs(across)) / SOFT).clip(0, 1)
        inside = inside * ((along > -EXT[0]) & (along < hard.dash + EXT[1]))
        dense[degrees] = weights @ inside @ weights.T
    dense = dense.clip(0, min(1, CAP * thickness))
    kept = _widened(np.rint(dense * FULL).astype(np.uint8), gap)
    return Stamps(
        _sparse(np.floor(dense * 255) / 255, reach),
        _sparse(kept, reach),
        _sparse(_widened(kept, gap), reach),
    )


def _disc(size: int, y: int, x: int, radius: float) -> NDArray[np.float64]:
    reach, fine = int(radius) + 4, 8
    side = 2 * reach + 1
    at = (np.arange(side * fine) + 0.5) / fine - 0.5 - reach
    weights = _lanczos(side, fine)
    inside = at[:, None] ** 2 + at**2 <= radius**2
    whole = np.zeros((size + 2 * reach, size + 2 * reach))
    whole[y : y + side, x : x + side] = (weights @ inside @ weights.T).clip(0, 1)
    return whole[reach:-reach, reach:-reach]


def draw(size: int, image_paths: tuple, discs: tuple, gap: int) -> NDArray[np.uint8]:
    """Pixels of paths and discs: the brightest wins, and the whole is stretched to 0…255."""
    hard = HARD[size]
    edge = hard.dash + 2 * gap + 4
    canvas = np.zeros((size + 2 * edge, size + 2 * edge))
    for index, path in enumerate(image_paths):
        level = hard.target if index < 2 else hard.distractor
        offsets, values = _stamps(hard, gap, hard.thickness[index >= 2]).drawn
        for y, x, degrees in path:
            where = tuple((offsets[degrees] + (y + edge, x + edge)).T)
            canvas[where] = np.maximum(canvas[where], level * values[degrees])
    canvas = canvas[edge:-edge, edge:-edge]
    for y, x in discs:
        canvas = np.maximum(canvas, _disc(size, y, x, hard.radius))
    return (canvas * (255 / canvas.max())).astype(np.uint8)


# --- growing ----------------------------------------------------------------------------------


class Field:
    """What is taken in n images, seen by each of s paths: uint8 [n, s, side, side] of what a
    dash may not overlap (`kept`) and of where it may not end (`near`), borders taken."""

    def __init__(self, hard: Hard, gap: int, n: int, paths: int) -> None:
        self.hard, self.gap = hard, gap
        self.stamps = _stamps(hard, gap, hard.thickness[0])
        self.edge = 2 * (hard.dash + 2 * gap) + 6
        self.side = hard.size + 2 * self.edge
        inner = slice(self.edge + hard.padding, -self.edge - hard.padding)
        kept = np.full((self.side, self.side), FULL, np.uint8)
        kept[inner, inner] = 0
        near = _widened(kept[None], gap)[0]
        self.kept = np.tile(kept.ravel(), (n, paths, 1))
        self.near = np.tile(near.ravel(), (n, paths, 1))

    def _flat(self, at: NDArray, offsets: NDArray) -> NDArray[np.int64]:
        """Flat places [n, m] of offsets [n, m, 2] from points at [n, 2]."""
        start = (at[:, 0] + self.edge) * self.side + at[:, 1] + self.edge
        return start[:, None] + offsets[..., 0] * self.side + offsets[..., 1]

    def overlaps(self, image: NDArray, path: int, at: NDArray, degrees: NDArray) -> NDArray:
        offsets, values = self.stamps.kept
        places = self._flat(at, offsets[degrees])
        taken = self.kept[image[:, None], path, places]
        return (taken + values[degrees]).max(1) >= OVERLAP

    def take(self, image: NDArray, path: int, at: NDArray, degrees: NDArray) -> None:
        for layer, (offsets, values) in (
            (self.kept, self.stamps.kept), (self.near, self.stamps.near),
        ):  # fmt: skip
            index = image[:, None], path, self._flat(at, offsets[degrees])
            layer[index] = np.maximum(layer[index], values[degrees])

    @functools.cached_property
    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Pixels on a circle where the next dash may end, [k, 2], and their directions [k]."""
        angle = np.deg2rad(np.arange(720) / 2)
        radius = self.hard.dash + self.gap
        points = np.rint(radius * np.stack([np.sin(angle), np.cos(angle)], 1)).astype(int)
        points = np.unique(points, axis=0)
        directions = np.rint(np.rad2deg(np.arctan2(points[:, 0], points[:, 1]))).astype(int) % 360
        return points, directions

    def extend(
        self, rng: np.random.Generator, image: NDArray, path: int, last: NDArray
    ) -> tuple[NDArray, NDArray]:
        """One more dash behind `last` [n, 3] of each image: (found [n], dash [n, 3])."""
        angle = np.deg2rad(last[:, 2])
        step = self.hard.dash + 2 * self.gap
        at = last[:, :2] + np.rint(step * np.stack([np.sin(angle), np.cos(angle)], 1)).astype(int)
        found = ((at >= 0) & (at < self.hard.size)).all(1)
        at = at.clip(0, self.hard.size - 1)
        points, directions = self.ends
        turn = np.abs((directions - last[:, 2:] + 180) % 360 - 180)
        turn = np.minimum(self.hard.continuity * turn, 90)
        places = self._flat(at, np.broadcast_to(points, (len(at), *points.shape)))
        free = FULL - self.near[image[:, None], path, places].astype(float)
        total = (free * np.cos(np.deg2rad(turn)).clip(0) ** 2).cumsum(1)
        found &= total[:, -1] > 1e-6
        degrees = np.zeros(len(at), int)
        open_ = np.flatnonzero(found)
        for _ in range(3):
            drawn = rng.random(len(open_))[:, None] * total[open_, -1:]
            degrees[open_] = directions[(total[open_] <= drawn).sum(1).clip(0, len(points) - 1)]
            open_ = open_[self.overlaps(image[open_], path, at[open_], degrees[open_])]
        found[open_] = False
        return found, np.concatenate([at, degrees[:, None]], 1)

    def grow(
        self, rng: np.random.Generator, image: NDArray, first: NDArray, dashes: int, herd: int = 1
    ) -> tuple[NDArray, NDArray]:
        """Paths of `dashes` from first [n, s, 3] on, in step: the images where none failed, and
        their dashes [n, s, dashes, 3]. A path doesn't see its own last dash, which its next one
        touches by design; the other paths do. Where one of a herd of images fails, it goes on as
        a copy of one that didn't."""
        paths = range(first.shape[1])
        grown = np.zeros((*first.shape[:2], dashes, 3), int)
        grown[:, :, 0] = first
        rows = np.arange(len(image))
        for path in paths:
            for other in paths:
                if other != path:
                    self.take(image, other, first[:, path, :2], first[:, path, 2])
        for step in range(1, dashes):
            for path in paths:
                last = grown[rows, path, step - 1]
                found, dash = self.extend(rng, image[rows], path, last)
                rows, last, dash = rows[found], last[found], dash[found]
                grown[rows, path, step] = dash
                for other in paths:
                    new = last if other == path else dash
                    self.take(image[rows], other, new[:, :2], new[:, 2])
            if herd > 1:
                to, source = _replaced(rng, rows, len(image), herd)
                grown[to] = grown[source]
                self.kept[image[to]] = self.kept[image[source]]
                self.near[image[to]] = self.near[image[source]]
                rows = np.sort(np.concatenate([rows, to]))
        return rows, grown[rows]


def _replaced(
    rng: np.random.Generator, alive: NDArray, n: int, herd: int
) -> tuple[NDArray, NDArray]:
    """Of n attempts in herds: those that failed, and for each a survivor of its herd. A herd
    without survivors stays as it is."""
    lives = np.zeros(n, bool)
    lives[alive] = True
    count = lives.reshape(-1, herd).sum(1)
    failed = np.flatnonzero(~lives & np.repeat(count > 0, herd))
    before = np.concatenate([[0], count.cumsum()])[failed // herd]
    return failed, alive[before + (rng.random(len(failed)) * count[failed // herd]).astype(int)]


def _targets(rng: np.random.Generator, hard: Hard, gap: int) -> Iterator[NDArray[np.int64]]:
    """Pairs of paths [2, contour, 3], as many as asked for: one of each herd."""
    n = BATCH * HERD
    while True:
        field = Field(hard, gap, n, 2)
        low, high = 2 * hard.seed_distance, hard.size - 2 * hard.seed_distance
        start = rng.integers(low, high, (n, 2))
        away = rng.random(n) * 2 * np.pi
        step = hard.seed_distance * np.stack([np.sin(away), np.cos(away)], 1)
        starts = np.stack([start, start + np.rint(step).astype(int)], 1)
        degrees = rng.integers(0, 360, (n, 2, 1))
        first = np.concatenate([starts, degrees], 2)
        rows, grown = field.grow(rng, np.arange(n), first, hard.contour, HERD)
        yield from grown[np.unique(rows // HERD, return_index=True)[1]]


def _distractors(
    rng: np.random.Generator, hard: Hard, gap: int, targets: NDArray
) -> list[list[NDArray[np.int64]]]:
    """For each image's targets [n, 2, contour, 3] the short paths that found a place."""
    n = len(targets)
    field = Field(hard, gap, n, 1)
    for dash in targets.reshape(n, -1, 3).swapaxes(0, 1):
        field.take(np.arange(n), 0, dash[:, :2], dash[:, 2])
    field.stamps = _stamps(hard, gap, hard.thickness[1])
    found: list[list[NDArray[np.int64]]] = [[] for _ in range(n)]
    for _ in range(hard.distractors):
        open_ = np.arange(n)
        for _ in range(5):
            degrees = rng.integers(0, 360, len(open_))
            free, at = _free(rng, field, open_, degrees)
            trial = Field(hard, gap, 0, 1)
            trial.stamps = field.stamps
            trial.kept, trial.near = field.kept[open_], field.near[open_]
            first = np.concatenate([at, degrees[:, None]], 1)[:, None]
            rows = np.flatnonzero(free)
            done, grown = trial.grow(rng, rows, first[rows], hard.distractor_contour)
            rows = rows[done]
            for row, path in zip(rows, grown[:, 0], strict=True):
                found[open_[row]].append(path)
            for dash in grown[:, 0].swapaxes(0, 1):
                field.take(open_[rows], 0, dash[:, :2], dash[:, 2])
            open_ = np.delete(open_, rows)
            if not len(open_):
                break
    return found


def _free(
    rng: np.random.Generator, field: Field, image: NDArray, degrees: NDArray
) -> tuple[NDArray, NDArray]:
    """Of each image a place drawn among those where a first dash touches nothing: whether there
    is one in 100 pixels, and the place [n, 2]."""
    tries = 100
    at = rng.integers(0, field.hard.size, (len(image), tries, 2))
    reach = field.hard.dash + CLEAR * field.gap
    disc = np.argwhere(np.hypot(*np.mgrid[-reach : reach + 1, -reach : reach + 1]) <= reach) - reach
    flat = field._flat(at.reshape(-1, 2), np.broadcast_to(disc, (len(image) * tries, *disc.shape)))
    taken = field.near[np.repeat(image, tries)[:, None], 0, flat].max(1)
    free = (taken < FREE).reshape(len(image), tries)
    first = free.argmax(1)
    return free.any(1), at[np.arange(len(image)), first]


def images(size: int, seed: int, split: str = "test", first: int = 0) -> Iterator[Image]:
    """Image number `first`, `first` + 1, … of a seed and a split; their streams are disjoint."""
    hard = HARD[size]
    streams = ("train", "validation", "test")
    batch = first // BATCH
    skip = first % BATCH
    while True:
        rng = np.random.default_rng([VERSION, seed, streams.index(split), size, batch])
        gap = int(rng.choice(hard.gap))
        pairs = _targets(rng, hard, gap)
        targets = np.array([next(pairs) for _ in range(BATCH)])
        others = _distractors(rng, hard, gap, targets)
        for pair, short in list(zip(targets, others, strict=True))[skip:]:
            yield _image(rng, hard, gap, pair, short)
        batch, skip = batch + 1, 0


def end(size: int, dash: tuple[int, int, int]) -> tuple[int, int]:
    """The last pixel (y, x) of a dash."""
    y, x, degrees = dash
    angle = np.deg2rad(degrees)
    length = HARD[size].dash
    return y + round(length * np.sin(angle)), x + round(length * np.cos(angle))


def _image(rng, hard, gap, pair, short) -> Image:
    paths = tuple(tuple(tuple(map(int, dash)) for dash in path) for path in [*pair, *short])
    label, which = (int(v) for v in rng.integers(0, 2, 2))
    far = paths[which if label else 1 - which]
    discs = (paths[which][0][:2], end(hard.size, far[-1]))
    return Image(draw(hard.size, paths, discs, gap), label, paths, discs, gap)
CAP=.9; SOFT=.01; HERD=32; EXT=(.42,.22); FREE = 1; CLEAR=1; LAYER='near'; LAYER2='near'
