"""What README quotes is what the reference rows say."""

from __future__ import annotations

import pytest

from bench.store import Store
from reports import readme
from tests.conftest import ROOT
from tests.reports import made


def test_each_table_is_that_of_the_reference_rows():
    if not readme.REFERENCE.is_dir():
        pytest.skip("no reference rows in this checkout")
    text = (ROOT / "README.md").read_text()
    assert readme.filled(text) == text, "python -m reports.readme README.md"
    assert readme.table() in text and readme.host().split(",")[0] in text
    for name in readme.BLOCKS:
        assert f"<!-- {name} -->" in text


def test_the_frontier_says_how_far_each_method_goes(tmp_path):
    kinds = (("hub", "finetuned"),)
    plain, row = made.rows(tasks=("narrativeqa",), lengths=(512,), devices=("cpu",), kinds=kinds,
                           methods=("vanilla", "vcc"))  # fmt: skip
    command = "bench run experiment=frontier scale=small"
    cells = [
        plain | {"lat_median_ns": 1_234_000_000, "length": 512},
        row | {"ratio": 0.5, "verdict": "faster", "mem_ratio": 1.25, "length": 512},
        row | {"ratio": None, "baseline_status": "oom_host", "lat_median_ns": 9_000_000,
               "length": 2048},
        plain | {"status": "oom_host", "length": 2048},
        plain | {"status": "timeout", "length": 8192},
        row | {"status": "skipped", "length": 8192},
    ]  # fmt: skip
    more = [{"row_id": f"r{i}", "cell_key": f"c{i}", "command": command} for i in range(6)]
    Store(tmp_path).append(cell | own for cell, own in zip(cells, more, strict=True))
    lines = readme.frontier(tmp_path).splitlines()
    assert lines[2:] == [
        "| method | 512 tokens | 2,048 tokens | 8,192 tokens |",
        "| --- | --- | --- | --- |",
        "| vanilla | 1,234 ms | out of memory | out of time |",
        "| vcc | ×0.50 faster, memory ×1.25 | 9 ms, vanilla out of memory | not measured |",
    ]
    assert readme.frontier(tmp_path / "none") == ""
