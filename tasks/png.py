"""PNG images of 8 bits a channel, grey or RGB, not interlaced: what CIFAR-10 and LRA publish."""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3}  # colour types grey and RGB
# No benchmark has larger images, and a few bytes can claim to unpack into gigabytes.
LARGEST = 4096


def read(data: bytes) -> NDArray[np.uint8]:
    """Pixels [height, width] of a grey image, [height, width, 3] of an RGB one. ValueError says
    what is wrong or isn't supported."""
    if not data.startswith(SIGNATURE):
        raise ValueError("not a PNG file")
    header, packed = _chunks(data)
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if depth != 8 or colour not in CHANNELS or interlaced:
        raise ValueError(
            f"PNG of {depth} bits, colour type {colour}, interlace {interlaced}; "
            "expected 8 bits, grey (0) or RGB (2), not interlaced"
        )
    if not (0 < width <= LARGEST and 0 < height <= LARGEST):
        raise ValueError(f"PNG of {width}×{height} pixels; expected 1 to {LARGEST} each way")
    channels = CHANNELS[colour]
    size = height * (1 + width * channels)
    unpacker = zlib.decompressobj()
    try:
        lines = unpacker.decompress(packed, size)
    except zlib.error as error:
        raise ValueError(f"PNG with damaged pixels: {error}") from None
    if len(lines) != size:
        raise ValueError(f"PNG with {len(lines)} bytes of pixels; expected {size}")
    pixels = _unfiltered(np.frombuffer(lines, np.uint8).reshape(height, -1), channels)
    return pixels.reshape((height, width) if channels == 1 else (height, width, channels))


def write(pixels: NDArray[np.uint8]) -> bytes:
    """A grey image [height, width] as a PNG file."""
    height, width = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels], 1)
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return SIGNATURE + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def _chunks(data: bytes) -> tuple[bytes, bytes]:
    """The header and the packed pixels."""
    header, packed, at = b"", [], len(SIGNATURE)
    while at + 12 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        check = data[at + 8 + length : at + 12 + length]
        if len(check) != 4 or zlib.crc32(kind + body) != int.from_bytes(check, "big"):
            raise ValueError("PNG cut short or damaged")
        if kind == b"IHDR":
            header = body
        elif kind == b"IDAT":
            packed.append(body)
        elif kind == b"IEND":
            break
        at += 12 + length
    else:
        raise ValueError("PNG cut short")
    if len(header) != 13:
        raise ValueError("PNG without a header")
    return header, b"".join(packed)


def _unfiltered(lines: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Pixels from lines that each begin with their filter's number (PNG specification, 9.2)."""
    height, width = lines.shape[0], lines.shape[1] - 1
    done = np.zeros((height + 1, width + channels), np.uint8)  # a black line above and pixel left
    for row, line in enumerate(lines, start=1):
        kind, values, above = line[0], line[1:], done[row - 1]
        if kind == 0:
            done[row, channels:] = values
        elif kind == 2:
            done[row, channels:] = values + above[channels:]
        elif kind == 1:
            steps = values.reshape(-1, channels).cumsum(0, dtype=np.uint8)
            done[row, channels:] = steps.reshape(-1)
        elif kind in (3, 4):
            now, up = [0] * channels + values.tolist(), above.tolist()
            predict = _average if kind == 3 else _paeth
            for at in range(channels, len(now)):
                left = at - channels
                now[at] = (now[at] + predict(now[left], up[at], up[left])) % 256
            done[row] = now
        else:
            raise ValueError(f"PNG with filter {kind}; expected 0 to 4")
    return done[1:, channels:]


def _average(left: int, up: int, corner: int) -> int:
    return (left + up) // 2


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    far_left, far_up, far_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    if far_left <= far_up and far_left <= far_corner:
        return left
    return up if far_up <= far_corner else corner
