"""Pathfinder images, of LRA's hard kind and easier ones (Linsley et al., 2018, arXiv:1805.08315;
Tay et al., 2021, arXiv:2011.04006): two long dashed paths, short distractors, and two discs. The
label says whether both discs lie on one path.

A path begins near the centre. Each next dash begins half a gap behind a pivot, half a gap behind
the last one's end; it ends on a pixel of a circle around the pivot, drawn with weight cos² of the
turn among those that are free. A dash that lies on a drawn one is drawn again, twice at most. The
official code then starts both paths anew, up to thousands of times at 64×64. Here a herd of
attempts grows side by side: one that fails goes on as a copy of one that doesn't, and at the end
one of the herd is taken. Distractors follow, where there is room. Dashes, their roundings and their
greys are the official ones. All dashes are kept, and `solve` reads the label from them alone.

    python -m tasks.pathfinder OUT --size 32 --rows 1000 --seed 0 --jobs 2

writes LRA's layout, OUT/pathfinder32/curv_contour_length_14/{imgs,metadata}, and beside it paths/
with the dashes as json: (y, x, degrees), the first of a path from its first pixel, the others by
their last one. Means over images of the official code beside images of this one, with p of
Kolmogorov-Smirnov's test:

                                   32×32 (100, 1000)       64×64 (20, 200)
    grey level                     20.25  20.24  0.88      12.99  13.11  0.98
    pixels above 0, %              34.2   33.8   0.28      25.0   25.5   0.70
    pixels of 1 to 5, %            17.3   16.9   0.04      12.6   12.8   0.66
    pixels above 30, %             14.8   14.8   0.70      10.7   10.9   0.81
    pixels of 200 or more, %       1.59   1.67   0.07      0.94   0.94   1.00
    grey in the outer ring, %      31.4   31.5   0.92      47.3   43.3   0.13
    grey in the centre, %          13.6   12.8   0.54      13.0   12.4   0.70
    deviation of grey              51.0   51.1   0.56      40.8   40.8   0.87
    correlation of neighbours, →   0.471  0.466  0.26      0.621  0.602  0.14
                               ↓   0.426  0.428  0.59      0.646  0.651  0.96

The ring is an eighth of the side wide, and the centre a quarter. A path can begin in few directions
only, and there are one or two distractors where four or five are asked for, because the official
code takes a direction for full when at some pixel of the image, mostly in a corner, all that a dash
would cover lies outside. What differs: two targets that end in one pixel, where a disc would say
nothing, are drawn again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks import png
from tasks.generate import bar, chunks
from tasks.pathfinder_draw import HARD, SEEDS, Dash, Point, dashes, draw
from tasks.pathfinder_grow import distractors, targets

VERSION = 3
STREAMS = ("train", "validation", "test")
BATCH = 8  # images that share one random stream
FOLDER = 1000  # images in one folder of the official layout


@dataclass(frozen=True)
class Image:
    """`pixels` uint8 [size, size]; `paths` are the two targets, then the distractors; `discs` the
    pixels (y, x) where the discs are."""

    pixels: NDArray[np.uint8]
    label: int
    paths: tuple[tuple[Dash, ...], ...]
    discs: tuple[Point, Point]
    gap: int


def images(
    size: int,
    seed: int,
    split: str = "test",
    jobs: int = 1,
    contour: int = HARD[32].contour,
    short: bool = True,
) -> Iterator[Image]:
    """Images without end; those of other seeds and splits are drawn independently. Paths of fewer
    dashes than the hard kind's 14 are easier: LRA has 9 and 6 too; so are images that aren't to
    have `short` paths, distractors, beside the two."""
    return chunks(partial(batch, contour=contour, short=short), (size, seed, split), jobs)


def batch(
    size: int,
    seed: int,
    split: str,
    number: int,
    contour: int = HARD[32].contour,
    short: bool = True,
) -> list[Image]:
    """Images 8·number to 8·number + 7 of a seed and a split."""
    hard = HARD[size]
    if contour != hard.contour:
        # Distractors are a third as long, as in LRA, and as many as in the hard kind.
        hard = replace(hard, contour=contour, distractor_contour=max(1, contour // 3))
    if not short:
        hard = replace(hard, distractors=0)
    rng = np.random.default_rng([VERSION, seed, STREAMS.index(split), size, number])
    gap = int(rng.choice(hard.gap))
    pairs = targets(rng, hard, gap, BATCH)
    made = []
    for pair, others in zip(pairs, distractors(rng, hard, gap, pairs), strict=True):
        paths = tuple(
            tuple((int(y), int(x), int(number)) for y, x, number in path)
            for path in [*pair, *others]
        )
        label, first = (int(one) for one in rng.integers(0, 2, 2))
        last = first if label else 1 - first
        discs = _at(paths[first][0]), _at(paths[last][-1])
        made.append(Image(draw(size, gap, paths, discs), label, paths, discs, gap))
    return made


def _at(dash: Dash) -> Point:
    return dash[:2]


def solve(image: Image) -> int:
    """The label as the dashes have it. ValueError if a path is broken or a disc isn't on one."""
    hard = HARD[len(image.pixels)]
    known = dashes(hard.size, image.gap)
    for path in image.paths:
        for (y, x, one), (head_y, head_x, following) in pairwise(path):
            pivot = (y, x) + known.pivot[one] + known.step[one]
            turn = known.angle[following] - known.angle[one]
            turn = abs((turn + np.pi) % (2 * np.pi) - np.pi)
            meets = following >= SEEDS and [*(pivot - known.pivot[following])] == [head_y, head_x]
            if not meets or hard.continuity * turn >= np.pi / 2:
                raise ValueError(f"the path is broken between {y, x} and {head_y, head_x}")
    starts = [path[0][:2] for path in image.paths[:2]]
    ends = [path[-1][:2] for path in image.paths[:2]]
    if image.discs[0] not in starts or image.discs[1] not in ends:
        raise ValueError(f"discs at {image.discs}; expected one at {starts}, one at {ends}")
    return int(starts.index(image.discs[0]) == ends.index(image.discs[1]))


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
            angle = np.rad2deg(dashes(size, image.gap).angle).round(2).tolist()
            paths = [[(y, x, angle[number]) for y, x, number in path] for path in image.paths]
            file.write(json.dumps({"paths": paths, "discs": image.discs}) + "\n")


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
