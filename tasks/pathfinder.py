"""Pathfinder images of LRA's hard kind (Linsley et al., 2018, arXiv:1805.08315; Tay et al., 2021,
arXiv:2011.04006): two long dashed paths, short distractors, and two discs. The label says whether
both discs lie on one path.

A path begins near the centre; each next dash begins a gap behind the last one's end, and its
direction is drawn with weight cos² of the turn among those that end on a free place. A dash that
lies on a drawn one is drawn again, twice at most. The official code then starts both paths anew,
up to thousands of times at 64×64. Here a herd of attempts grows side by side: one that fails goes
on as a copy of one that doesn't, and at the end one of the herd is taken. Distractors follow,
where there is room. All dashes are kept, and `solve` reads the label from them alone.

    python -m tasks.pathfinder OUT --size 32 --rows 1000 --seed 0 --jobs 2

writes LRA's layout, OUT/pathfinder32/curv_contour_length_14/{imgs,metadata}, and beside it paths/
with the dashes as json. STATS
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks import png
from tasks.generate import bar, chunks
from tasks.pathfinder_draw import FULL, HARD, Dash, Hard, Point, draw, stamps, widened

VERSION = 1
STREAMS = ("train", "validation", "test")
BATCH = 8  # images that share one random stream
HERD = 32  # attempts at each image
OVERLAP = 180  # the sum of two dashes' greys at which they lie on each other
TRIES = 100  # places at which a distractor may begin
FOLDER = 1000  # images in one folder of the official layout
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Image:
    """`pixels` uint8 [size, size]; `paths` are the two targets, then the distractors; `discs` the
    pixels (y, x) where the discs are."""

    pixels: NDArray[np.uint8]
    label: int
    paths: tuple[tuple[Dash, ...], ...]
    discs: tuple[Point, Point]
    gap: int


def images(size: int, seed: int, split: str = "test", jobs: int = 1) -> Iterator[Image]:
    """Images without end; those of other seeds and splits are drawn independently."""
    return chunks(batch, (size, seed, split), jobs)


def batch(size: int, seed: int, split: str, number: int) -> list[Image]:
    """Images 8·number to 8·number + 7 of a seed and a split."""
    hard = HARD[size]
    rng = np.random.default_rng([VERSION, seed, STREAMS.index(split), size, number])
    gap = int(rng.choice(hard.gap))
    targets = _targets(rng, hard, gap)
    made = []
    for pair, short in zip(targets, _distractors(rng, hard, gap, targets), strict=True):
        paths = tuple(tuple(tuple(map(int, dash)) for dash in path) for path in [*pair, *short])
        label, first = (int(one) for one in rng.integers(0, 2, 2))
        last = first if label else 1 - first
        discs = paths[first][0][:2], end(hard, paths[last][-1])
        made.append(Image(draw(size, gap, paths, discs), label, paths, discs, gap))
    return made


def end(hard: Hard, dash: Dash) -> Point:
    """The last pixel of a dash."""
    return tuple((np.array(dash[:2]) + _along(dash[2], hard.dash)).tolist())


def solve(image: Image) -> int:
    """The label as the dashes have it. ValueError if a path is broken or a disc isn't on one."""
    hard = HARD[len(image.pixels)]
    for path in image.paths:
        for one, following in zip(path, path[1:], strict=False):
            expected = np.array(one[:2]) + _along(one[2], hard.dash + 2 * image.gap)
            turn = abs((following[2] - one[2] + 180) % 360 - 180)
            if tuple(expected) != following[:2] or hard.continuity * turn > 90:
                raise ValueError(f"the path is broken between {one} and {following}")
    starts = [path[0][:2] for path in image.paths[:2]]
    ends = [end(hard, path[-1]) for path in image.paths[:2]]
    if image.discs[0] not in starts or image.discs[1] not in ends:
        raise ValueError(f"discs at {image.discs}; expected one at {starts}, one at {ends}")
    return int(starts.index(image.discs[0]) == ends.index(image.discs[1]))


