"""Order: what takes longest begins first, so that no worker waits for the other at the end."""

from __future__ import annotations

LONG = ("test_rogues.py", "test_kill.py")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG)
