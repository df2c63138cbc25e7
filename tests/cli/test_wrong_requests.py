"""Wrong requests: each is answered in one line, with exit code 2, before anything is written.

They are in snapshots/refused_*.txt, with the first 120 characters of their lines.
"""

from pathlib import Path

import pytest

from bench.rows.store import Store
from tests import made

KINDS = [path.stem for path in Path(__file__).parent.glob("snapshots/refused_*.txt")]


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_request_is_one_line(kind, tmp_path, transcript):
    rows = [made.row(row_id="a1", method="vanilla"), made.row(row_id="b2", method="vcc")]
    Store(tmp_path / "results" / "runs").append(rows)
    (tmp_path / "empty").mkdir()
    before = files(tmp_path)
    for said in transcript(kind, width=120):
        assert said.code == 2 and not said.out and said.error.count("\n") == 1, said.line
    assert files(tmp_path) == before
