"""LRA's rows in the files of the benchmark, as released or as the hub has them."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks import png, records, sources
from tasks.base import DataError


@dataclass(frozen=True)
class Found:
    """One row as it lies in a file: its place for messages, label and content. An image's content
    is a function, so that only those that are used are unpacked."""

    where: str
    label: int
    content: str | Callable[[], str]
    second: str | None = None

    @property
    def document(self) -> str:
        return self.content if isinstance(self.content, str) else self.content()


def label(given: Any, labels: int, where: str) -> int:
    """A class number, which files spell 3, "3" or "3.0"."""
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = -1.0
    if number not in range(labels):
        raise DataError(f"{where}: label {given!r}; expected 0 to {labels - 1}")
    return int(number)


def _filled(text: str, column: str, where: str) -> str:
    if not text.strip():
        raise DataError(f"{where}: column '{column}' is empty")
    return text


# --- tables -----------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """(where, line) of a text file, plain or .gz; a line ends at \\n only."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                where = f"{path} line {number}"
                try:
                    yield where, raw.decode().rstrip("\r\n")
                except UnicodeDecodeError as error:
                    raise DataError(
                        f"{where}: not UTF-8: {error.reason} at byte {error.start}"
                    ) from None
    except sources.BROKEN_ZIP as error:
        why = sources.first_line(error)
        raise DataError(f"{path} is cut short or damaged after line {number}: {why}") from None


def listops(paths: list[Path], labels: int, size: int) -> Iterator[Found]:
    """Columns Source and Target, with a line that names them."""
    for path in paths:
        lines = _lines(path)
        where, head = next(lines, (f"{path} line 1", ""))
        columns = head.split("\t")
        for name in ("Source", "Target"):
            if name not in columns:
                raise DataError(f"{where}: no column '{name}'; found {', '.join(columns)}")
        source, target = columns.index("Source"), columns.index("Target")
        for where, line in lines:
            values = line.split("\t")
            if len(values) != len(columns):
                raise DataError(f"{where}: found {len(values)} columns, expected {len(columns)}")
            yield Found(
                where,
                label(values[target], labels, where),
                _filled(values[source], "Source", where),
            )


def retrieval(paths: list[Path], labels: int, size: int) -> Iterator[Found]:
    """Columns label, id, id, text, text without a line that names them, and without quoting."""
    for path in paths:
        for where, line in _lines(path):
            values = line.split("\t")
            if len(values) != 5:
                raise DataError(
                    f"{where}: found {len(values)} columns, expected 5: label, id1, id2, text1, "
                    "text2"
                )
            first, second = _filled(values[3], "text1", where), _filled(values[4], "text2", where)
            yield Found(where, label(values[0], labels, where), first, second)


def _column(record: dict[str, Any], name: str, where: str) -> Any:
    if name not in record:
        raise DataError(f"{where}: no column '{name}'; found {', '.join(record) or 'none'}")
    return record[name]


def text(paths: list[Path], labels: int, size: int) -> Iterator[Found]:
    """The hub's IMDb: columns text and label."""
    for path in paths:
        for where, record in records.read(path):
            found = _filled(sources.text(record, "text", where), "text", where)
            yield Found(where, label(_column(record, "label", where), labels, where), found)


# --- images -----------------------------------------------------------------------------------


def grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """tf.image.rgb_to_grayscale of uint8: weights in float32, and the fraction cut off."""
    if pixels.ndim == 2:
        return pixels
    scaled = pixels.astype(np.float32) / np.float32(255)
    weighed = scaled @ np.array([0.2989, 0.5870, 0.1140], np.float32)
    return (weighed * np.float32(255.5)).astype(np.uint8)


