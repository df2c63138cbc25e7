"""Keys and queries for k-NN searches: drawn at random, or read from a file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.errors import RequestError

CLUSTERS = 64
IMAGES = ("train-images-idx3-ubyte", "t10k-images-idx3-ubyte")
ACCEPTED = (
    "a .npz with arrays 'keys' and 'queries', or a folder with Fashion-MNIST's files "
    f"({IMAGES[0]}.gz, {IMAGES[1]}.gz)"
)


def load(request: dict[str, Any]) -> tuple[Tensor, Tensor, str]:
    """Keys [n, d] and queries [q, d] in float32, and the metric: ip (inner product) or l2.

    Raises RequestError for unreadable data, or for fewer than k keys."""
    if request["data"] is None:
        keys, queries = drawn(request["keys"], request["queries"], request["dims"], request["seed"])
        metric = "ip"
    else:
        keys, queries, metric = _read(Path(request["data"]))
        keys, queries = keys[: request["keys"]], queries[: request["queries"]]
    if keys.ndim != 2 or queries.ndim != 2 or keys.shape[1] != queries.shape[1]:
        raise RequestError(
            f"keys {tuple(keys.shape)} and queries {tuple(queries.shape)} must be two tables of "
            "equally long vectors"
        )
    if len(keys) < request["k"]:
        raise RequestError(f"k={request['k']} of {len(keys)} keys: there are too few keys")
    return keys, queries, request["metric"] or metric


def drawn(n: int, q: int, d: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys [n, d] and queries [q, d] around the same 64 Gaussian centres."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLUSTERS, d, generator=generator)

    def sample(count: int) -> Tensor:
        which = torch.randint(CLUSTERS, (count,), generator=generator)
        return centres[which] + 0.7 * torch.randn(count, d, generator=generator)

    return sample(n), sample(q)


def _read(path: Path) -> tuple[Tensor, Tensor, str]:
    try:
        if path.is_dir():
            keys, queries = (_images(path, name) for name in IMAGES)
            return keys, queries, "l2"
        with np.load(path, allow_pickle=False) as arrays:
            keys, queries = (torch.from_numpy(arrays[name]).float() for name in ("keys", "queries"))
        return keys, queries, "ip"
    except (OSError, ValueError, KeyError) as error:
        raise RequestError(f"can't read {path}: {error}; accepted: {ACCEPTED}") from error


def _images(folder: Path, name: str) -> Tensor:
    """Images as vectors of 0 … 255, from a file in the idx format."""
    compressed, plain = folder / f"{name}.gz", folder / name
    data = gzip.decompress(compressed.read_bytes()) if compressed.exists() else plain.read_bytes()
    count, height, width = np.frombuffer(data, ">i4", 3, offset=4)
    pixels = np.frombuffer(data, np.uint8, offset=16).reshape(count, height * width)
    return torch.from_numpy(pixels.astype(np.float32))
