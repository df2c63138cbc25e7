"""Files of every kind: what is read, and the messages for broken files."""

import gzip
import json
import tracemalloc

import pyarrow
import pytest
from pyarrow.parquet import write_table

from tasks.base import DataError
from tasks.loading import records, sources
from tests.tasks import parquet
from tests.tasks.test_sources import archive

ROWS = [{"id": "a", "text": "one\u2028two\x85three"}, {"id": "b", "text": "ü"}]
MEMBER = "x/validation.jsonl"
TWICE = b'{"id": "a", "answer": "x", "answer": "y"}'


def write(path, rows=ROWS):
    if path.name.endswith(".parquet"):
        return parquet.write(path, rows)
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    if ".json" in path.suffixes:
        text = json.dumps(rows)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.json", "x.json.gz", "x.parquet"])
def test_every_kind_is_read_with_its_place(tmp_path, name):
    path = write(tmp_path / name)
    found = list(records.read(path))
    assert [record for _, record in found] == ROWS
    where = {"x.jsonl": "line", "x.jsonl.gz": "line", "x.parquet": "row"}.get(name, "entry")
    assert [place for place, _ in found] == [f"{path} {where} {i}" for i in (1, 2)]
    assert records.size(path) == path.stat().st_size


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.jsonl", b'{"id": "a"}\n{"id"\n', "line 2: broken json"),
        ("x.jsonl", b'{"id": "\xff"}', "line 1: not UTF-8"),
        ("x.jsonl.gz", gzip.compress(b'{"id": "a"}\n' * 5000)[:-20], "cut short or damaged"),
        ("x.json", b'[{"id": "a"},\n{"id" 7}]', "line 2: broken json"),
        ("x.json", b'{"id": "a"}', "found dict, expected an array of objects"),
        ("x.json", b'[{"id": "a"}, 7]', "entry 2: found int, expected an object"),
        ("x.parquet", b"PAR1 no PAR1", "is not a whole parquet file after row 0"),
        ("x.csv", b"a,b\n1,2\n3\n", "line 3: 1 values, expected 2: a, b"),
        ("x.csv", b'a,b\n1,"2\n', "line 2: broken csv: unexpected end of data"),
        ("x.csv", b"a\n\xff\n", "line 2: not UTF-8 at byte 0"),
        ("x.tsv", b"a\tb", "can't read this kind of file; accepted: .zip, .jsonl"),
        # Two readings.
        ("x.zip", TWICE, r"x/validation\.jsonl line 1: key 'answer' comes twice"),
        ("x.json", b'{"id": "b"}\n' + TWICE, "line 2: key 'answer' comes twice"),
        ("x.jsonl", b'{"a": [1, {"c": {"d": 1, "d": 2}}]}', "column 'c': key 'd' comes twice"),
        ("x.csv", b"id,answer,answer\n1,2,3\n", "line 1: column 'answer' comes twice"),
        ("x.jsonl", b'{"a": "b \\ud83d"}', "line 1: column 'a' is not Unicode: surrogates"),
        ("x.jsonl", b'{"\\ud83d": 1}', r"line 1: column '\\ud83d' is not Unicode"),
    ],
)
def test_broken_files_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if name == "x.zip":
        archive(path, content, MEMBER)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        list(records.read(path, MEMBER if name == "x.zip" else ""))
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    str(raised.value).encode()


def stored(path, content):
    """Bytes in a file of a kind: the file, and its member where it is a zip."""
    if path.suffix == ".zip":
        return archive(path, content, MEMBER), MEMBER
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return (path,)


def test_a_line_that_is_too_long_is_named_and_never_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE_BYTES", 1 << 20)
    content = b'{"id": "a"}\n{"id": "' + b"x" * (40 << 20)
    where = archive(tmp_path / "x.zip", content, MEMBER), MEMBER
    tracemalloc.start()
    with pytest.raises(DataError, match=r"x.zip: x/validation.jsonl line 2 is longer than 1 MiB$"):
        list(records.read(*where))
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["x.zip", "x.jsonl.gz", "x.json.gz"])
def test_a_file_that_unpacks_to_more_than_text_does_is_named(tmp_path, monkeypatch, name):
    monkeypatch.setattr(records, "ALWAYS_UNPACKED_BYTES", 1 << 16)
    content = (b'{"id": "' + b"a" * 1000 + b'"}\n') * 5_000
    where = stored(tmp_path / name, content)
    with pytest.raises(DataError, match=f"{name}.* unpacks to over 250 times its size"):
        list(records.read(*where))


