"""Rows like those of sweeps over several benchmarks, made without running anything."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

Row = dict[str, Any]

METHODS = {
    # name: points below vanilla, latency at 4,096 tokens, memory there, output error
    "vanilla": (0.0, 1.0, 1.0, 0.0),
    "vanilla_eager": (0.0, 1.9, 2.6, 1e-6),
    "bigbird": (3.5, 0.81, 0.62, 0.31),
    "bigbird_etc": (2.6, 0.86, 0.66, 0.28),
    "vcc": (1.2, 0.52, 0.44, 0.22),
    "iceformer": (0.4, 0.63, 1.08, 0.04),
    "fourier": (8.0, 0.47, 0.4, 0.52),
    "longnet_plugin": (5.0, 0.7, 0.58, 0.41),
}
KERNELS = {"bigbird": "native avx512 float32", "iceformer": "native avx512 float32"}
TASKS = {
    # task: benchmark, metric, vanilla's score
    "narrativeqa": ("scrolls", "f1", 21.6),
    "qmsum": ("scrolls", "rouge_geometric_mean", 18.4),
    "contract_nli": ("scrolls", "exact_match", 71.0),
    "lra_text": ("lra", "accuracy", 65.2),
    "lra_listops": ("lra", "accuracy", 37.1),
    "longeval_lines": ("longeval", "accuracy", 88.0),
}
HOSTS = {
    "cpu": {"host_id": "h2-a3f0c1d2e4b5a697", "cpu_model": "AMD EPYC 9454P", "cores_phys": 2,
            "virt": "virtual machine", "os_kernel": "6.1.0"},
    "h200": {"host_id": "h2-77d0be12aa05c3f1", "cpu_model": "Intel Xeon 8480C", "cores_phys": 16,
             "gpu_name": "NVIDIA H200", "virt": "container", "os_kernel": "6.8.0"},
}  # fmt: skip
KINDS = (("hub", "pretrained-swap"), ("local", "finetuned"), ("embedded", "embedded"),
         ("embedded", "random"))  # fmt: skip
MODELS = {"pretrained-swap": "t5-base", "finetuned": "t5-large", "embedded": "embedded",
          "random": "random-t5-base"}  # fmt: skip


def rows(
    tasks: tuple[str, ...] = tuple(TASKS),
    lengths: tuple[int, ...] = (1024, 4096, 16384),
    kinds: tuple[tuple[str, str], ...] = KINDS,
    devices: tuple[str, ...] = ("cpu", "h200"),
    methods: tuple[str, ...] = tuple(METHODS),
    seeds: tuple[int, ...] = (0,),
) -> Iterator[Row]:
    """One row of each combination, each different from the others, the same in every call."""
    random = np.random.default_rng(0)
    grid = itertools.product(seeds, tasks, kinds, devices, lengths, methods)
    for number, (seed, task, (source, weights), device, length, method) in enumerate(grid):
        yield row(number, random, method, task, source, weights, device, length, seed)


def row(
    number: int, random: np.random.Generator, method: str, task: str, source: str, weights: str,
    device: str, length: int, seed: int = 0, **more: Any,
) -> Row:  # fmt: skip
    """A finished row, or a row with the status of a method that would have failed there."""
    benchmark, metric, score = TASKS[task]
    loss, latency, memory, error = METHODS[method]
    gpu = device != "cpu"
    n = 64 if source == "embedded" else 200
    when = number * 7
    columns: Row = {
        "row_id": random.bytes(16).hex(), "cell_key": random.bytes(32).hex(),
        "created_utc": f"2026-11-{10 + when // 86400 % 20:02}T{when // 3600 % 24:02}:"
                       f"{when // 60 % 60:02}:{when % 60:02}+00:00",
        "run_id": f"run{number // 8}", "status": "ok", "method": method,
        "method_params": json.dumps({"k": 8} if method == "vcc" else {}),
        "benchmark": benchmark, "task": task, "task_version": "1", "split": "validation",
        "data_source": source, "dataset_sha256": f"{length:064x}", "n_samples_planned": n,
        "model": MODELS[weights], "weights_kind": weights, "weights_sha256": "e" * 64,
        "length": length, "batch": 1, "dtype": "bfloat16" if gpu else "float32",
        "device": device, "threads": HOSTS[device]["cores_phys"], "seed": seed,
        "measure": "quick", "launcher": "local", "noisy": number % 17 == 3, "python": "3.11.7",
        "noise_reason": "load 5.1 on 2 cores" if number % 17 == 3 else None, "torch": "2.13.0",
        "code_sha": "6d4939b4f58a6c37431ae740fd50e037dd081ae2", "code_dirty": number % 40 == 7,
        "command": f"bench run method={method} task={task} model={MODELS[weights]} data={source} "
                   f"length={length} n={n} device={device} seed={seed}",
    } | HOSTS[device]  # fmt: skip
    ended = _ended(method, device, length, number)
    if ended:
        return columns | ended | more
    if weights != "random":
        columns |= quality(random, score, loss * (length / 4096) ** 0.3, n, metric, method)
    size = length / 4096
    if method != "vanilla":
        columns |= timing(random, latency * size**-0.35, 1.5e8 * size**2, noise=0.02)
        columns |= same_engine(columns, "torch" if gpu else KERNELS.get(method, "torch"))
        peak = int((40 << 20) * size)
        columns |= _memory(gpu, int(peak * memory * size**-0.4), peak)
        columns |= {"fid_rel_l2": error * (1 + 0.1 * random.random()),
                    "fid_top1_agree": 1 - error / 2, "fid_kl_mean": error / 3}  # fmt: skip
    else:
        columns |= {"lat_median_ns": int(1.5e8 * size**2), "mem_method": "VmHWM",
                    "lat_reason": "vanilla is what ratios are taken against", "kernel": "torch",
                    "rss_peak_delta_bytes": int((40 << 20) * size)}  # fmt: skip
    return columns | more


def _ended(method: str, device: str, length: int, number: int) -> Row | None:
    if method == "vanilla_eager" and length >= 16384:
        status = "oom_device" if device != "cpu" else "oom_host"
        return {"status": status, "status_stage": "latency", "exit_signal": 9,
                "status_detail": "tried to take 12,884,901,888 bytes for the scores"}  # fmt: skip
    if method == "longnet_plugin" and number % 5 == 0:
        return {"status": "error", "status_stage": "load",
                "status_detail": "Traceback (most recent call last):\n  File \"long.py\", line 7\n"
                                 "RuntimeError: segment 3 has no rate"}  # fmt: skip
    if method == "fourier" and number % 11 == 0:
        return {"status": "unsupported", "status_stage": "load",
                "status_detail": "a filtered state would show a causal model its end"}  # fmt: skip
    return None


def quality(
    random: np.random.Generator, score: float, loss: float, n: int, metric: str, method: str
) -> Row:
    """Quality columns of a score `loss` points below vanilla's `score`."""
    value = max(0.0, score - loss + random.normal(0, 0.6))
    reach, paired = 1.96 * 32 / n**0.5, 1.96 * 9 / n**0.5
    columns = {
        "metric": metric, "value": value, "ci_lo": max(0.0, value - reach),
        "ci_hi": min(100.0, value + reach), "stderr": reach / 1.96, "n_scored": n, "n_failed": 0,
        "ci_method": "bootstrap over samples",
        "higher_is_better": True, "predictions_sha256": random.bytes(32).hex(),
    }  # fmt: skip
    if method == "vanilla":
        return columns | {"value": score, "predictions_sha256": "0" * 64}
    return columns | {
        "base_value": score, "base_ci_lo": score - reach, "base_ci_hi": score + reach,
        "base_predictions_sha256": "0" * 64, "value_diff": value - score,
        "value_diff_ci_lo": value - score - paired, "value_diff_ci_hi": value - score + paired,
    }  # fmt: skip


