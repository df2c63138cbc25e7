"""What a cache of keys and values costs: the bytes that it holds and those that a new token reads,
counted, and its resident memory, measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from bench.models.base import Family
from bench.store.columns import Row
from methods.base import KVCache, SequenceInfo

ResidentBytes = Callable[[], int]


def columns(
    family: Family,
    ids: Tensor,
    sequence: SequenceInfo,
    new_tokens: int,
    resident_bytes: ResidentBytes | None,
) -> Row:
    """The cache's columns after the prompts ids [B, n] and the steps of so many new tokens, tokens
    of the prompt in their order. `resident_bytes` of this process are read with the cache and
    without it; None: they can't be."""
    decoding = family.prefill(ids, sequence)
    if decoding.cache is None:
        return {"kv_reason": "the decoder of an encoder-decoder keeps its keys and values itself"}
    prefilled, read = held_bytes(decoding.cache), decoding.cache.read_bytes
    for step in range(new_tokens - 1):
        decoding.step(ids[:, step % ids.shape[1], None])
    steps, batch = new_tokens - 1, ids.shape[0]
    workload = family.workload(ids.shape[1], batch)
    found: Row = {
        "kv_bytes_held_prefill": prefilled,
        "kv_bytes_held": held_bytes(decoding.cache),
        "kv_bytes_read_per_token": (decoding.cache.read_bytes - read) // (steps * batch),
        "kv_bytes_full": (ids.shape[1] + steps) * workload.bytes_per_entry(),
        "kv_entries": entries(decoding.cache),
    }
    if resident_bytes:
        with_cache = resident_bytes()
        del decoding
        found["kv_bytes_resident"] = with_cache - resident_bytes()
    return found


def held_bytes(cache: KVCache) -> int:
    """Storage of all tensors that a cache holds, each once: a view counts as all that it keeps
    from being freed."""
    storages = [tensor.untyped_storage() for tensor in cache.held()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def entries(cache: KVCache) -> float | None:
    """Entries of each key head, the mean over layers; None for a cache that isn't made of
    `methods.parts.kv_cache.Entries`."""
    sizes = [getattr(layer, "size", None) for layer in getattr(cache, "layers", {}).values()]
    known = [size for size in sizes if size is not None]
    return statistics.fmean(known) if known and len(known) == len(sizes) else None


def allocated_bytes() -> int:
    """On a GPU, by torch's allocator."""
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()
