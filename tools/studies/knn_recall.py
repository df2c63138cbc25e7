"""Recall of k-nearest-neighbour searches against their time (IceFormer, arXiv 2405.02842, Figure
3), for building the index and running all queries: the searches of the configuration, exact top-k,
and the installed libraries. With the inner product as metric, the keys found are those with the
largest attention weights."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.execution import worker
from bench.request import plugins
from tools.studies import vectors

Query = Callable[[Tensor], Any]
CHUNK = 512


class Search(NamedTuple):
    """A k-NN search: `build(keys [n, d])` returns a function from queries [q, d] to the ids of
    their k nearest keys [q, k], -1 if there are fewer."""

    name: str
    parameters: dict[str, Any]
    build: Callable[[Tensor], Query]


def measure(request: dict[str, Any], report: worker.Report) -> dict[str, Any]:
    """`rows`: for each search and its parameters, nanoseconds to build and to query (medians of
    `repeats`), the range of their sum, and the recall."""
    torch.set_num_threads(request["threads"])
    torch.manual_seed(request["seed"])
    keys, queries, metric = vectors.load(request)
    k, euclid = request["k"], metric == "l2"
    expected = nearest(keys, queries, k, metric)
    # |q − k|² gives the same ranking of keys as the inner product of (q, 1) and (k, −|k|²/2).
    ip_queries = torch.cat((queries, torch.ones(len(queries), 1)), 1) if euclid else queries
    ip_keys = torch.cat((keys, keys.square().sum(1, keepdim=True) / -2), 1) if euclid else keys
    rows = []
    searches = [*configured(k)]
    for library, its_searches in PEERS.items():
        if importlib.util.find_spec(library) is not None:
            searches += its_searches(k, metric, request["threads"], request["seed"])
    with torch.inference_mode():
        for done, search in enumerate(searches):
            report(search.name, done, len(searches))
            has_metric = search.name.split(":")[0] in PEERS
            data = (keys, queries) if has_metric else (ip_keys, ip_queries)
            row = {"search": search.name, "parameters": search.parameters}
            try:
                row |= _timed(search, *data, request["repeats"], expected)
            except Exception as error:  # a library that fails becomes a row; the others still run
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
    search: Search, keys: Tensor, queries: Tensor, repeats: int, expected: Tensor
) -> dict[str, Any]:
    search.build(keys[:CHUNK])(queries[:8])  # warm-up: compiles kernels, starts thread pools
    builds, query_times = [], []
    for _ in range(repeats):
        started = perf_counter_ns()
        query = search.build(keys)
        built = perf_counter_ns()
        ids = query(queries)
        builds.append(built - started)
        query_times.append(perf_counter_ns() - built)
    totals = [build + query for build, query in zip(builds, query_times, strict=True)]
    return {
        "build_ns": int(statistics.median(builds)),
        "query_ns": int(statistics.median(query_times)),
        "total_ns": int(statistics.median(totals)),
        "total_min_ns": min(totals),
        "total_max_ns": max(totals),
        "recall": recall(torch.as_tensor(np.asarray(ids)), expected),
    }


def recall(ids: Tensor, expected: Tensor) -> float:
    """Share of the expected keys [q, k] among ids [q, k'], duplicates counted once."""
    return float((expected[:, :, None] == ids[:, None, :]).any(2).float().mean())


def nearest(keys: Tensor, queries: Tensor, k: int, metric: str) -> Tensor:
    """The ids [q, k] of the k nearest keys, by brute force in float64."""
    ids = []
    half = keys.double().square().sum(1) / 2
    for part in queries.double().split(CHUNK):
        scores = part @ keys.double().T - (half if metric == "l2" else 0)
        ids.append(scores.topk(k).indices)
    return torch.cat(ids)


def configured(k: int) -> Iterator[Search]:
    """Exact top-k in torch, then each search of the configuration group `search`, plugins
    included: a YAML's target takes the keys [n, d], k and one entry of its `parameters`."""

    def topk(keys: Tensor) -> Query:
        return lambda queries: torch.cat([(q @ keys.T).topk(k)[1] for q in queries.split(CHUNK)])

    yield Search("topk", {}, topk)
    for name in plugins.available("search"):
        conf = plugins.conf("search", name)
        target = plugins.load(conf["target"])
        for parameters in conf.get("parameters", [{}]):
            yield Search(name, parameters, partial(target, k=k, **parameters))


def _faiss(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    faiss: Any = importlib.import_module("faiss")

    faiss.omp_set_num_threads(threads)
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT

    def build(keys: Tensor, recipe: str, **effort: int) -> Query:
        clusters = max(1, min(int(len(keys) ** 0.5), len(keys) // 39))
        codes = keys.shape[1] // (2 if keys.shape[1] % 2 == 0 else 1)
        index = faiss.index_factory(keys.shape[1], recipe.format(clusters, codes), kind)
        index.train(keys.numpy())
        index.add(keys.numpy())
        for parameter, value in effort.items():
            faiss.ParameterSpace().set_index_parameter(index, parameter, value)
        return lambda queries: index.search(queries.numpy(), k)[1]

    yield Search("faiss:flat", {}, partial(build, recipe="Flat"))
    for nprobe in (1, 4, 16, 64):
        ivf = partial(build, recipe="IVF{},Flat", nprobe=nprobe)
        yield Search("faiss:ivf", {"nprobe": nprobe}, ivf)
    # 4-bit product quantisation with look-ups in registers, two dimensions a code.
    for factor in (2, 8, 32):
        fast = partial(build, recipe="PQ{1}x4fs,RFlat", k_factor_rf=factor)
        yield Search("faiss:fastscan", {"k_factor": factor}, fast)
    for ef in (16, 64, 256):
        hnsw = partial(build, recipe="HNSW16,Flat", efSearch=ef)
        yield Search("faiss:hnsw", {"M": 16, "efSearch": ef}, hnsw)


def _hnswlib(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    hnswlib: Any = importlib.import_module("hnswlib")

    def build(keys: Tensor, ef: int) -> Query:
        index = hnswlib.Index(space="l2" if metric == "l2" else "ip", dim=keys.shape[1])
        index.init_index(len(keys), ef_construction=100, M=16, random_seed=seed)
        index.set_num_threads(threads)
        index.add_items(keys.numpy())
        index.set_ef(max(ef, k))
        return lambda queries: index.knn_query(queries.numpy(), k)[0].astype(np.int64)

    for ef in (16, 64, 256):
        yield Search("hnswlib", {"M": 16, "ef": ef}, partial(build, ef=ef))


def _annoy(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    annoy: Any = importlib.import_module("annoy")

    def build(keys: Tensor, trees: int) -> Query:
        index = annoy.AnnoyIndex(keys.shape[1], "euclidean" if metric == "l2" else "dot")
        index.set_seed(seed)
        for i, key in enumerate(keys.numpy()):
            index.add_item(i, key)
        index.build(trees, n_jobs=threads)
        return lambda queries: [
            (index.get_nns_by_vector(one, k) + [-1] * k)[:k] for one in queries.numpy()
        ]

    for trees in (5, 20, 80):
        yield Search("annoy", {"trees": trees}, partial(build, trees=trees))


def _scann(k: int, metric: str, threads: int, seed: int) -> Iterator[Search]:
    ops: Any = importlib.import_module("scann").scann_ops_pybind
    distance = "squared_l2" if metric == "l2" else "dot_product"

    def build(keys: Tensor, leaves: int, reorder: int) -> Query:
        clusters = max(1, int(len(keys) ** 0.5))
        builder = ops.builder(keys.numpy(), k, distance).set_n_training_threads(threads)
        builder = builder.tree(clusters, min(leaves, clusters), training_sample_size=len(keys))
        searcher = builder.score_ah(2).reorder(min(reorder * k, len(keys))).build()
        search = searcher.search_batched if threads == 1 else searcher.search_batched_parallel
        return lambda queries: search(queries.numpy())[0].astype(np.int64)

    for leaves, reorder in ((4, 2), (16, 4), (64, 8)):
        searched = partial(build, leaves=leaves, reorder=reorder)
        yield Search("scann", {"leaves": leaves, "reorder": reorder}, searched)


PEERS = {"faiss": _faiss, "hnswlib": _hnswlib, "annoy": _annoy, "scann": _scann}
