from __future__ import annotations

import pytest

from bench.measure import outside, torch_state


@pytest.fixture(autouse=True)
def no_failed_check_of_another_test(monkeypatch):
    """A process keeps what failed in it, and tests share one."""
    monkeypatch.setattr(torch_state, "_failures", [])


@pytest.fixture
def alone(monkeypatch):
    """Tests that run side by side have threads and processes, and no supervisor."""
    monkeypatch.setattr(torch_state, "check_python_threads", lambda: None)
    monkeypatch.setattr(torch_state, "check", lambda most: None)
    monkeypatch.setattr(outside, "time_here", lambda *given: None)
