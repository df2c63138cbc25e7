"""The table of one row, and the list of rows: their lines and contents."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.terminal import output, row_table, rows_table
from tests import made

SCORES = {
    "metric": "f1", "n_scored": 8, "value": 90.6, "ci_lo": 87.1, "ci_hi": 94.1, "base_value": 67.2,
    "base_ci_lo": 61.0, "base_ci_hi": 73.0, "value_diff": 23.4, "value_diff_ci_lo": 18.0,
    "value_diff_ci_hi": 29.0,
}  # fmt: skip
TRAINED = {
    "quality_comparison": "each trained for itself",
    "training": '{"from": "t5", "steps": null, "hours": 1.58, "supervision": "answers"}',
    "base_training": '{"from": "random weights", "steps": 1600, "hours": 0.2}',
}
WORDS = {"tokens_per_word": 3.26, "unknown_tokens_frac": 0.125}
CUT = {"tokens_in_mean": 6576.0, "tokens_seen_mean": 3968.0, "truncated_frac": 0.397}
OWN = {
    "kernel": "native avx512 float32; torch (fewer than 256 tokens)",
    "engine_kernel": "native avx512 float32", "engine_base_median_ns": 41_000_000,
    "engine_ratio": 1.204, "engine_ratio_ci_lo": 1.19, "engine_ratio_ci_hi": 1.22,
    "engine_verdict": "slower",
}  # fmt: skip
OUTSIDE = {
    "lat_outside_ratio": 0.81, "lat_outside_ratio_ci_lo": 0.8, "lat_outside_ratio_ci_hi": 0.82,
    "lat_base_outside_ns": 10_000_000, "lat_waits_left_out": True,
}  # fmt: skip
LOSS = {
    "metric": "nats_per_token", "higher_is_better": False, "n_scored": 4, "value": 2.3,
    "ci_lo": 2.1, "ci_hi": 2.5, "base_value": 2.1, "base_ci_lo": 2.0, "base_ci_hi": 2.3,
    "value_diff": 0.2, "value_diff_ci_lo": 0.1, "value_diff_ci_hi": 0.31,
    "value_diff_detectable": 0.15, "quality_comparison": "same weights",
}  # fmt: skip
KEPT = {"kv_bytes_held": 100 << 20, "kv_bytes_read_per_token": 1 << 20}
ROWS: dict[str, dict[str, Any]] = {
    "trained": SCORES | TRAINED | WORDS | made.timing(),
    "own_data": SCORES | WORDS | CUT | {"data_source": "local", "split": "test"},
    "unusual": SCORES | CUT | {
        "method": "iceformer", "method_params": json.dumps({"search": "dci"}),
        "quality_comparison": "same weights", "chance_reason": "the data have 3 other rows",
        "weights_kind": "random", "unknown_tokens_frac": 0.31, "tokens_in_estimated": True,
        "positions_rotary": 2048, "generation_ignored": "top_k=1", "n_unanswerable": 3,
        "window_layers_exact": 15,
        "prompt": "chat",
    },
    "slight": SCORES | CUT | {
        "quality_ns": row_table.SHOWN_NS, "quality_load_ns": 10**9,
        "weights_kind": "random", "unknown_tokens_frac": 0.01,
        "truncated_frac": row_table.MOST_CUT_FRAC,
    },
    "engine": OWN | made.timing(0.5) | {
        "cell": '{"model": {}, "data": {}, "task": {}, "method": {}}',
        "large_memory_kept": False, "length": 4096, "timed_tokens": 3144,
    },
    "outside": OUTSIDE | made.timing(0.8) | {
        "length": 4096, "timed_tokens": 4086, "fid_rel_l2": 1e-6, "fid_top1_agree": 1.0,
        "lat_timed_rel_l2": 0.5, "lat_timed_top1_agree": 0.25,
    },
    "outside_counts": OUTSIDE | made.timing(0.8) | {
        "lat_note": "vanilla was slowed next to the method, ×1.50",
    },
    "not_outside": made.timing(0.8) | {"lat_outside_reason": "no [memory]"},
    "holds_more": KEPT | {"kv_bytes_resident": 120 << 20},
    "reads_half": KEPT | {"kv_bytes_resident": 104 << 20, "kv_read_reported_pct": 50.0},
    "perplexity": LOSS | {
        "quality_ns": 126 * 10**9, "quality_load_ns": 3 * 10**9, "quality_prefill_ns": 4 * 10**10,
        "quality_decode_ns": 25 * 10**9, "base_quality_ns": 6 * 10**10, "scoring_ns": 10**9,
        "metrics": json.dumps({
            "perplexity": 9.974, "nats_per_token_first_quarter": 2.2,
            "nats_per_token_last_quarter": 2.4, "kl": 0.05, "kl_first_quarter": 0.04,
            "kl_last_quarter": 0.07, "top1_agree": 0.9,
        }),
    },
    "agrees": KEPT | {"kv_bytes_resident": 104 << 20, "kv_read_reported_pct": 97.0},
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_a_row(name, capsys, snapshot):
    row = made.full(row_id="a" * 32, cell_key="key", **ROWS[name])
    row_table.show(row, Path("rows"))
    row_table.show(row, Path("rows"), details=True)
    snapshot(f"row_{name}", capsys.readouterr().out)


@pytest.mark.parametrize("name", ROWS)
def test_without_details_a_row_has_few_lines_and_its_verdict(name, capsys):
    row_table.show(made.full(**ROWS[name]), Path("rows"))
    _, _, _, rule, *rest = capsys.readouterr().out.splitlines()
    n_figures = sum("│" in line for line in rest)
    assert "╇" in rule and n_figures <= 6
    ids = rest[-1]
    notes = [line for line in rest[n_figures:-1] if not line.startswith("verdict: ")]
    assert len(notes) <= row_table.MOST_NOTES and ids.startswith("row ")


def test_a_list_of_rows_has_a_loss_with_three_digits(capsys):
    rows_table.show([made.full(**SCORES), made.full(**LOSS)])
    assert {"90.6", "2.300"} <= {*capsys.readouterr().out.split()}


def test_a_list_of_rows_has_both_ratios_and_the_kernel(capsys, monkeypatch):
    monkeypatch.setattr(output, "PIPE_WIDTH", 200)
    old, new = made.full(**made.timing(0.5)), made.full(**made.timing(0.5), **OWN)
    rows_table.show([old, new])
    head, first, second = capsys.readouterr().out.splitlines()[-3:]
    assert "same engine" in head and "kernel" in head
    assert "faster" in first and first.count("–") >= 2 and "engine only" not in first
    assert "faster by its engine only" in second and "×1.204 slower" in second
    assert "native, torch" in second