def enlarged(pixels: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Bilinear, pixel centres aligned (as tf.image.resize), rounded: [h, w] → [size, size]."""

    def weights(old: int) -> NDArray[np.float64]:
        at = ((np.arange(size) + 0.5) * old / size - 0.5).clip(0, old - 1)
        return (1 - np.abs(at[:, None] - np.arange(old))).clip(0)

    height, width = pixels.shape
    return np.rint(weights(height) @ pixels @ weights(width).T).astype(np.uint8)


def unpacked(data: bytes, size: int, where: str, enlarge: bool = False) -> str:
    """The document of a PNG file: one character a pixel, row by row."""
    try:
        pixels = grey(png.read(data))
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    if enlarge and pixels.shape == (32, 32) and size != 32:
        pixels = enlarged(pixels, size)
    if pixels.shape != (size, size):
        height, width = pixels.shape
        raise DataError(f"{where}: image of {width}×{height} pixels, expected {size}×{size}")
    return pixels.tobytes().decode("latin-1")


def image(paths: list[Path], labels: int, size: int) -> Iterator[Found]:
    """The hub's CIFAR-10: columns img (bytes of a PNG file) and label."""
    for path in paths:
        for where, record in records.read(path):
            held = _column(record, "img", where)
            data = held.get("bytes") if isinstance(held, dict) else held
            if not isinstance(data, bytes):
                raise DataError(f"{where}: column 'img' has no bytes")
            yield Found(
                where,
                label(_column(record, "label", where), labels, where),
                partial(unpacked, data, size, where, enlarge=True),
            )


def pathfinder(paths: list[Path], labels: int, size: int) -> Iterator[Found]:
    """LRA's folder of imgs and metadata, or a zip of it. Empty images are left out, as the
    official reader does."""
    files = _zipped(paths[0], size) if paths[0].suffix == ".zip" else _folder(paths)
    for name in sorted(files.metadata, key=_natural):
        lines = files.read(name).decode("utf-8", "replace").splitlines()
        for number, line in enumerate(lines, start=1):
            where = f"{files.where}{name} line {number}"
            values = line.split()
            if not values:
                continue
            if len(values) < 4:
                raise DataError(f"{where}: found {len(values)} fields, expected at least 4")
            path = PurePosixPath(values[0], values[1])
            if path.is_absolute() or ".." in path.parts:
                raise DataError(f"{where}: '{path}' climbs out of the folder")
            number_ = label(values[3], labels, where)
            member = f"{files.prefix}{path}"
            if files.size(member, where) == 0:
                continue
            yield Found(
                where,
                number_,
                partial(_read, files, member, size, where),
            )


def _read(files: _Files, member: str, size: int, where: str) -> str:
    return unpacked(files.read(member), size, where)


@dataclass(frozen=True)
class _Files:
    where: str
    prefix: str
    metadata: list[str]
    read: Callable[[str], bytes]
    size: Callable[[str, str], int]


def _natural(name: str) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _folder(paths: list[Path]) -> _Files:
    root = paths[0].parent.parent

    def size(name: str, where: str) -> int:
        try:
            return (root / name).stat().st_size
        except OSError:
            raise DataError(f"{where}: no file {root / name}") from None

    names = [f"metadata/{path.name}" for path in paths]
    return _Files(f"{root}/", "", names, lambda name: (root / name).read_bytes(), size)


def _zipped(path: Path, size: int) -> _Files:
    prefix = f"pathfinder{size}/curv_contour_length_14/"
    opened = sources.open_zip(path)
    held = {info.filename: info.file_size for info in opened.infolist()}
    found = [
        name for name in held if re.search(rf"(^|/){prefix}metadata/[^/]+\.npy$", name)
    ]  # the release has one more folder around
    if not found:
        first = ", ".join(sorted(held)[:4]) or "nothing"
        raise DataError(f"{path} has no member '{prefix}metadata/*.npy'; it holds {first}")
    before = found[0][: found[0].rindex("metadata/")]

    def weigh(name: str, where: str) -> int:
        if name not in held:
            raise DataError(f"{where}: {path} has no member '{name}'")
        return held[name]

    def read(name: str) -> bytes:
        try:
            return opened.read(name)
        except sources.BROKEN_ZIP as error:
            why = sources.first_line(error)
            raise DataError(f"{path}: {name} is damaged: {why}") from None

    return _Files(f"{path}: ", before, found, read, weigh)


READERS = {
    "listops": listops, "text": text, "retrieval": retrieval,
    "image": image, "pathfinder": pathfinder,
}  # fmt: skip


def sha256(paths: list[Path], kind: str) -> str:
    """Of all files; of a Pathfinder folder the metadata, and names and contents of all images."""
    if kind == "pathfinder" and paths[0].suffix != ".zip":
        images = (paths[0].parent.parent / "imgs").rglob("*.png")
        paths = [*paths, *sorted(images, key=lambda path: _natural(str(path)))]
    return sources.sha256_of(paths)
