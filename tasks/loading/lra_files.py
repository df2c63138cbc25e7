"""LRA's rows in the benchmark's files, as released or as on the hub."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from tasks.base import DataError
from tasks.generators.pixels import enlarge
from tasks.loading import records, sources

# No benchmark has larger images, and a small file can claim a size of gigabytes.
MAX_SIDE = 4096
# Pillow's exceptions; SyntaxError is a wrong checksum.
BROKEN_PNG = (OSError, SyntaxError, EOFError, struct.error, zlib.error)


@dataclass(frozen=True)
class FileRow:
    """One row of a file: its location for error messages, its label and its content. An image's
    content is a function, so that only the rows in use are decoded."""

    where: str
    label: int
    content: str | Callable[[], str]
    second: str | None = None

    @property
    def document(self) -> str:
        return self.content if isinstance(self.content, str) else self.content()


def parse_label(value: Any, labels: int, where: str) -> int:
    """A class number, spelled 3, "3" or "3.0" in the files."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if number not in range(labels):
        raise DataError(f"{where}: label {value!r}; expected 0 to {labels - 1}")
    return int(number)


def _non_blank(text: str, column: str, where: str) -> str:
    if not text.strip():
        raise DataError(f"{where}: column '{column}' is empty")
    return text


# --- tables -----------------------------------------------------------------------------------


def _tsv(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(location, values) of each line of a table, plain or .gz, without quoting."""
    for where, raw in records.lines(path):
        try:
            yield where, raw.decode().rstrip("\r\n").split("\t")
        except UnicodeDecodeError as error:
            raise DataError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from None


def listops(paths: list[Path], labels: int, size: int) -> Iterator[FileRow]:
    """Columns Source and Target, named in the first line."""
    for path in paths:
        lines = _tsv(path)
        where, columns = next(lines, (f"{path} line 1", [""]))
        for name in ("Source", "Target"):
            if name not in columns:
                raise DataError(f"{where}: no column '{name}'; found {', '.join(columns)}")
        source, target = columns.index("Source"), columns.index("Target")
        for where, values in lines:
            if len(values) != len(columns):
                raise DataError(f"{where}: found {len(values)} columns, expected {len(columns)}")
            label = parse_label(values[target], labels, where)
            yield FileRow(where, label, _non_blank(values[source], "Source", where))


def retrieval(paths: list[Path], labels: int, size: int) -> Iterator[FileRow]:
    """Columns label, id, id, text, text, without a header."""
    for path in paths:
        for where, values in _tsv(path):
            if len(values) != 5:
                raise DataError(
                    f"{where}: found {len(values)} columns, expected 5: label, id1, id2, text1, "
                    "text2"
                )
            first, second = (_non_blank(values[i], f"text{i - 2}", where) for i in (3, 4))
            yield FileRow(where, parse_label(values[0], labels, where), first, second)


def text(paths: list[Path], labels: int, size: int) -> Iterator[FileRow]:
    """The hub's IMDb: columns text and label."""
    for path in paths:
        for where, record in records.read(path):
            document = _non_blank(records.text(record, "text", where), "text", where)
            label = parse_label(records.column(record, "label", where), labels, where)
            yield FileRow(where, label, document)


# --- images -----------------------------------------------------------------------------------


def grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """tf.image.rgb_to_grayscale of uint8: weights in float32, fractions truncated."""
    if pixels.ndim == 2:
        return pixels
    scaled = pixels.astype(np.float32) / np.float32(255)
    weighted = scaled @ np.array([0.2989, 0.5870, 0.1140], np.float32)
    return (weighted * np.float32(255.5)).astype(np.uint8)


def read_png(data: bytes) -> NDArray[np.uint8]:
    """Pixels of a PNG file, [height, width] grey or [height, width, 3] RGB. Raises ValueError if it
    is broken or of another kind."""
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            image.verify()  # the checksums, which decoding ignores
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.mode not in ("L", "RGB"):
                raise ValueError(f"PNG of mode {image.mode}; expected 8 bits, grey (L) or RGB")
            if max(image.size) > MAX_SIDE:
                width, height = image.size
                raise ValueError(
                    f"PNG of {width}×{height} pixels; expected 1 to {MAX_SIDE} each way"
                )
            return np.array(image)
    except UnidentifiedImageError:
        raise ValueError("not a PNG file") from None
    except (*BROKEN_PNG, Image.DecompressionBombError) as error:
        raise ValueError(f"PNG cut short or damaged: {sources.first_line(error)}") from None


def decode_image(data: bytes, size: int, where: str, resize: bool = False) -> str:
    """The document of a PNG file: one character per pixel, row by row. `resize` enlarges images of
    32×32 to `size`."""
    try:
        pixels = grey(read_png(data))
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    if resize and pixels.shape == (32, 32) and size != 32:
        pixels = enlarge(pixels, size)
    if pixels.shape != (size, size):
        height, width = pixels.shape
        raise DataError(f"{where}: image of {width}×{height} pixels, expected {size}×{size}")
    return pixels.tobytes().decode("latin-1")


def image(paths: list[Path], labels: int, size: int) -> Iterator[FileRow]:
    """The hub's CIFAR-10: columns img (bytes of a PNG file) and label."""
    for path in paths:
        for where, record in records.read(path):
            value = records.column(record, "img", where)
            data = value.get("bytes") if isinstance(value, dict) else value
            if not isinstance(data, bytes):
                raise DataError(f"{where}: column 'img' has no bytes")
            label = parse_label(records.column(record, "label", where), labels, where)
            yield FileRow(where, label, partial(decode_image, data, size, where, resize=True))


# --- Pathfinder -------------------------------------------------------------------------------


def pathfinder(paths: list[Path], labels: int, size: int) -> Iterator[FileRow]:
    """LRA's folder with imgs and metadata, or a zip of it. Empty images are skipped, as the
    official reader does."""
    root: Path | zipfile.Path = paths[0].parent.parent
    metadata: list[Path | zipfile.Path] = [*paths]
    if paths[0].suffix == ".zip":
        root = _zip_root(paths[0], f"pathfinder{size}/curv_contour_length_14/")
        metadata = [path for path in (root / "metadata").iterdir() if path.name.endswith(".npy")]
    for path in sorted(metadata, key=lambda path: _natural(path.name)):
        lines = _bytes(path).decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines, start=1):
            where = f"{path} line {number}"
            values = line.split()
            if not values:
                continue
            if len(values) < 4:
                raise DataError(f"{where}: found {len(values)} fields, expected at least 4")
            name = PurePosixPath(values[0], values[1])
            if name.is_absolute() or ".." in name.parts:
                raise DataError(f"{where}: '{name}' climbs out of the folder")
            label = parse_label(values[3], labels, where)
            image = root / str(name)
            if not image.is_file():
                raise DataError(f"{where}: no file {image}")
            if _n_bytes(image):
                yield FileRow(where, label, partial(_decode_file, image, size, where))


