"""A measured A/A comparison: vanilla under another name is neither faster nor slower."""

from bench.rows.store import Store
from bench.status import Verdict
from tests.conftest import ROOT
from tests.trust.common import bench_run

CONF = ROOT / "tests" / "trust" / "conf"


def test_vanilla_under_another_name_gets_no_other_verdict(tiny_t5, tmp_path):
    """By its definition a verdict is wrong in one of twenty runs; twice in a row, with other coin
    flips, in one of four hundred."""
    for seed in (0, 1):
        run = bench_run(
            CONF, tiny_t5, tmp_path, "method=twin", "measure=speed", f"seed={seed}", "length=512"
        )
        assert run.returncode == 0, run.stderr
        [row] = Store(tmp_path).rows(where={"seed": seed}).to_pylist()
        assert row["fid_rel_l2"] == 0
        if row["lat_verdict"] in (Verdict.SAME, Verdict.UNDECIDED):
            return
    raise AssertionError(f"twice {row['lat_verdict']}: ratio {row['lat_ratio']}")
