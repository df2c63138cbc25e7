"""Sweeps of these tests keep their rows in folders of their own."""

from __future__ import annotations

import pytest

from bench.execution import runner
from bench.status import Status
from bench.store.store import Store


@pytest.fixture(autouse=True)
def own_results(tmp_path_factory, monkeypatch):
    """A request without `results=` reads and writes results/runs of the current directory."""
    monkeypatch.chdir(tmp_path_factory.mktemp("checkout"))


@pytest.fixture
def instant_cells(monkeypatch):
    """Cells of this process store an ok row without running anything."""

    def run(cell, results, **_):
        row = runner.unmeasured_row(cell, Status.OK, "")
        Store(results).append([row])
        return row

    monkeypatch.setattr(runner, "run", run)