def test_the_columns_of_a_parquet_file_are_each_there_once(tmp_path):
    path = tmp_path / "x.parquet"
    columns = [pyarrow.array([text]) for text in "abc"]
    write_table(pyarrow.Table.from_arrays(columns, ["id", "answer", "answer"]), path)
    with pytest.raises(DataError, match=r"x\.parquet: column 'answer' comes twice"):
        list(records.read(path))


def test_what_is_not_utf8_in_a_parquet_file_is_named(tmp_path):
    path = tmp_path / "x.parquet"
    write_table(pyarrow.table({"context": ["a"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"context", b"c\xffntext"))
    told = r"x\.parquet: the name of a column is not UTF-8: .*xffntext"
    with pytest.raises(DataError, match=told):
        list(records.read(path))
    values = pyarrow.array([b"a"] * 70 + [b"\xff"]).view(pyarrow.string())
    write_table(pyarrow.table({"id": [0] * 71, "text": values}), path)
    with pytest.raises(DataError, match=r"x\.parquet row 71: column 'text' can't be read: 'utf-8'"):
        list(records.read(path))


@pytest.mark.parametrize(
    "name", ["x.jsonl", "x.jsonl.gz", "x.json", "lines.json", "x.csv", "x.zip"]
)
def test_a_byte_order_mark_is_no_part_of_the_data(tmp_path, name):
    rows = [{"id": "a", "text": "b"}, {"id": "c", "text": "\ufeffd"}]
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    if name == "x.json":
        text = json.dumps(rows)
    elif name == "x.csv":
        text = "id,text\na,b\nc,\ufeffd\n"
    where = stored(tmp_path / name, text.encode("utf-8-sig"))
    assert [record for _, record in records.read(*where)] == rows


def test_a_zip_is_read_by_its_only_file_or_that_of_the_split(tmp_path):
    path = tmp_path / "x.zip"
    archive(path, "{}", "a/rows.jsonl", "readme.txt", "__MACOSX/a/._rows.jsonl")
    assert records.member_of(path, "test") == "a/rows.jsonl"
    archive(path, "{}", "train.jsonl", "data/test.jsonl", "test.csv")
    assert records.member_of(path, "test") == "data/test.jsonl"
    with pytest.raises(DataError, match=r"holds train.jsonl, .*; expected .* validation\.jsonl"):
        records.member_of(path, "validation")
    with pytest.raises(DataError, match=r"x\.zip holds a\.csv; expected one file of JSON lines"):
        records.member_of(archive(path, "{}", "a.csv"), "test")
    assert records.member_of(tmp_path / "x.jsonl", "test") == ""


def test_local_files_are_those_of_the_first_pattern(tmp_path):
    place = tmp_path / "set" / "deep"
    place.mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "a.json"):
        (place / name).write_text("")
    (tmp_path / "other.jsonl").write_text("")
    found = sources.local_files(tmp_path, "set", ["**/*.parquet", "**/*.jsonl", "**/*.json"])
    assert [path.name for path in found] == ["a.jsonl", "b.jsonl"]
    assert sources.local_files(tmp_path / "set", "set", "**/*.json") == [place / "a.json"]
    # Files of another benchmark in the same folder are not used.
    (tmp_path / "set" / "deep").rename(tmp_path / "elsewhere")
    (tmp_path / "set").rmdir()
    assert sources.local_files(tmp_path, "set", "**/*.jsonl") == [tmp_path / "other.jsonl"]
    with pytest.raises(DataError, match=r"no file .*set/\*\.json or \*\.parquet"):
        sources.local_files(tmp_path, "set", ["**/*.json", "**/*.parquet"])
    with pytest.raises(DataError, match=r"needs data\.dir, the folder with set/x"):
        sources.local_files(None, "set", "x")
