"""Recall of k-nearest-neighbour searches against their time (IceFormer, arXiv 2405.02842,
Figure 3): the searches of methods.knn, exact top-k, and the libraries that are installed.

Time is building the index and asking all queries, as in the paper. A search that says inner
product finds the keys with the largest attention weights, which is what methods.knn is for.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.children import child, vectors
from methods import indices, knn

Ids = NDArray[np.int64]
CHUNK = 512


class Search(NamedTuple):
    """`build` takes the keys [n, d] and gives what takes the queries [q, d] and gives the ids of
    the k keys found for each [q, k], -1 where there are fewer."""

    name: str
    parameters: dict[str, Any]
    build: Callable[[Tensor], Callable[[Tensor], Any]]


def measure(request: dict[str, Any], report: child.Report) -> dict[str, Any]:
    """`rows`: for each search and its parameters, nanoseconds to build and to ask (medians of
    `repeats`), the spread of their sum, and the recall."""
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    keys, queries, metric = vectors.load(request)
    k, euclid = request["k"], metric == "l2"
    wanted = _truth(keys, queries, k, euclid)
    # |q − k|² ranks keys as the inner product of (q, 1) and (k, −|k|²/2) does.
    asked = torch.cat((queries, torch.ones(len(queries), 1)), 1) if euclid else queries
    held = torch.cat((keys, keys.square().sum(1, keepdim=True) / -2), 1) if euclid else keys
    rows = []
    searches = [*ours(k), *peers(k, metric, request["threads"], request["seed"])]
    with torch.inference_mode():
        for done, search in enumerate(searches):
            report(search.name, done, len(searches))
            own = search.name.split(":")[0] in PEERS
            row = {"search": search.name, "parameters": search.parameters}
            try:
                row |= _timed(
                    search, *((keys, queries) if own else (held, asked)), request["repeats"], wanted
                )
            except Exception as error:  # a library's refusal is a row, not the end of the others
                row |= {"note": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            rows.append(row)
    return {
        "rows": rows,
        "keys": len(keys),
        "queries": len(queries),
        "dims": keys.shape[1],
        "metric": metric,
    }


def _timed(
    search: Search, keys: Tensor, queries: Tensor, repeats: int, wanted: Tensor
) -> dict[str, Any]:
    search.build(keys[:CHUNK])(queries[:8])  # kernels and thread pools are there afterwards
    builds, asks = [], []
    for _ in range(repeats):
        began = perf_counter_ns()
        ask = search.build(keys)
        built = perf_counter_ns()
        ids = ask(queries)
        builds.append(built - began)
        asks.append(perf_counter_ns() - built)
    totals = [b + a for b, a in zip(builds, asks, strict=True)]
    return {
        "build_ns": int(statistics.median(builds)),
        "query_ns": int(statistics.median(asks)),
        "total_ns": int(statistics.median(totals)),
        "total_min_ns": min(totals),
        "total_max_ns": max(totals),
        "recall": recall(torch.as_tensor(np.asarray(ids)), wanted),
    }


def recall(ids: Tensor, wanted: Tensor) -> float:
    """Share of the wanted keys [q, k] among those found [q, k'], duplicates counted once."""
    return float((wanted[:, :, None] == ids[:, None, :]).any(2).float().mean())


def _truth(keys: Tensor, queries: Tensor, k: int, euclid: bool) -> Tensor:
    found = []
    half = keys.double().square().sum(1) / 2
    for part in queries.double().split(CHUNK):
        scores = part @ keys.double().T - (half if euclid else 0)
        found.append(scores.topk(k).indices)
    return torch.cat(found)


def ours(k: int) -> Iterator[Search]:
    """Exact top-k in torch, then each index of methods.indices; DCI over the keys it retrieves."""
    yield Search("topk", {}, lambda keys: lambda queries: _topk(keys, queries, k))
    yield Search("exact", {}, lambda keys: _asking(indices.Exact(), keys, k))
    yield Search("quantized", {}, lambda keys: _asking(indices.Quantized(), keys, k))
    for k0 in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4):

        def build(keys: Tensor, k0: float = k0) -> Callable[[Tensor], Ids]:
            return _asking(indices.Dci(keys.shape[1], 4, 2, k0, None, 0), keys, k)

        yield Search("dci", {"m": 4, "L": 2, "k0": k0}, build)


