"""Comparisons of new tokens and of whole answers, derived from raw samples."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.rows import derived_columns
from bench.rows.comparison import Comparison
from bench.status import Verdict
from bench.terminal import row_table, rows_table
from tests import made

RAW = [f"{arm}samples_ns" for arm in ("", "base_", "aa_first_", "aa_second_")] + ["pair_process"]


def decoded(new_tokens: int = 64, first: float = 1.1, each: float = 0.5) -> dict:
    """A row whose method takes `first` of vanilla's 100 ms to the first token, and `each` of
    vanilla's 100 ms for each further one."""
    steps = made.timing(each, seed=1)
    samples = {name: steps[f"lat_{name}"] for name in RAW} | {"calls_per_sample": 8}
    raw = made.full(new_tokens=new_tokens, batch=2, **made.timing(first))
    cell = SimpleNamespace(method={"name": "snapkv"}, seed=0)
    measured = {"lat": asdict(Comparison.of(raw, "lat").measured), "tpot": samples}
    return derived_columns.derive(raw | measured, cell, None)


def test_the_answer_is_the_first_token_and_the_others():
    row = decoded()
    assert "tpot" not in row
    assert row["lat_ratio"] == pytest.approx(1.1, rel=0.01), "of the first token, as it was"
    assert row["tpot_ratio"] == pytest.approx(0.5, rel=0.01)
    assert row["tpot_verdict"] == Verdict.FASTER and row["tpot_n_processes"] == 4
    assert row["tpot_calls_per_sample"] == 8 and len(row["tpot_samples_ns"]) == 40
    assert row["answer_median_ns"] == row["lat_median_ns"] + 63 * row["tpot_median_ns"]
    assert row["tokens_per_s"] == pytest.approx(2e9 / row["tpot_median_ns"])
    whole = (1.1 + 63 * 0.5) / 64
    assert row["answer_ratio"] == pytest.approx(whole, rel=0.01)
    assert row["answer_ratio_ci_lo"] < whole < row["answer_ratio_ci_hi"]
    assert row["answer_verdict"] == Verdict.FASTER


def test_few_tokens_have_a_ratio_and_no_verdict():
    row = decoded(new_tokens=16)
    assert row["tpot_ratio"] == pytest.approx(0.5, rel=0.01)
    assert row["tpot_verdict"] == row["answer_verdict"] == Verdict.UNDECIDED
    assert row["tpot_reason"] == "16 new tokens are too few for a verdict, which takes 32"


def test_a_row_is_checked_against_its_samples():
    row = decoded()
    assert not made.sample_faults(row)
    [told] = made.sample_faults(row | {"tpot_verdict": "slower"})
    assert told == "tpot_verdict is slower, by its samples faster"
    [told] = made.sample_faults(row | {"answer_median_ns": 1})
    assert told.startswith("answer_median_ns is 1, by its samples")
    [told] = made.sample_faults(row | {"tpot_engine_ratio": 0.5})
    assert told == "tpot_engine_ratio is 0.5, by its samples None"


def test_a_row_that_was_decoded_shows_it(capsys, snapshot):
    kv = {"kv_bytes_held": 2 << 20, "base_kv_bytes_held": 8 << 20, "kv_held_ratio": 0.25,
          "kv_ratio_16bit": 0.52, "kv_bytes_read_per_token": 1 << 20,
          "base_kv_bytes_read_per_token": 8 << 20,
          "kv_read_ratio": 0.125, "kv_entries": 512.0, "kv_read_reported_pct": 100.0}  # fmt: skip
    drift = {"decode_kl_mean": 0.2, "decode_kl_first_quarter": 0.1, "decode_kl_last_quarter": 0.4,
             "decode_top1_agree": 0.9, "decode_top1_first_quarter": 1.0,
             "decode_top1_last_quarter": 0.8}  # fmt: skip
    named = {"method": "vcc", "row_id": "a" * 32, "cell_key": "key",
             "created_utc": "2026-11-20T00:00:00+00:00"}  # fmt: skip
    row = decoded() | kv | drift | named
    row_table.show(row, Path("rows"), details=True)
    rows_table.show([row])
    snapshot("decoded_row", capsys.readouterr().out)
    rows_table.show([made.full(**made.timing())])
    assert "KV" not in capsys.readouterr().out
