"""The ratio to exact attention by the same engine, and a row's description of its engine."""

import numpy as np
import pytest

from bench.rows.row_facts import engine_only, kernel_names, kernels
from bench.status import Verdict
from reports.wording import own_engine
from tests import made

NATIVE = "native avx512 float32"
ENDS = ("", "_ci_lo", "_ci_hi", "_p")


def timed(ratio: float, own: float | None, kernel: str = NATIVE):
    """Latency columns of a method that takes `ratio` of vanilla's time, and `own` of exact
    attention's by its engine."""
    columns = made.timing(ratio)
    if own is not None:
        noise = np.exp(np.random.default_rng(5).normal(0, 0.005, (2, 40)))
        mine, twin = (1e8 * ratio * noise / [[1], [own]]).round().astype(int).tolist()
        columns |= {"engine_samples_ns": mine, "engine_base_samples_ns": twin}
        columns["engine_pair_process"] = columns["lat_pair_process"]
    columns |= {"kernel": kernel, "engine_kernel": kernel}
    return columns | made.times(columns)


def test_a_native_method_has_a_ratio_of_its_own_pairs():
    row = timed(0.5, 0.8)
    assert row["lat_ratio"] == pytest.approx(0.5, rel=0.02) and row["lat_verdict"] == Verdict.FASTER
    assert row["engine_ratio"] == pytest.approx(0.8, rel=0.02)
    assert row["engine_ratio_ci_lo"] < row["engine_ratio"] < row["engine_ratio_ci_hi"]
    assert row["engine_verdict"] == Verdict.FASTER and not engine_only(row)
    assert row["engine_base_median_ns"] == pytest.approx(0.5e8 / 0.8, rel=0.02)
    assert own_engine(row) == "native"


def test_on_torch_the_two_ratios_are_one():
    row = timed(0.5, None, "torch")
    for end in ENDS:
        assert row[f"engine_ratio{end}"] == row[f"lat_ratio{end}"]
    assert row["engine_verdict"] == row["lat_verdict"]
    assert row["engine_base_median_ns"] == row["lat_base_median_ns"]
    assert not engine_only(row) and not own_engine(row)


def test_a_row_without_the_kernel_of_exact_attention_has_no_such_ratio():
    assert "engine_ratio" not in made.timing(0.5)
    row = made.full(**made.timing(0.5))
    assert row["engine_ratio"] is None and not engine_only(row) and not own_engine(row)


def test_a_win_by_the_engine_alone_is_named():
    assert engine_only(timed(0.5, 1.0)) == "by its engine only"
    assert engine_only(timed(0.5, 1.3)) == "by its engine only"
    undecided = {"lat_verdict": Verdict.FASTER, "engine_verdict": Verdict.UNDECIDED}
    assert engine_only(undecided) == "perhaps by its engine only"
    assert not engine_only(undecided | {"lat_verdict": Verdict.SAME})


def test_kernels_are_named_without_their_reasons():
    used = "native avx512 int8; torch (no compiler (g++ or c++ is not in PATH)); torch (dropout)"
    assert kernel_names(used) == "native avx512 int8, torch"
    assert kernel_names(used, words=1) == "native, torch"
    assert kernels(used)[1] == ("torch", "no compiler (g++ or c++ is not in PATH)")
    reason = "it can't be built: one; two"
    assert kernels(f"torch ({reason})") == [("torch", reason)]
    assert kernel_names("torch") == "torch" and kernel_names(None) == ""