def _along(degrees: Any, length: float) -> Ints:
    """Whole pixels (dy, dx) [..., 2] to a point at a distance in a direction."""
    angle = np.deg2rad(degrees)
    return np.rint(length * np.stack([np.sin(angle), np.cos(angle)], -1)).astype(int)


# --- growing ----------------------------------------------------------------------------------


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
        points = _along(np.arange(720) / 2, self.hard.dash + self.gap)
        points = np.unique(points, axis=0)
        angle = np.rad2deg(np.arctan2(points[:, 0], points[:, 1]))
        return points, np.rint(angle).astype(int) % 360

    def extend(
        self, rng: np.random.Generator, image: Ints, path: int, last: Ints
    ) -> tuple[NDArray[np.bool_], Ints]:
        """One more dash behind `last` [n, 3] of each image: (found [n], dash [n, 3])."""
        at = last[:, :2] + _along(last[:, 2], self.hard.dash + 2 * self.gap)
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


def _targets(rng: np.random.Generator, hard: Hard, gap: int) -> Ints:
    """A pair of paths for each image of a batch, [8, 2, contour, 3]."""
    found: list[Ints] = []
    n = BATCH * HERD
    while len(found) < BATCH:
        low, high = 2 * hard.seed_distance, hard.size - 2 * hard.seed_distance
        start = rng.integers(low, high, (n, 2))
        away = _along(rng.random(n) * 360, hard.seed_distance)
        starts = np.stack([start, start + away], 1)
        first = np.concatenate([starts, rng.integers(0, 360, (n, 2, 1))], 2)
        field = Field(hard, gap, n, 2)
        rows, grown = field.grow(rng, np.arange(n), first, hard.contour, HERD)
        found += [*grown[np.unique(rows // HERD, return_index=True)[1]]]
    return np.array(found[:BATCH])


def _distractors(
    rng: np.random.Generator, hard: Hard, gap: int, targets: Ints
) -> list[list[Ints]]:
    """For each pair of targets the short paths that found room."""
    n = len(targets)
    field = Field(hard, gap, n, 1)
    for dash in targets.reshape(n, -1, 3).swapaxes(0, 1):
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
    # Far from the border they needn't look further than it.
    places = field.places(at.reshape(-1, 2), around[None]).reshape(len(image), -1)
    taken = field.near[image[:, None], 0, places].reshape(len(image), TRIES, -1).max(2)
    free = taken == 0
    return free.any(1), at[np.arange(len(image)), free.argmax(1)]


# --- files ------------------------------------------------------------------------------------


def write(folder: Path, size: int, made: Iterable[Image]) -> None:
    """Images in LRA's layout. The metadata are lines of text, whatever their names say."""
    hard = HARD[size]
    root = folder / f"pathfinder{size}" / f"curv_contour_length_{hard.contour}"
    for number, image in enumerate(made):
        place, name = number // FOLDER, f"sample_{number % FOLDER}.png"
        for part in (root / "imgs" / str(place), root / "metadata", root / "paths"):
            part.mkdir(parents=True, exist_ok=True)
        (root / "imgs" / str(place) / name).write_bytes(png.write(image.pixels))
        fields = (
            f"imgs/{place}", name, number % FOLDER, image.label, hard.continuity, hard.contour,
            hard.distractor_contour, hard.dash, hard.thickness, image.gap, 1,
        )  # fmt: skip
        mode = "a" if number % FOLDER else "w"
        with (root / "metadata" / f"{place}.npy").open(mode) as file:
            file.write(" ".join(map(str, fields)) + "\n")
        with (root / "paths" / f"{place}.jsonl").open(mode) as file:
            file.write(json.dumps({"paths": image.paths, "discs": image.discs}) + "\n")


def main() -> None:
    """Write images into a folder."""
    parser = argparse.ArgumentParser(prog="python -m tasks.pathfinder", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, choices=sorted(HARD), default=32)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--split", choices=STREAMS, default="test")
    given = parser.parse_args()
    made = images(given.size, given.seed, given.split, given.jobs)
    write(given.out, given.size, bar(made, given.rows, f"Pathfinder {given.size}"))


if __name__ == "__main__":
    main()