def _decode_file(path: Path | zipfile.Path, size: int, where: str) -> str:
    return decode_image(_bytes(path), size, where)


def _bytes(path: Path | zipfile.Path) -> bytes:
    try:
        return path.read_bytes()
    except records.BROKEN_ARCHIVE as error:
        raise DataError(f"{path} is damaged: {sources.first_line(error)}") from None


def _n_bytes(path: Path | zipfile.Path) -> int:
    return path.stat().st_size if isinstance(path, Path) else path.root.getinfo(path.at).file_size


def _natural(name: str) -> list[Any]:
    """A sort key that orders numbers in names by value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _zip_root(path: Path, prefix: str) -> zipfile.Path:
    """The folder `prefix` within a zip; in the release it is inside one more folder."""
    archive = records.open_zip(path)
    pattern = re.compile(rf"(^|.*/){prefix}(?=metadata/[^/]+\.npy$)")
    for name in archive.namelist():
        if match := pattern.match(name):
            return zipfile.Path(archive, match[0])
    names = ", ".join(sorted(archive.namelist())[:4]) or "nothing"
    raise DataError(f"{path} has no member '{prefix}metadata/*.npy'; it holds {names}")


READERS = {
    "listops": listops, "text": text, "retrieval": retrieval,
    "image": image, "pathfinder": pathfinder,
}  # fmt: skip


def sha256(paths: list[Path], kind: str) -> str:
    """The sha256 of all files; for a Pathfinder folder, of the metadata and all images."""
    if kind == "pathfinder" and paths[0].suffix != ".zip":
        images = (paths[0].parent.parent / "imgs").rglob("*.png")
        paths = [*paths, *sorted(images, key=lambda path: _natural(str(path)))]
    return sources.sha256_of(paths)
