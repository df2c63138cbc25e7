"""A folder with one valid row, and the checkpoint with which it is measured again."""

import shutil
import subprocess

import pytest

from bench.execution import runner
from bench.rows.store import Store
from tests import made
from tests.conftest import ROOT

VANILLA = ("method=vanilla", "measure=standard")
HEAD = subprocess.run(
    ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True
).stdout.strip()
ABOUT = {
    "code_sha": HEAD, "code_dirty": False, "command": "bench run task=narrativeqa",
    "noisy": False, "mem_method": "VmHWM", "rss_peak_delta_bytes": 100 << 20, "row_id": "a" * 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder of one sound row, and the checkpoint that it names."""
    place = tmp_path_factory.mktemp("sound")
    made.answered(
        place / "rows", made.checkpoint(place / "model"), [True, True, False, True], None,
        *VANILLA, **ABOUT, **made.timing(0.5),
    )  # fmt: skip
    return place


@pytest.fixture
def model(sound):
    """The checkpoint, which a test may remove."""
    yield sound / "model"
    made.checkpoint(sound / "model")


@pytest.fixture
def folder(tmp_path, sound):
    """The valid row in a separate checkout."""
    return shutil.copytree(sound / "rows", tmp_path / "checkout" / "rows")


@pytest.fixture
def compared(tmp_path, model):
    """A row with vanilla's score, which answers one more question of four."""
    made.answered(
        tmp_path / "rows", model, [True, False, True, False], [True, True, True, False],
        "method=vcc", "measure=standard", **ABOUT,
    )  # fmt: skip
    return tmp_path / "rows"


@pytest.fixture
def measured_here(monkeypatch):
    """The result of running a cell, without running it."""
    brought = {}

    def run(cell, results, **options):
        brought["cell"] = cell
        return {**made.full(), **brought["row"]}

    monkeypatch.setattr(runner, "run", run)
    return brought


def rewrite(folder, **changes):
    """The folder's rows with other values, hidden from the store's own checks."""
    rows = Store(folder).rows().to_pylist()
    for path in Store(folder).shards():
        path.unlink()
    Store(folder).append([row | changes for row in rows])
