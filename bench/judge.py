"""What raw measurements mean: the columns of quality, latency and memory that are computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import between, stats
from bench.cell import BASELINE, Cell
from bench.store import Predictions
from tasks import buckets, chance

AGREE_SLACK_BYTES = 16 << 20
Row = dict[str, Any]

TRAINING = {
    "lat_median_ns": "train_step_ns",
    "base_median_ns": "base_train_step_ns",
    "lat_samples_ns": "train_samples_ns",
    "base_samples_ns": "base_train_samples_ns",
    "ratio": "train_ratio",
    "ratio_ci_lo": "train_ratio_ci_lo",
    "ratio_ci_hi": "train_ratio_ci_hi",
    "ratio_p": "train_ratio_p",
    "n_pairs": "train_n_pairs",
    "aa_noise_pct": "train_aa_noise_pct",
    "verdict": "train_verdict",
    "ratio_reason": "train_reason",
}
"""Of a latency, and what they are called where the samples are training steps."""


def judged(row: Mapping[str, Any], cell: Cell, results: Path) -> Row:
    """The row of a cell with what its raw measurements mean."""
    judged = {**row}
    if judged.get("tokens_in_mean") is not None:
        judged |= quality(cell, results, cell.method["name"] != BASELINE)
    if judged.get("lat_samples_ns"):
        judged |= latency(judged, cell.seed)
    samples = judged.pop("training", None)
    if samples:
        told = samples | latency(samples, cell.seed)
        judged |= {ours: told[name] for name, ours in TRAINING.items() if name in told}
    return {**judged, "mem_agree": mem_agree(judged)}


def quality(cell: Cell, results: Path, paired: bool) -> Row:
    """The quality columns from stored predictions, by the task's official metric, over all rows
    and by buckets of their length."""
    task, loaded = cell.build_task(), cell.rows()
    rows = loaded.rows
    references = [row.references for row in rows]
    columns: Row = {
        "metric": task.metric,
        "metric_version": str(task.metric_version),
        "higher_is_better": task.higher_is_better,
        "n_samples_available": loaded.n_available,
        "n_samples_official": cell.task.get("n", {}).get(cell.data["split"]),
    }
    each: list[list[float]] = []
    arms = [("", cell), ("base_", cell.baseline())] if paired else [("", cell)]
    for prefix, arm in arms:
        kept = Predictions(results / "predictions", arm.prediction_key)
        done = kept.done()
        answers = [done[row.id]["prediction"] for row in rows]
        tokens_in = [t for row in rows if (t := done[row.id].get("tokens_in")) is not None]
        figures = dict(task.score(answers, references))
        each.append(task.score_each(answers, references))
        estimate = stats.bootstrap_mean(each[-1], seed=cell.seed)
        columns |= {
            f"{prefix}value": figures["value"],
            f"{prefix}ci_lo": estimate.lo,
            f"{prefix}ci_hi": estimate.hi,
            f"{prefix}score_by_length": json.dumps(
                buckets.scores(lambda *a: task.score(*a)["value"], tokens_in, answers, references)
            )
            if len(tokens_in) == len(rows)
            else None,
            f"{prefix}predictions_sha256": kept.sha256([row.id for row in rows]),
        }
        if not prefix:
            columns |= {
                "stderr": estimate.stderr,
                "ci_method": "bootstrap over samples",
                "metrics": json.dumps(figures),
                "n_scored": len(rows),
                "n_failed": 0,
                "predictions_path": str(Path("predictions") / arm.prediction_key),
            }
    if paired:
        difference = stats.paired_difference(each[0], each[1], seed=cell.seed)
        columns |= {
            "value_diff": columns["value"] - columns["base_value"],
            "value_diff_ci_lo": difference.lo,
            "value_diff_ci_hi": difference.hi,
        }
    level, low = chance.chance(task, rows), columns["ci_lo"]
    columns |= {"chance": level, "at_chance": None if low is None else low <= level}
    return columns


def latency(samples: Mapping[str, Any], seed: int) -> Row:
    """The latency columns from raw samples: medians, ratio, verdict."""
    mine = stats.summary(samples["lat_samples_ns"])
    columns: Row = {
        "lat_median_ns": mine.median_ns,
        "lat_p10_ns": mine.p10_ns,
        "lat_p90_ns": mine.p90_ns,
        "lat_mad_ns": mine.mad_ns,
        "lat_min_ns": mine.min_ns,
    }
    base = samples.get("base_samples_ns")
    if not base:
        return columns
    aa = (samples["aa_first_samples_ns"], samples["aa_second_samples_ns"])
    shared = between.paired_ratio(
        samples["lat_samples_ns"], base, samples.get("pair_process"), seed
    )
    ratio = shared.ratio
    noise = stats.aa_noise_pct(*aa, ratio.n, seed)
    return columns | {
        "base_median_ns": stats.summary(base).median_ns,
        "ratio": ratio.ratio,
        "ratio_ci_lo": ratio.ci_lo,
        "ratio_ci_hi": ratio.ci_hi,
        "ratio_p": ratio.p,
        "n_pairs": ratio.n,
        "n_processes": shared.processes,
        "process_sd_pct": shared.sd_pct,
        "aa_noise_pct": noise,
        "verdict": stats.verdict(ratio, noise),
        "aa_verdict": stats.verdict(stats.paired_ratio(*aa, seed), noise) if aa[0] else None,
    }


def mem_agree(columns: Mapping[str, Any]) -> bool | None:
    """Whether what was measured, what the allocator traced and what theory promises tell one
    story: resident and traced peaks within a factor of two, and no more than twice the promise.
    None when there are no two figures to compare."""
    measured, traced = columns.get("rss_peak_delta_bytes"), columns.get("alloc_peak_bytes")
    theory = columns.get("state_theory_bytes")
    told = [b for b in (measured, traced) if b is not None]
    if len(told) < 2 and (theory is None or not told):
        return None
    near = max(told) <= 2 * min(told) + AGREE_SLACK_BYTES
    return near and (theory is None or max(told) <= 2 * theory + AGREE_SLACK_BYTES)
