"""How the paths of Pathfinder images grow, many at a time: tasks/pathfinder.py has the rules."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.pathfinder_draw import FULL, Hard, stamps, widened

HERD = 32  # attempts at each image
OVERLAP = 180  # the sum of two dashes' greys at which they lie on each other
TRIES = 100  # places at which a distractor may begin
Ints = NDArray[np.int64]


def along(degrees: Any, length: float) -> Ints:
    """Whole pixels (dy, dx) [..., 2] to a point at a distance in a direction."""
    angle = np.deg2rad(degrees)
    return np.rint(length * np.stack([np.sin(angle), np.cos(angle)], -1)).astype(int)


class Field:
    """What is taken in n images, seen by each of s paths: uint8 [n, s, pixels] of what a dash
    may not lie on (`kept`) and of where it may not end (`near`). Borders are taken."""

    def __init__(self, hard: Hard, gap: int, n: int, paths: int) -> None:
        self.hard, self.gap = hard, gap
        self.use(0)
        self.edge = 2 * (hard.dash + 2 * gap) + 6
        self.side = hard.size + 2 * self.edge
        inner = slice(self.edge + hard.padding, -self.edge - hard.padding)
        kept = np.full((1, self.side, self.side), FULL, np.uint8)
        kept[:, inner, inner] = 0
        self.kept = np.tile(kept.ravel(), (n, paths, 1))
        self.near = np.tile(widened(kept, gap).ravel(), (n, paths, 1))

    def use(self, stroke: int) -> None:
        """Draw with the targets' stroke (0) or the distractors' (1) from now on."""
        self.stamps = stamps(self.hard.strokes[stroke], self.hard.dash, self.gap)

    def part(self, image: Ints) -> Field:
        """A copy of some images' fields."""
        found = Field(self.hard, self.gap, 0, 1)
        found.stamps, found.kept, found.near = self.stamps, self.kept[image], self.near[image]
        return found

    def places(self, at: Ints, offsets: Ints) -> Ints:
        """Flat pixels [n, m] of offsets [n, m, 2] from points [n, 2]."""
        start = (at[:, 0] + self.edge) * self.side + at[:, 1] + self.edge
        return start[:, None] + (offsets[..., 0] * self.side + offsets[..., 1])

    def overlaps(self, image: Ints, path: int, at: Ints, degrees: Ints) -> NDArray[np.bool_]:
        offsets, values = self.stamps.kept
        taken = self.kept[image[:, None], path, self.places(at, offsets[degrees])]
        return (taken + values[degrees]).max(1, initial=0) >= OVERLAP

    def take(self, image: Ints, path: int, dash: Ints) -> None:
        """Draw a dash [n, 3] of each image into the field of a path."""
        for layer, (offsets, values) in (
            (self.kept, self.stamps.kept), (self.near, self.stamps.near),
        ):  # fmt: skip
            index = image[:, None], path, self.places(dash[:, :2], offsets[dash[:, 2]])
            layer[index] = np.maximum(layer[index], values[dash[:, 2]])

    @functools.cached_property
    def ends(self) -> tuple[Ints, Ints]:
        """Pixels on the circle where a dash may end, [k, 2], and their directions [k]."""
        points = along(np.arange(720) / 2, self.hard.dash + self.gap)
        points = np.unique(points, axis=0)
        angle = np.rad2deg(np.arctan2(points[:, 0], points[:, 1]))
        return points, np.rint(angle).astype(int) % 360

    def extend(
        self, rng: np.random.Generator, image: Ints, path: int, last: Ints
    ) -> tuple[NDArray[np.bool_], Ints]:
        """One more dash behind `last` [n, 3] of each image: (found [n], dash [n, 3])."""
        at = last[:, :2] + along(last[:, 2], self.hard.dash + 2 * self.gap)
        found = ((at >= 0) & (at < self.hard.size)).all(1)
        at = at.clip(0, self.hard.size - 1)
        points, directions = self.ends
        turn = np.abs((directions - last[:, 2:] + 180) % 360 - 180)
        turn = np.minimum(self.hard.continuity * turn, 90)
        free = FULL - self.near[image[:, None], path, self.places(at, points[None])].astype(float)
        total = (free * np.cos(np.deg2rad(turn)) ** 2).cumsum(1)
        # cos² of 90° isn't quite 0.
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
        self, rng: np.random.Generator, image: Ints, first: Ints, dashes: int, herd: int = 1
    ) -> tuple[Ints, Ints]:
        """Paths of `dashes` from first [n, s, 3] on, in step: the rows where none failed, and
        their dashes [n, s, dashes, 3]. A path doesn't see its own last dash, which the next one
        touches by design; the other paths do. In a herd of images, one that fails goes on as a
        copy of one that doesn't."""
        paths = range(first.shape[1])
        grown = np.zeros((*first.shape[:2], dashes, 3), int)
        grown[:, :, 0] = first
        rows = np.arange(len(image))
        for path in paths:
            for other in paths:
                if other != path:
                    self.take(image, other, first[:, path])
        for step in range(1, dashes):
            for path in paths:
                last = grown[rows, path, step - 1]
                found, dash = self.extend(rng, image[rows], path, last)
                rows, last, dash = rows[found], last[found], dash[found]
                grown[rows, path, step] = dash
                for other in paths:
                    self.take(image[rows], other, last if other == path else dash)
            if herd > 1:
                failed, instead = _replaced(rng, rows, len(image), herd)
                grown[failed] = grown[instead]
                self.kept[image[failed]] = self.kept[image[instead]]
                self.near[image[failed]] = self.near[image[instead]]
                rows = np.sort(np.concatenate([rows, failed]))
        return rows, grown[rows]