def timing(
    random: np.random.Generator, ratio: float, base_ns: float, pairs: int = 40, noise: float = 0.01
) -> Row:
    """Latency columns; the interval is that of a normal mean, which is quick to make."""
    base = base_ns * np.exp(np.abs(random.normal(0, noise, pairs)))
    mine = base_ns * ratio * np.exp(np.abs(random.normal(0, noise, pairs)))
    logs = np.log(mine / base)
    middle, reach = float(np.median(logs)), float(2.5 * logs.std() / pairs**0.5)
    found = float(np.exp(middle))
    lo, hi = float(np.exp(middle - reach)), float(np.exp(middle + reach))
    verdict = "undecided" if lo <= 1.02 and hi >= 0.98 else "faster" if found < 1 else "slower"
    return {
        "lat_samples_ns": mine.astype(int).tolist(),
        "lat_base_samples_ns": base.astype(int).tolist(),
        "lat_median_ns": int(np.median(mine)), "lat_base_median_ns": int(np.median(base)),
        "lat_ratio": found, "lat_ratio_ci_lo": lo, "lat_ratio_ci_hi": hi, "lat_ratio_p": 0.0001,
        "lat_n_pairs": pairs, "lat_aa_noise_pct": 60 * noise, "lat_verdict": verdict,
    }  # fmt: skip


def same_engine(columns: Row, kernel: str) -> Row:
    """The columns of a method's own engine, where a native one is 0.7 times as slow as vanilla."""
    names = ("lat_ratio", "lat_ratio_ci_lo", "lat_ratio_ci_hi")
    scale = 1.0 if kernel == "torch" else 0.7
    own = {name.replace("lat_ratio", "engine_ratio"): columns[name] / scale for name in names}
    lo, hi = own["engine_ratio_ci_lo"], own["engine_ratio_ci_hi"]
    undecided = lo <= 1.02 and hi >= 0.98
    verdict = "undecided" if undecided else "faster" if hi < 1 else "slower"
    return own | {"engine_verdict": verdict, "kernel": kernel, "engine_kernel": kernel,
                  "engine_base_median_ns": int(columns["lat_base_median_ns"] * scale)}  # fmt: skip


def _memory(gpu: bool, mine: int, base: int) -> Row:
    name = "gpu_alloc_delta_bytes" if gpu else "rss_peak_delta_bytes"
    return {name: mine, f"base_{name}": base, "mem_ratio": mine / base, "mem_method": "VmHWM"}
