"""A file is replaced as a whole or stays as it was."""

import pytest

from bench.errors import RequestError
from bench.files import RECORD, check_own, record, replacing, write_own


def test_a_file_is_replaced_when_the_new_one_is_whole(tmp_path):
    path = tmp_path / "file.json"
    for text in ("first", "second"):
        with replacing(path) as unfinished:
            unfinished.write_text(text)
            assert unfinished.parent == path.parent and unfinished.name.startswith(".")
        assert path.read_text() == text
    with pytest.raises(OSError, match="full"), replacing(path) as unfinished:
        unfinished.write_text("third")
        raise OSError("full")
    assert [file.name for file in tmp_path.iterdir()] == ["file.json"]
    assert path.read_text() == "second"


def test_a_file_is_replaced_only_where_it_is_as_it_was_written(tmp_path):
    path = tmp_path / "new" / "rows.csv"
    for data in (b"first", b"first", b"second"):
        write_own(path, data)
        assert path.read_bytes() == data
    assert len((path.parent / RECORD).read_text().splitlines()) == 2
    path.write_bytes(b"edited")
    with pytest.raises(RequestError, match=r"rows\.csv holds what bench didn't write") as refused:
        write_own(path, b"third")
    assert "\n" not in str(refused.value) and path.read_bytes() == b"edited"
    path.write_bytes(b"")
    write_own(path, b"fourth")


def test_a_file_is_known_by_its_name_too(tmp_path):
    write_own(tmp_path / "a", b"same")
    (tmp_path / "b").write_bytes(b"same")
    with pytest.raises(RequestError):
        check_own(tmp_path / "b")
    with pytest.raises(RequestError):
        write_own(tmp_path / RECORD, b"")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(RequestError):
        check_own(tmp_path / "link")


def test_a_folder_is_new_empty_or_recorded(tmp_path):
    check_own(tmp_path / "new", tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RequestError, match="give a path that is new or empty"):
        check_own(tmp_path)
    record(tmp_path)
    check_own(tmp_path)


def test_files_below_a_folder_are_in_its_record(tmp_path):
    inner = tmp_path / "data" / "one.json"
    write_own(inner, b"1", tmp_path)
    write_own(inner, b"2", tmp_path)
    assert not (inner.parent / RECORD).exists()
    check_own(tmp_path)
