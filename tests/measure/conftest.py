import pytest

from bench.measure import integrity, two_arms


@pytest.fixture(autouse=True)
def no_failed_check_of_another_test(monkeypatch):
    """A process remembers its failed checks, and tests share one process."""
    monkeypatch.setattr(integrity, "_failures", [])


@pytest.fixture
def alone(monkeypatch):
    """Tests that run side by side have threads and processes, and no supervisor."""
    monkeypatch.setattr(integrity, "check_python_threads", lambda: None)
    monkeypatch.setattr(integrity, "check_processes", lambda: None)
    monkeypatch.setattr(two_arms, "time_outside", lambda *given: None)
