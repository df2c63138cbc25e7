from __future__ import annotations

import pytest

from bench.measure import failed_check


@pytest.fixture(autouse=True)
def no_failed_check_of_another_test(monkeypatch):
    """A process keeps what failed in it, and tests share one."""
    monkeypatch.setattr(failed_check, "_failures", [])
