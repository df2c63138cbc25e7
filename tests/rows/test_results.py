"""bench results: listing, filtering, merging, checking and migrating rows, and its errors."""

import shutil
from pathlib import Path

import pytest

from bench.cli.main import main
from bench.errors import RequestError
from bench.rows import query
from bench.rows.store import Predictions, Store
from tests import made

V1 = Path(__file__).parent / "data" / "rows-v1.parquet"


@pytest.fixture
def folder(tmp_path):
    """Four rows, of which the last was measured first."""
    rows = [
        {"row_id": "aa11", "length": 1024, "method_params": '{"k": 8, "mode": "x"}'},
        {"row_id": "aa22", "length": 4096, "value": 41.5, "lat_ratio": 0.5,
         "lat_verdict": "faster"},
        {"row_id": "bb33", "length": 4096, "method": "vanilla", "noisy": True},
        {"row_id": "cc44", "length": 2048, "method": "vanilla", "status": "timeout"},
    ]  # fmt: skip
    Store(tmp_path / "runs").append(
        made.row(cell_key=f"cell-{i}", created_utc=f"2026-11-2{4 - i}T00:00:00+00:00", **row)
        for i, row in enumerate(rows)
    )
    return tmp_path / "runs"


def bench(capsys, *words):
    """(exit code, lines of standard output, of standard error)"""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return stop.value.code, said.out.splitlines(), said.err.splitlines()


def listed(lines):
    head, *rest = (line.split("\t") for line in lines)
    return [dict(zip(head, line, strict=True)) for line in rest]


def test_rows_are_listed_and_chosen_by_words(folder, transcript):
    transcript("listed")


def test_folders_are_merged_checked_and_migrated(folder, tmp_path, transcript):
    """A file of schema 1, one that is torn, rows twice, and files of others."""
    Predictions(folder / "predictions", "key").append([{"id": "1", "prediction": "x"}])
    shutil.copytree(folder, tmp_path / "damaged")
    (tmp_path / "old").mkdir()
    shutil.copy(V1, tmp_path / "old")
    [shard] = folder.glob("rows-*.parquet")
    shutil.copy(shard, tmp_path / "damaged" / "rows-copy.parquet")
    (tmp_path / "damaged" / "rows-torn.parquet").write_bytes(b"PAR1 torn")
    (tmp_path / "damaged" / "notes.parquet").write_text("not ours")
    transcript("folders")
    assert Predictions(tmp_path / "all" / "predictions", "key").done()["1"]["prediction"] == "x"
    assert (tmp_path / "damaged" / "rows-torn.parquet.torn").exists()
    assert query.versions(tmp_path / "old").keys() == {1}, "migrating writes to the new folder"
    assert query.versions(tmp_path / "new").keys() == {2}


def test_scores_are_averaged_over_seeds_and_nothing_else(tmp_path, transcript):
    rows = [made.row(method="luna", seed=i, value=score) for i, score in enumerate((40, 44, 48))]
    rows[2]["at_chance"] = True
    rows.append(made.row(method="luna", seed=3, value=None, status="error"))
    rows.append(made.row(method="luna", seed=0, value=90.0, length=1024))
    Store(tmp_path / "runs").append(rows)
    Store(tmp_path / "unscored").append([made.row(value=None)])
    transcript("seeds")


def test_an_argument_is_a_folder_a_filter_or_an_id(folder):
    assert len(query.sides([str(folder)], Path("nowhere"))[0].rows) == 4
    assert len(query.sides(["method=vcc"], folder)[0].rows) == 2
    assert query.sides(["aa1"], folder)[0].rows[0]["row_id"] == "aa11"
    assert query.sides([f"{folder}/bb"], Path("nowhere"))[0].rows[0]["row_id"] == "bb33"
    with pytest.raises(RequestError, match="'aa' begins the ids of 2 rows: aa11, aa22"):
        query.sides(["aa"], folder)[0]
    with pytest.raises(RequestError, match="'zz' is no folder, no filter"):
        query.sides(["zz"], folder)[0]
    with pytest.raises(RequestError, match=r"no row in .* fits 'method.k=9'"):
        query.sides(["method.k=9"], folder)[0]
