"""What a benchmark of a part of a model measured is listed like any row."""

from __future__ import annotations

import pytest

from bench.cli.main import dispatch
from bench.store.store import Store
from benchmarks.speed_rows import Part, Rows
from methods.iceformer.iceformer import IceFormer
from methods.vanilla import Vanilla

ATTENTION = Part("attention", "clustered keys", 1024, heads=8)


@pytest.fixture
def kept(tmp_path):
    rows = Rows(tmp_path, {"gemm_gflops": 100.0})
    rows.measured(ATTENTION, Vanilla(), cpu=[0.02, 0.03], base=[0.02, 0.03], kernel="torch")
    rows.measured(ATTENTION, IceFormer(), cpu=[0.01, 0.01], base=[0.02, 0.03], fid_recall=0.9)
    rows.skipped(ATTENTION, IceFormer(search="exact"), "would take about 40 s, it has 12 s")
    rows.store()
    return tmp_path


def test_rows_have_their_figures_and_no_verdict(kept):
    vanilla, quantized, exact = Store(kept).rows().to_pylist()
    assert (vanilla["method"], vanilla["ratio"], vanilla["lat_median_ns"]) == ("vanilla", 1, 25e6)
    assert (quantized["method"], quantized["ratio"]) == (
        "iceformer",
        pytest.approx((0.5 + 1 / 3) / 2),
    )
    assert quantized["verdict"] is None and quantized["ratio_ci_lo"] is None
    assert (exact["status"], exact["ratio"]) == ("skipped", None)
    assert exact["status_detail"] == "would take about 40 s, it has 12 s"
    assert len({row["cell_key"] for row in (vanilla, quantized, exact)}) == 3
    assert vanilla["host_id"] and "CPU time" in vanilla["protocol"]


def test_bench_results_lists_them(kept, capsys):
    assert not dispatch(["results", "--results", str(kept), "method=iceformer", "--format", "tsv"])
    assert len(capsys.readouterr().out.splitlines()) == 3
