"""Synthetic rows with the shape of real ones, for testing the figures."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from bench.rows.store import Store
from tests.made import row

# method → (quality lost, ms a token, ms a token², MiB a token, MiB a token²)
COSTS = {
    "vanilla": (0.0, 0.03, 1.2e-5, 0.004, 0.0),
    "vanilla_eager": (0.0, 0.03, 4e-5, 0.004, 6e-6),
    "bigbird": (4.0, 0.055, 1e-6, 0.006, 0.0),
    "vcc": (7.0, 0.045, 3e-7, 0.0052, 0.0),
    "iceformer": (0.6, 0.06, 2.5e-6, 0.0048, 0.0),
    "fourier": (20.0, 0.016, 2e-6, 0.0035, 0.0),
}
PARAMS: dict[str, dict[str, Any]] = {
    "vcc": {"k": 16, "h": 90},
    "iceformer": {"k": 20, "search": "quantized"},
    "fourier": {"r": 0.2, "layers": 0},
}
MIB = 1 << 20
LRA = {"benchmark": "lra", "weights_kind": "from-scratch", "metric": "accuracy"}
LINES = {"task": "longeval_lines", "benchmark": "longeval", "metric": "accuracy"}
NO_BASE = dict.fromkeys(
    ("lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi", "lat_base_median_ns", "mem_ratio",
     "base_rss_peak_delta_bytes")
) | {"baseline_status": "oom_host"}  # fmt: skip
"""Columns of a row whose vanilla did not fit."""

STUDIES = {
    "recall": (
        "host_id,cpu_model,threads,data,metric,keys,queries,dims,k,search,parameters,total_ns,"
        "total_min_ns,total_max_ns,recall\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,topk,{},1000,900,1100,1.0\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,dci,\"{'k0': 1}\",500,400,600,0.5\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,zzz,{},700,600,800,0.8\n"
        "h,EPYC,1,clusters,ip,100,10,8,5,broken,{},,,,\n"
    ),
    "spectrum": (
        "model,weights_kind,weights_sha256,task,dataset_sha256,length,rows,tokens_mean,layer,"
        "frequency,power\n"
        + "".join(
            f"t5,embedded,e,narrativeqa,d,512,4,500,{layer},{0.125 + i / 4},{1.5 - i * layer / 4}\n"
            for layer in range(3)
            for i in range(2)
        )
    ),
}


def measured(
    method: str, length: int, pairs: int = 26, seed: int = 0, params: dict[str, Any] | None = None,
    costs: Sequence[float] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """An ok row with quality, latency and memory of a method, some noise in all of them."""
    loss, linear, square, memory, memory2 = costs or COSTS[method]
    # crc, not hash(): the same rows in every process.
    import zlib

    random = np.random.default_rng([zlib.crc32(f"{method}{params}".encode()), length, seed])
    base = COSTS["vanilla"]
    ms = 12 + linear * length + square * length**2
    base_ms = 12 + base[1] * length + base[2] * length**2
    noise = np.exp(random.normal(0, 0.01))
    width = 0.015
    n = 64
    value = min(100.0, max(0.0, 96 - loss - length / 4000 + random.normal(0, 0.8)))
    base_value = 96 - length / 4000
    half = 1.96 * np.sqrt(max(value, 1) * max(100 - value, 1) / n)
    peak = round((6 + memory * length + memory2 * length**2) * MIB)
    base_peak = round((6 + base[3] * length + base[4] * length**2) * MIB)
    params = params or PARAMS.get(method, {})
    columns = row(
        method=method, length=length, seed=seed, method_params=json.dumps(params),
        n_samples_planned=n, n_scored=n, metric="f1", higher_is_better=True,
        value=value, ci_lo=max(0.0, value - half), ci_hi=min(100.0, value + half),
        lat_median_ns=round(ms * noise * 1e6), 
        attend_ns=round((linear + square * length) * length * 6e5),
        rss_base_bytes=400 * MIB, rss_peak_delta_bytes=peak, cpu_model="AMD EPYC 9B14",
    )  # fmt: skip
    if method != "vanilla":
        ratio = ms / base_ms * noise
        spread = 0.6 * half
        columns |= dict(
            base_value=base_value, base_ci_lo=base_value - 4, base_ci_hi=min(100.0, base_value + 4),
            value_diff=value - base_value, value_diff_ci_lo=value - base_value - spread,
            value_diff_ci_hi=value - base_value + spread,
            lat_base_median_ns=round(base_ms * 1e6), lat_ratio=ratio,
            lat_ratio_ci_lo=ratio * (1 - width) if pairs >= 10 else 0.0,
            lat_ratio_ci_hi=ratio * (1 + width) if pairs >= 10 else float("inf"),
            lat_n_pairs=pairs, baseline_status="ok", base_rss_base_bytes=400 * MIB,
            base_rss_peak_delta_bytes=base_peak, mem_ratio=peak / base_peak,
            whole_peak_bytes=peak, base_whole_peak_bytes=base_peak,
            whole_peak_ratio=peak / base_peak,
            fid_rel_l2=0.01 + loss / 40 * np.exp(random.normal(0, 0.1)),
        )  # fmt: skip
    return columns | more


def failed(method: str, length: int, status: str, **more: Any) -> dict[str, Any]:
    """A row of a cell that ended before anything was measured."""
    return row(
        method=method, length=length, status=status, status_stage="latency",
        method_params=json.dumps(PARAMS.get(method, {})),
        n_samples_planned=64, cpu_model="AMD EPYC 9B14",
    ) | {"rss_peak_delta_bytes": None} | more  # fmt: skip


def frontier(
    tasks: Iterable[str] = ("narrativeqa",),
    lengths: Iterable[int] = (512, 1024, 2048, 4096, 8192, 16384),
    methods: Iterable[str] = tuple(COSTS),
    **more: Any,
) -> list[dict[str, Any]]:
    """Methods at lengths; unfused vanilla doesn't fit at the longest, BigBird takes too long."""
    rows = []
    lengths = tuple(lengths)
    for task in tasks:
        for length in lengths:
            for method in methods:
                where = {"task": task, **more}
                if length == max(lengths) and method in ("vanilla_eager", "bigbird"):
                    how = "oom_host" if method == "vanilla_eager" else "timeout"
                    rows.append(failed(method, length, how, **where))
                else:
                    rows.append(measured(method, length, **where))
    return rows


def store(folder: Path, rows: Iterable[dict[str, Any]]) -> Path:
    Store(folder).append(rows)
    return folder


def written(axes: Axes) -> tuple[dict[tuple[int, int], str], list[str], list[str]]:
    """The texts of a heat map by line and column, and the names of its lines and columns."""
    texts = {
        (math.floor(y), math.floor(x)): text.get_text()
        for text in axes.texts
        for x, y in [text.get_position()]
    }
    lines, columns = (
        [label.get_text() for label in labels]
        for labels in (axes.get_yticklabels(), axes.get_xticklabels())
    )
    return texts, lines, columns