def _replaced(rng: np.random.Generator, alive: Ints, n: int, herd: int) -> tuple[Ints, Ints]:
    """Of n attempts in herds those that failed, and for each a survivor of its herd. A herd
    without survivors stays as it is."""
    lives = np.zeros(n, bool)
    lives[alive] = True
    count = lives.reshape(-1, herd).sum(1)
    failed = np.flatnonzero(~lives & np.repeat(count > 0, herd))
    before = (count.cumsum() - count)[failed // herd]
    return failed, alive[before + (rng.random(len(failed)) * count[failed // herd]).astype(int)]


def targets(rng: np.random.Generator, hard: Hard, gap: int, pairs: int) -> Ints:
    """Pairs of paths, [pairs, 2, contour, 3]."""
    found: list[Ints] = []
    n = pairs * HERD
    while len(found) < pairs:
        low, high = 2 * hard.seed_distance, hard.size - 2 * hard.seed_distance
        start = rng.integers(low, high, (n, 2))
        away = along(rng.random(n) * 360, hard.seed_distance)
        starts = np.stack([start, start + away], 1)
        first = np.concatenate([starts, rng.integers(0, 360, (n, 2, 1))], 2)
        field = Field(hard, gap, n, 2)
        rows, grown = field.grow(rng, np.arange(n), first, hard.contour, HERD)
        found += [*grown[np.unique(rows // HERD, return_index=True)[1]]]
    return np.array(found[:pairs])


def distractors(rng: np.random.Generator, hard: Hard, gap: int, pairs: Ints) -> list[list[Ints]]:
    """For each pair of targets the short paths that found room."""
    n = len(pairs)
    field = Field(hard, gap, n, 1)
    for dash in pairs.reshape(n, -1, 3).swapaxes(0, 1):
        field.take(np.arange(n), 0, dash)
    field.use(1)
    found: list[list[Ints]] = [[] for _ in range(n)]
    for _ in range(hard.distractors):
        open_ = np.arange(n)
        for _ in range(5):
            free, at = _room(rng, field, open_)
            first = np.concatenate([at, rng.integers(0, 360, (len(at), 1))], 1)[:, None]
            rows = np.flatnonzero(free)
            trial = field.part(open_)
            done, grown = trial.grow(rng, rows, first[rows], hard.distractor_contour)
            rows = rows[done]
            for row, path in zip(rows, grown[:, 0], strict=True):
                found[open_[row]].append(path)
            for dash in grown[:, 0].swapaxes(0, 1):
                field.take(open_[rows], 0, dash)
            open_ = np.delete(open_, rows)
            if not len(open_):
                break
    return found


def _room(rng: np.random.Generator, field: Field, image: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """In each image a place with nothing around it: whether one was found, and it [n, 2]."""
    at = rng.integers(0, field.hard.size, (len(image), TRIES, 2))
    reach = field.hard.clear
    around = np.mgrid[-reach : reach + 1, -reach : reach + 1].reshape(2, -1).T
    around = around[np.hypot(*around.T) <= reach]
    places = field.places(at.reshape(-1, 2), around[None]).reshape(len(image), -1)
    taken = field.near[image[:, None], 0, places].reshape(len(image), TRIES, -1).max(2)
    free = taken == 0
    return free.any(1), at[np.arange(len(image)), free.argmax(1)]
