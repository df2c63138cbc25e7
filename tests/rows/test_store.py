"""Rows survive any failure of their writer, and can be read with any files next to them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.rows import columns, query, shards
from bench.rows.row_facts import kv_ratio_16bit
from bench.rows.store import Predictions, Store, check
from tests.rows.conftest import ids, row

V1 = Path(__file__).parent / "data" / "rows-v1.parquet"


def test_row_comes_back_as_it_was(store):
    sample = row(lat_ratio=0.5, length=4096, noisy=True, lat_samples_ns=[1, 2], metrics={"f1": 1.5})
    store.append([sample])
    back = store.rows().to_pylist()[0]
    assert set(back) == set(columns.COLUMNS)
    assert {name: back[name] for name in sample} == sample | {"metrics": '{"f1": 1.5}'}
    assert back["schema_version"] == columns.SCHEMA_VERSION
    assert back["row_id"] and back["created_utc"]
    assert back["value"] is None


def test_numbers_of_numpy_are_numbers(store):
    store.append([row(lat_ratio=np.float64(0.5), length=np.int64(3), lat_samples_ns=np.arange(3))])
    assert store.rows(["lat_samples_ns"]).to_pylist() == [{"lat_samples_ns": [0, 1, 2]}]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"lat_ratoi": 1.0}, "unknown column 'lat_ratoi'. Did you mean 'lat_ratio'"),
        ({"ratio": 1.0}, "column 'ratio' is now called 'lat_ratio'"),
        ({"length": 1.5}, "column 'length' takes int64, got float 1.5"),
        ({"length": 2**63}, "column 'length' takes int64"),
        ({"lat_samples_ns": [1, 2.5]}, "column 'lat_samples_ns' takes list<int64>"),
        ({"metrics": "{broken"}, "column 'metrics' takes JSON"),
        ({"status": "fine"}, "column 'status' takes one of ok, oom_host"),
        ({"cell_key": None}, "a row needs column 'cell_key'"),
    ],
)
def test_wrong_row_is_refused_by_name(store, wrong, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        store.append([row(), row() | wrong])
    assert ids(store) == []


def test_find_prefers_ok_and_then_the_newest(store):
    times = [f"2026-11-20T0{hour}:00:00+00:00" for hour in range(4)]
    store.append([row(row_id="old", created_utc=times[0])])
    store.append([row(row_id="new", created_utc=times[1], lat_samples_ns=[1])])
    store.append([row(row_id="failed", created_utc=times[3], status="timeout")])
    store.append([row("other", row_id="other", status="error", created_utc=times[2])])
    found = store.find("k")
    assert found is not None and found["row_id"] == "new"
    assert "lat_samples_ns" not in found
    assert store.find("other")["status"] == "error"
    assert store.find("unknown") is None


def test_a_later_attempt_counts_whatever_its_clock_said(store):
    day = "2026-11-20T0{}:00:00+00:00".format
    store.append([row(row_id="first", attempt=1, created_utc=day(5))])
    store.append([row(row_id="again", attempt=2, created_utc=day(1))])
    store.append([row("b", row_id="other", attempt=1, created_utc=day(3))])
    assert store.find("k")["row_id"] == "again"
    assert (store.last_attempt("k"), store.last_attempt("none")) == (2, 0)
    rows = store.rows().to_pylist()
    assert [one["row_id"] for one in query.oldest_first(rows)] == ["other", "first", "again"]
    assert query.best(rows)["row_id"] == "again"
    found, _ = query.select([], store.folder)
    assert [one["row_id"] for one in found] == ["other", "first", "again"]


def test_find_sees_what_others_append_and_remove(store):
    assert store.find("k") is None
    path = Store(store.folder).append([row(), row("second", length=7)])
    assert store.find("second")["length"] == 7
    path.unlink()
    assert store.find("second") is None


def test_predictions_beside_the_rows_are_not_looked_through(store):
    store.append([row(row_id="a")])
    Predictions(store.folder / "predictions", "k").append([{"id": 1}])
    (store.folder / "predictions" / "k" / "foreign.parquet").write_text("x")
    assert ids(store) == ["a"] and not store.warnings


BYTES = {
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "footer": lambda data: data[:-200] + bytes(200),
    "value": lambda data: data[:40] + bytes(80) + data[120:],
    "name": lambda data: data.replace(b"noise_reason", b"noise_reaso\xff"),
}
"""Damage to the bytes of a shard."""
VALUES = {
    "noise_reason": pa.array([b"caf\xe9"], pa.binary()).view(pa.string()),
    "row_id": pa.nulls(1, pa.string()),
    "status": pa.array(["fine"]),
    "lat_verdict": pa.array(["fastest"]),
    "method_params": pa.array(["{"]),
    "length": pa.array(["long"]),
}
"""Column → a value that no writer stores: of another encoding, type or range."""


@pytest.mark.parametrize("damage", [*BYTES, *VALUES])
def test_a_torn_file_or_one_of_impossible_values_is_named_and_set_aside(store, damage):
    store.append([row(row_id="whole")])
    torn = store.append([row(row_id="torn")])
    if damage in BYTES:
        torn.write_bytes(BYTES[damage](torn.read_bytes()))
    else:
        table = pq.read_table(torn)
        at = table.column_names.index(damage)
        pq.write_table(table.set_column(at, damage, VALUES[damage]), torn)
    assert store.rows()["row_id"].to_pylist() == ["whole"]
    [warning] = store.warnings
    assert str(torn) in warning and "\n" not in warning
    assert store.find("k")["row_id"] == "whole"
    assert [problem.kind for problem in check(store.folder, repair=True)] == ["torn"]
    assert not torn.exists() and torn.with_name(torn.name + ".torn").exists()
    assert check(store.folder) == []


def test_foreign_files_are_named_and_left(store):
    store.append([row(row_id="mine")])
    pq.write_table(pa.table({"row_id": ["theirs"]}), store.folder / "table.parquet")
    (store.folder / "text.parquet").write_text("not parquet")
    (store.folder / "notes.txt").write_text("not rows")
    assert ids(store) == ["mine"]
    assert len(store.warnings) == 2
    assert {problem.kind for problem in check(store.folder, repair=True)} == {"foreign"}
    assert len(list(store.folder.iterdir())) == 4


def test_newer_schema_is_named_and_left(store, monkeypatch):
    monkeypatch.setattr(columns, "SCHEMA_VERSION", 99)
    store.append([row(row_id="future")])
    monkeypatch.undo()
    store.append([row(row_id="now")])
    assert ids(store) == ["now"]
    assert "schema 99" in store.warnings[0] and "update" in store.warnings[0]
    assert [problem.kind for problem in check(store.folder, repair=True)] == ["newer"]


def test_a_schema_of_five_thousand_digits_is_set_aside(store):
    store.append([row(row_id="mine")])
    table = pa.table({"row_id": ["theirs"]})
    stamp = {shards.VERSION_KEY: b"9" * 5_000}
    pq.write_table(table.replace_schema_metadata(stamp), store.folder / "table.parquet")
    assert ids(store) == ["mine"]
    assert [problem.kind for problem in check(store.folder)] == ["foreign"]
    assert query.versions(store.folder) == {columns.SCHEMA_VERSION: (1, 1)}


def test_rows_of_schema_1_are_read(monkeypatch):
    store = Store(V1)
    assert ids(store) == ["a1", "a2", "b1"] and not store.warnings
    found = store.find("key-a")
    assert (found["row_id"], found["value"], found["lat_median_ns"]) == ("a2", 37.5, 1050)
    assert store.rows(["lat_samples_ns"], {"row_id": "b1"}).to_pylist() == [
        {"lat_samples_ns": [500, 550, 525]}
    ]


def test_columns_of_older_schemas_are_read_under_their_names_of_today(monkeypatch):
    """As a later version may: `value` has another name, and a column is new."""
    for name, kind in (("score", "float64"), ("value_unit", "string")):
        monkeypatch.setitem(columns.COLUMNS, name, columns.Column(name, kind, "new"))
    monkeypatch.setattr(columns, "SCHEMA_VERSION", 3)
    monkeypatch.setitem(shards.MIGRATIONS, 2, {"value": "score"})
    table = Store(V1).rows(["score", "value_unit", "lat_base_median_ns"])
    assert table["score"].to_pylist() == [None, 0.375e2, 0.36e2]
    assert table["value_unit"].null_count == 3


def test_an_older_row_has_its_ratio_to_a_cache_in_16_bits(store):
    held = {"kv_bytes_held": 30, "kv_bytes_full": 120}
    rows = [row(dtype="float32", **held), row(dtype="bfloat16", **held), row(dtype="float32")]
    path = store.append(rows)
    assert store.rows(["kv_ratio_16bit"])["kv_ratio_16bit"].null_count == 3  # as it was stored
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["kv_ratio_16bit"]), path)
    assert store.rows(["kv_ratio_16bit"])["kv_ratio_16bit"].to_pylist() == [0.5, 0.25, None]
    found = store.rows(where={"dtype": "bfloat16"}).to_pylist()
    assert found[0]["kv_ratio_16bit"] == kv_ratio_16bit(found[0]) == 0.25
    pq.write_table(table.select(["row_id", "cell_key", "status"]), path)
    assert store.rows(["kv_ratio_16bit"])["kv_ratio_16bit"].null_count == 3


def test_a_cell_is_found_without_opening_the_shards_of_others(tmp_path):
    store = Store(tmp_path)
    keys = [f"{i:x}".ljust(64, "0") for i in range(0xA0, 0xA5)]
    for key in keys:
        store.append([row(cell_key=key)])
    store.append([row(cell_key=keys[0]), row(cell_key=keys[1])])
    reader = Store(tmp_path)
    assert reader.find(keys[3])["cell_key"] == keys[3]
    assert len(reader._indexed) == 2, "its own, and the one of several rows"
    assert reader.find(keys[1])["cell_key"] == keys[1]
    assert reader.find("f" * 64) is None
