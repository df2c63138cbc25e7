"""Pathfinder images, of LRA's hard variant and easier ones (Linsley et al., 2018, arXiv:1805.08315;
Tay et al., 2021, arXiv:2011.04006): two long dashed paths, short distractors, and two discs. The
label is whether both discs are on the same path.

A path begins near the centre. The pivot of the next dash is half a gap after the end of the last
one, and the dash begins half a gap after the pivot; it ends on a pixel of a circle around the
pivot, sampled from the free ones with weight cos² of the turn. A dash that overlaps another is
sampled again, at most twice. The official code then restarts both paths, up to thousands of times
at 64×64. Here many attempts grow in parallel: one that fails continues as a copy of one that
doesn't, and at the end one of them is taken. Distractors follow where there is room. Dashes, their
rounding and their greys are the official ones. All dashes are recorded; the label follows from them
alone.

    python -m tasks.generators.pathfinder OUT --size 32 --rows 1000 --seed 0 --jobs 2

writes LRA's layout, OUT/pathfinder32/curv_contour_length_14/{imgs,metadata}, and beside it paths/
with the dashes as JSON: (y, x, degrees), where (y, x) is the first pixel of a path's first dash and
the last pixel of the others. Means over images of the official code and of this one, with p-values
of Kolmogorov-Smirnov tests:

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
only, and there are one or two distractors where four or five are requested, because the official
code rejects a direction if for any pixel of the image, mostly one in a corner, all pixels that a
dash would cover are outside. One difference: two targets that end in the same pixel, where a disc
wouldn't identify its path, are generated again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage

from tasks.generators.parallel import bar, chunks
from tasks.generators.pathfinder_draw import HARD, Dash, Point, dashes, draw
from tasks.generators.pathfinder_grow import distractors, targets
from tasks.generators.pixels import Pixels
from tasks.generators.seeds import SPLITS

VERSION = 3
BATCH = 8  # images of one random stream
FOLDER = 1000  # images in one folder of the official layout


@dataclass(frozen=True)
class Image:
    """An image, uint8 [size, size], its paths (the two targets, then the distractors), and the
    pixels (y, x) of its discs."""

    pixels: Pixels
    label: int
    paths: tuple[tuple[Dash, ...], ...]
    discs: tuple[Point, Point]
    gap: int


def images(
    size: int, seed: int, split: str = "test", jobs: int = 1,
    contour: int = HARD[32].contour, short: bool = True,
) -> Iterator[Image]:  # fmt: skip
    """Endless images; those of different seeds and splits are independent. Fewer dashes than the
    hard variant's 14 are easier (LRA has 9 and 6 too), and so are images without `short` paths, the
    distractors."""
    return chunks(partial(batch, contour=contour, short=short), (size, seed, split), jobs)


def batch(
    size: int, seed: int, split: str, number: int,
    contour: int = HARD[32].contour, short: bool = True,
) -> list[Image]:  # fmt: skip
    """Images 8·number to 8·number + 7 of a seed and a split."""
    hard = HARD[size]
    if contour != hard.contour:
        # Distractors are a third as long, as in LRA, and have the hard variant's number.
        hard = replace(hard, contour=contour, distractor_contour=max(1, contour // 3))
    if not short:
        hard = replace(hard, distractors=0)
    rng = np.random.default_rng([VERSION, seed, SPLITS.index(split), size, number])
    gap = int(rng.choice(hard.gap))
    pairs = targets(rng, hard, gap, BATCH)
    batch_images = []
    for pair, others in zip(pairs, distractors(rng, hard, gap, pairs), strict=True):
        paths = tuple(
            tuple((int(y), int(x), int(number)) for y, x, number in path)
            for path in [*pair, *others]
        )
        label, first = (int(one) for one in rng.integers(0, 2, 2))
        last = first if label else 1 - first
        discs = _position(paths[first][0]), _position(paths[last][-1])
        batch_images.append(Image(draw(size, gap, paths, discs), label, paths, discs, gap))
    return batch_images


def _position(dash: Dash) -> Point:
    return dash[:2]


# --- files ------------------------------------------------------------------------------------


def write(folder: Path, size: int, images: Iterable[Image]) -> None:
    """Write images in LRA's layout. The metadata files are text in spite of their suffix .npy."""
    hard = HARD[size]
    root = folder / f"pathfinder{size}" / f"curv_contour_length_{hard.contour}"
    for number, image in enumerate(images):
        place, name = number // FOLDER, f"sample_{number % FOLDER}.png"
        for part in (root / "imgs" / str(place), root / "metadata", root / "paths"):
            part.mkdir(parents=True, exist_ok=True)
        PillowImage.fromarray(image.pixels).save(root / "imgs" / str(place) / name)
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
    parser = argparse.ArgumentParser(
        prog="python -m tasks.generators.pathfinder", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", type=int, choices=sorted(HARD), default=32)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--split", choices=SPLITS, default="test")
    options = parser.parse_args()
    endless = images(options.size, options.seed, options.split, options.jobs)
    write(options.out, options.size, bar(endless, options.rows, f"Pathfinder {options.size}"))


if __name__ == "__main__":
    main()
