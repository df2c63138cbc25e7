"""Grows the paths of many Pathfinder images at a time; tasks.generators.pathfinder has the
rules."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from tasks.generators.pathfinder_draw import FREE, FULL, SEEDS, Hard, Ints, dashes, dilate, moved

ATTEMPTS = 64  # in parallel for each image
OVERLAP = 1.8 * FULL  # two dashes overlap if their greys sum to this
TRIES = 5  # for each distractor
Flags = NDArray[np.bool_]


class Field:
    """The occupied pixels of n images, uint8 [n, pixels]: where no dash may be (`kept`), and where
    no dash may end (`near`). Borders and the outside are occupied."""

    def __init__(self, hard: Hard, gap: int, n: int) -> None:
        self.hard, self.gap, self.dashes = hard, gap, dashes(hard.size, gap)
        self.edge = 2 * (hard.dash + 2 * gap) + 6
        self.side = hard.size + 2 * self.edge
        inner = slice(self.edge + hard.padding, -self.edge - hard.padding)
        kept = np.full((1, self.side, self.side), FULL, np.uint8)
        kept[:, inner, inner] = 0
        self.kept = np.tile(kept.ravel(), (n, 1))
        self.near = np.tile(dilate(kept, gap).ravel(), (n, 1))

    def part(self, image: Ints) -> Field:
        """A copy of the fields of some images."""
        copy = Field(self.hard, self.gap, 0)
        copy.kept, copy.near = self.kept[image], self.near[image]
        return copy

    def places(self, at: Ints, offsets: Ints) -> Ints:
        """Flat pixels [n, m] of offsets [n, m, 2] from points [n, 2]."""
        start = (at[:, 0] + self.edge) * self.side + at[:, 1] + self.edge
        return start[:, None] + (offsets[..., 0] * self.side + offsets[..., 1])

    def inside(self, at: Ints) -> Flags:
        return np.asarray(((at >= 0) & (at < self.hard.size)).all(-1))

    def overlaps(self, image: Ints, dash: Ints) -> Flags:
        offsets, values = self.dashes.kept
        number = dash[:, 2]
        taken = self.kept[image[:, None], self.places(dash[:, :2], offsets[number])].astype(int)
        over: Flags = (taken + values[number]).max(1, initial=0) >= OVERLAP
        return over

    def take(self, image: Ints, dash: Ints) -> None:
        """Add a dash [n, 3] of each image to its field."""
        for layer, (offsets, values) in (
            (self.kept, self.dashes.kept), (self.near, self.dashes.near),
        ):  # fmt: skip
            index = image[:, None], self.places(dash[:, :2], offsets[dash[:, 2]])
            layer[index] = np.maximum(layer[index], values[dash[:, 2]])

    def extend(self, rng: np.random.Generator, image: Ints, last: Ints) -> tuple[Flags, Ints]:
        """The next dash after `last` [n, 3] of each image: (found [n], dash [n, 3])."""
        table, number = self.dashes, last[:, 2]
        at = last[:, :2] + table.pivot[number] + table.step[number]
        # A pivot may be outside, as long as a part of its circle is inside.
        at = at.clip(-self.edge // 2, self.hard.size + self.edge // 2)
        free = FULL - self.near[image[:, None], self.places(at, table.ends[None])].astype(float)
        total = (free / FULL * self.weights[number]).cumsum(1)
        found = total[:, -1] >= 1e-4
        chosen = np.zeros(len(at), int)
        open_ = np.flatnonzero(found)
        dash = np.concatenate([at, at[:, :1]], 1)
        for _ in range(3):
            drawn = rng.random(len(open_))[:, None] * total[open_, -1:]
            chosen[open_] = (total[open_] <= drawn).sum(1).clip(0, len(table.ends) - 1)
            dash = np.concatenate([at + table.ends[chosen], SEEDS + chosen[:, None]], 1)
            open_ = open_[self.overlaps(image[open_], dash[open_])]
        found[open_] = False
        return found, dash

    @functools.cached_property
    def weights(self) -> NDArray[np.float64]:
        """The weight of each end after each dash, [m, k]."""
        angle = self.dashes.angle
        turn = np.abs((angle[SEEDS:] - angle[:, None] + np.pi) % (2 * np.pi) - np.pi)
        weights: NDArray[np.float64] = (
            np.cos(np.minimum(self.hard.continuity * turn, np.pi / 2)) ** 2
        )
        return weights

    def grow(
        self, rng: np.random.Generator, image: Ints, first: Ints, count: int, group: int = 1
    ) -> tuple[Ints, Ints]:
        """Grow s paths per image, in step, from first [n, s, 3] to `count` dashes: the rows in
        which no path failed, and their dashes [n, s, count, 3]. A dash is added to the field after
        the next one has been found, since consecutive dashes touch. With a `group` size above 1, an
        image that fails continues as a copy of an image of its group that didn't."""
        grown = np.zeros((*first.shape[:2], count, 3), int)
        grown[:, :, 0] = first
        rows = np.arange(len(image))
        for step in range(1, count):
            for path in range(first.shape[1]):
                last = grown[rows, path, step - 1]
                found, dash = self.extend(rng, image[rows], last)
                rows, last, dash = rows[found], last[found], dash[found]
                grown[rows, path, step] = dash
                self.take(image[rows], last)
            if group > 1:
                failed, instead = _replacements(rng, rows, len(image), group)
                grown[failed] = grown[instead]
                self.kept[image[failed]] = self.kept[image[instead]]
                self.near[image[failed]] = self.near[image[instead]]
                rows = np.sort(np.concatenate([rows, failed]))
        return rows, grown[rows]


