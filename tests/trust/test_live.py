"""A live A/A: vanilla under another name is neither faster nor slower than vanilla."""

from __future__ import annotations

from bench.store import Store
from tests.conftest import ROOT
from tests.trust.common import bench_run

CONF = ROOT / "tests" / "trust" / "conf"


def test_vanilla_under_another_name_is_not_found_to_be_anything_else(tiny_t5, tmp_path):
    """A verdict may be wrong once in twenty, by its definition; twice in a row, on other coin
    flips, once in four hundred."""
    for seed in (0, 1):
        said = bench_run(
            CONF, tiny_t5, tmp_path, "method=twin", "measure=speed", f"seed={seed}", "length=512"
        )
        assert said.returncode == 0, said.stderr
        [row] = Store(tmp_path).rows(where={"seed": seed}).to_pylist()
        assert row["fid_rel_l2"] == 0
        if row["verdict"] in ("same", "undecided"):
            return
    raise AssertionError(f"twice {row['verdict']}: ratio {row['ratio']}")
