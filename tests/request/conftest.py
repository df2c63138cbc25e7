"""Requests of these tests keep their rows in folders of their own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_results(tmp_path_factory, monkeypatch):
    """A request without `results=` reads and writes results/runs of the current directory."""
    monkeypatch.chdir(tmp_path_factory.mktemp("checkout"))