def _topk(keys: Tensor, queries: Tensor, k: int) -> Ids:
    return torch.cat([(part @ keys.T).topk(k).indices for part in queries.split(CHUNK)]).numpy()


def _asking(index: knn.Index, keys: Tensor, k: int) -> Callable[[Tensor], Ids]:
    """The native kernels build and ask in one: all of their time is then that of the queries."""

    def ask(queries: Tensor) -> Ids:
        seen = torch.full((len(queries),), len(keys))
        one, many = keys[None, None].contiguous(), queries[None, None].contiguous()
        reads = knn.Reads(many, one, one, seen, k, scale=1.0)
        done = index.native(reads)
        if isinstance(done, str):
            index.add(one)
            done = knn.read(reads, index)
        return done[1][0, 0].numpy()

    return ask


def peers(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    """Those libraries that are installed, each over its own parameter of effort."""
    for name, searches in PEERS.items():
        if importlib.util.find_spec(name) is not None:
            yield from searches(k, metric, threads, seed)


def _faiss(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    faiss: Any = importlib.import_module("faiss")

    faiss.omp_set_num_threads(threads)
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT

    def build(recipe: str, **effort: int) -> Callable[[Tensor], Callable[[Tensor], Ids]]:
        def built(keys: Tensor) -> Callable[[Tensor], Ids]:
            clusters = max(1, min(int(len(keys) ** 0.5), len(keys) // 39))
            index = faiss.index_factory(keys.shape[1], recipe.format(clusters), kind)
            index.train(keys.numpy())
            index.add(keys.numpy())
            for parameter, value in effort.items():
                faiss.ParameterSpace().set_index_parameter(index, parameter, value)
            return lambda queries: index.search(queries.numpy(), k)[1]

        return built

    yield Search("faiss:flat", {}, build("Flat"))
    for nprobe in (1, 4, 16, 64):
        yield Search("faiss:ivf", {"nprobe": nprobe}, build("IVF{},Flat", nprobe=nprobe))
    for ef in (16, 64, 256):
        yield Search("faiss:hnsw", {"M": 16, "efSearch": ef}, build("HNSW16,Flat", efSearch=ef))


def _hnswlib(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    hnswlib: Any = importlib.import_module("hnswlib")

    def build(ef: int) -> Callable[[Tensor], Callable[[Tensor], Ids]]:
        def built(keys: Tensor) -> Callable[[Tensor], Ids]:
            index = hnswlib.Index(space="l2" if metric == "l2" else "ip", dim=keys.shape[1])
            index.init_index(len(keys), ef_construction=100, M=16, random_seed=seed)
            index.set_num_threads(threads)
            index.add_items(keys.numpy())
            index.set_ef(max(ef, k))
            return lambda queries: index.knn_query(queries.numpy(), k)[0].astype(np.int64)

        return built

    for ef in (16, 64, 256):
        yield Search("hnswlib", {"M": 16, "ef": ef}, build(ef))


def _annoy(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    annoy: Any = importlib.import_module("annoy")

    def build(trees: int) -> Callable[[Tensor], Callable[[Tensor], Any]]:
        def built(keys: Tensor) -> Callable[[Tensor], Any]:
            index = annoy.AnnoyIndex(keys.shape[1], "euclidean" if metric == "l2" else "dot")
            index.set_seed(seed)
            for i, key in enumerate(keys.numpy()):
                index.add_item(i, key)
            index.build(trees, n_jobs=threads)
            return lambda queries: [
                (index.get_nns_by_vector(one, k) + [-1] * k)[:k] for one in queries.numpy()
            ]

        return built

    for trees in (5, 20, 80):
        yield Search("annoy", {"trees": trees}, build(trees))


PEERS: dict[str, Callable[[int, str, int, int], Iterator[Search]]] = {
    "faiss": _faiss,
    "hnswlib": _hnswlib,
    "annoy": _annoy,
}
