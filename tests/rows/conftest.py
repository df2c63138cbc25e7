"""A store in a separate folder."""

from pathlib import Path
from typing import Any

import pytest

from bench.rows.store import Store


def row(key: str = "k", **more: Any) -> dict[str, Any]:
    return {"cell_key": key, "status": "ok", "method": "vcc", **more}


def ids(store: Store) -> list[str]:
    return store.rows(["row_id"])["row_id"].to_pylist()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "rows")
