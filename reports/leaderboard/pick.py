"""Selects the rows of the page: one for each cell and host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from bench.rows.columns import COLUMNS
from bench.rows.query import best, named, select
from bench.rows.store import Store
from reports.rows import Row, created, grouped

PROBE = "max_length_fit"
BOARD = (
    "benchmark", "task", "split", "data_source", "dataset_sha256", "n_samples_planned", "model",
    "weights_kind", "weights_format", "length", "batch", "dtype", "device", "threads", "seed",
    "measure", "question", "turns", "prompt", "filled", "n_unanswerable", "host_id",
)  # fmt: skip
"""What rows share that are ranked against each other: everything but the method, its weights
(which may have been trained further with it) and the version of the code."""
CELL = (*BOARD, "method", "method_params", "weights_sha256")
ORDER = ("row_id", "cell_key", "status", "attempt", "created_utc", PROBE)

DECODING = (
    "new_tokens", "tpot_median_ns", "tpot_base_median_ns", "tpot_ratio", "tpot_ratio_ci_lo",
    "tpot_ratio_ci_hi", "tpot_verdict", "tpot_reason", "tpot_n_pairs", "answer_median_ns",
    "answer_base_median_ns", "answer_ratio", "answer_ratio_ci_lo", "answer_ratio_ci_hi",
    "answer_verdict", "kv_bytes_held", "base_kv_bytes_held", "kv_bytes_read_per_token",
    "base_kv_bytes_read_per_token", "kv_held_ratio", "kv_ratio_16bit", "kv_read_ratio",
    "kv_reason", "decode_top1_agree", "decode_kl_mean",
)  # fmt: skip
SHOWN = (
    *CELL, *ORDER, "cell", "command", "code_sha", "code_dirty", "run_id", "launcher",
    "status_stage", "status_detail", "baseline_status", "baseline_reason", "truncated_frac",
    "metric", "value", "ci_lo", "ci_hi", "ci_method", "n_scored", "n_failed", "higher_is_better",
    "chance", "at_chance", "predictions_path", "predictions_sha256",
    "base_value", "base_ci_lo", "base_ci_hi",
    "base_predictions_sha256", "value_diff", "value_diff_ci_lo", "value_diff_ci_hi",
    "value_diff_detectable", "quality_comparison", "training", "base_training",
    "lat_samples_ns", "lat_base_samples_ns", "lat_median_ns", "lat_base_median_ns", "lat_ratio",
    "lat_ratio_ci_lo", "lat_ratio_ci_hi", "lat_ratio_p", "lat_reason", "lat_n_pairs", "lat_verdict",
    "lat_aa_noise_pct", "lat_n_processes", "lat_process_sd_pct", "lat_process_reason",
    "lat_ratio_ci_method", "kernel", "engine_kernel", "engine_base_median_ns", "engine_ratio",
    "engine_ratio_ci_lo", "engine_ratio_ci_hi", "engine_verdict", "engine_reason",
    "mem_ratio", "mem_method", "mem_reason", "rss_peak_delta_bytes", "base_rss_peak_delta_bytes",
    "gpu_alloc_delta_bytes", "base_gpu_alloc_delta_bytes",
    "fid_rel_l2", "fid_top1_agree", "fid_kl_mean", "fid_reason", *DECODING,
    "cpu_model", "instruction_sets", "cores_phys", "gpu_name", "os_kernel", "virt", "python",
    "torch", "noisy", "noise_reason",
)  # fmt: skip
"""What the page needs of a row."""


class Picked(NamedTuple):
    """Rows with the columns SHOWN, each with the `folder` from which it was read; the number of
    cells before the limit, and a line for each file that was set aside."""

    rows: list[Row]
    n_cells: int
    warnings: list[str]


def pick(folders: Iterable[Path], words: Sequence[str], most: int) -> Picked:
    """One row for each cell and host: ok rows come before others, then the newest counts, with any
    version of its code. If there are more than `most` cells, the boards with the newest rows are
    kept, whole if they fit.

    Raises RequestError for a folder that doesn't exist and for a filter without matches.
    """
    chosen = list(dict.fromkeys((*CELL, *ORDER, *filter(COLUMNS.__contains__, named(words)))))
    rows: dict[str, Row] = {}
    warnings: list[str] = []
    for folder in folders:
        found, set_aside = select(words, folder, chosen)
        warnings += set_aside
        for stored in found:
            rows.setdefault(stored["row_id"], {**stored, "folder": folder})
    cells = grouped(rows.values(), lambda row: (*cell_of(row), row[PROBE] is not None))
    counting = [best(group) for group in cells.values()]
    kept = _whole_boards(counting, most)
    _complete(kept)
    return Picked(kept, len(counting), warnings)


board_of = itemgetter(*BOARD)
"""What a row shares with those that it is ranked against."""
cell_of = itemgetter(*CELL)


def _whole_boards(rows: list[Row], most: int) -> list[Row]:
    if len(rows) <= most:
        return rows
    boards = grouped(rows, board_of).values()
    newest = sorted(boards, key=lambda board: max(map(created, board)), reverse=True)
    kept: list[Row] = []
    for board in newest:
        if len(kept) + len(board) > most:
            break
        kept += board
    return kept or sorted(newest[0], key=created)[-most:]


def _complete(rows: Iterable[Row]) -> None:
    """Add the other columns of the page to these rows; samples are read only for them."""
    others = ["row_id", *(name for name in SHOWN if name not in (*CELL, *ORDER))]
    for folder, its in grouped(rows, itemgetter("folder")).items():
        wanted = {row["row_id"]: row for row in its}
        for more in Store(folder).rows(others, where={"row_id": [*wanted]}).to_pylist():
            wanted[more["row_id"]].update(more)