def _replacements(rng: np.random.Generator, alive: Ints, n: int, group: int) -> tuple[Ints, Ints]:
    """The failed attempts among n, and for each a random survivor of its group. Groups without
    survivors are left out."""
    is_alive = np.zeros(n, bool)
    is_alive[alive] = True
    count = is_alive.reshape(-1, group).sum(1)
    failed = np.flatnonzero(~is_alive & np.repeat(count > 0, group))
    before = (count.cumsum() - count)[failed // group]
    return failed, alive[before + (rng.random(len(failed)) * count[failed // group]).astype(int)]


@functools.cache
def _starts(hard: Hard, gap: int) -> tuple[Ints, ...]:
    """For each of the first 360 dashes the pixels where a target may begin with it, [q, 2]: all
    pixels that it covers are at least twice the seeds' distance inside."""
    margin = 2 * hard.seed_distance
    table = dashes(hard.size, gap)
    starts = []
    for begins, offsets in zip(table.begins, table.clear, strict=True):
        low, high = margin - offsets.min(0), hard.size - margin - offsets.max(0)
        y, x = (np.arange(max(a, 0), b if begins else 0) for a, b in zip(low, high, strict=True))
        starts.append(np.stack(np.meshgrid(y, x, indexing="ij"), -1).reshape(-1, 2))
    return tuple(starts)


def targets(rng: np.random.Generator, hard: Hard, gap: int, pairs: int) -> Ints:
    """Pairs of paths, [pairs, 2, contour, 3]."""
    starts = _starts(hard, gap)
    fits = np.array([number for number, at in enumerate(starts) if len(at)])
    result: list[Ints] = []
    n = pairs * ATTEMPTS
    while len(result) < pairs:
        number = rng.choice(fits, n)
        one = np.array([starts[i][rng.integers(len(starts[i]))] for i in number])
        away = np.deg2rad(rng.integers(0, 360, n))
        other = np.rint(one + hard.seed_distance * np.stack([np.sin(away), np.cos(away)], -1))
        at = np.stack([one, other.astype(int)], 1)
        numbers = np.stack([number, rng.integers(0, SEEDS, n)], 1)
        first = np.concatenate([at, numbers[..., None]], 2)
        rows, grown = Field(hard, gap, n).grow(rng, np.arange(n), first, hard.contour, ATTEMPTS)
        # If both end in the same pixel, a disc there wouldn't identify its path.
        apart = (grown[:, 0, -1, :2] != grown[:, 1, -1, :2]).any(1)
        rows, grown = rows[apart], grown[apart]
        result += [*grown[np.unique(rows // ATTEMPTS, return_index=True)[1]]]
    return np.array(result[:pairs])


def distractors(rng: np.random.Generator, hard: Hard, gap: int, pairs: Ints) -> list[list[Ints]]:
    """For each pair of targets, the short paths that fit."""
    n = len(pairs)
    field = Field(hard, gap, n)
    # The official code omits the last dash of the first target.
    for path, step in ((path, step) for step in range(hard.contour) for path in (0, 1)):
        if (path, step) != (0, hard.contour - 1):
            field.take(np.arange(n), pairs[:, path, step])
    paths: list[list[Ints]] = [[] for _ in range(n)]
    for _ in range(hard.distractors):
        open_ = np.arange(n)
        for _ in range(TRIES):
            fits, first = _room(rng, field, open_)
            rows = np.flatnonzero(fits)
            trial = field.part(open_)
            done, grown = trial.grow(rng, rows, first[rows][:, None], hard.distractor_contour)
            rows = rows[done]
            for row, path in zip(rows, grown[:, 0], strict=True):
                paths[open_[row]].append(path)
            for dash in grown[:, 0].swapaxes(0, 1):
                field.take(open_[rows], dash)
            open_ = np.delete(open_, rows)
            if not len(open_):
                break
    return paths


def _room(rng: np.random.Generator, field: Field, image: Ints) -> tuple[Flags, Ints]:
    """A random dash on free pixels of each image: (found [n], dash [n, 3]). A dash that leaves the
    image is sampled again, at most twice."""
    hard, table = field.hard, field.dashes
    reach = hard.dash + field.gap
    inner = slice(field.edge, -field.edge)
    fits, first = np.zeros(len(image), bool), np.zeros((len(image), 3), int)
    for row, one in enumerate(image):
        # The outside counts as free.
        taken = field.kept[one].reshape(field.side, field.side)[inner, inner] > FREE
        taken = np.pad(taken, reach)
        for _ in range(3):
            number = int(rng.integers(SEEDS))
            if not table.begins[number]:
                break
            covered = np.zeros((hard.size, hard.size), bool)
            for dy, dx in table.clear[number] + reach:
                covered |= taken[dy : dy + hard.size, dx : dx + hard.size]
            at = np.argwhere(~covered)
            if not len(at):
                break
            start = at[rng.integers(len(at))]
            head = start + moved(table.angle[number], hard.dash)
            if field.inside(head) and field.inside(start + table.pivot[number]):
                fits[row], first[row] = True, (*start, number)
                break
    return fits, first
