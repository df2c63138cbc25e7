"""Cells that run nothing, and an order in which plans are shared."""

import pytest

from bench.execution import runner
from bench.rows.store import Store
from bench.status import Status


def pytest_collection_modifyitems(items):
    """Tests of one experiment follow each other, for they share its plans."""
    own = [i for i, item in enumerate(items) if item.path.name == "test_experiments.py"]
    names = [getattr(items[i], "callspec", None) for i in own]
    keys = [str(spec.params.get("name", "")) if spec else "" for spec in names]
    ordered = [items[i] for _, i in sorted(zip(keys, own, strict=True))]
    for place, item in zip(own, ordered, strict=True):
        items[place] = item


@pytest.fixture
def instant_cells(monkeypatch):
    """Cells of this process store an ok row without running anything."""

    def run(cell, results, **_):
        row = runner.unmeasured_row(cell, Status.OK, "")
        Store(results).append([row])
        return row

    monkeypatch.setattr(runner, "run", run)
