"""A file is replaced as a whole or stays as it was."""

from __future__ import annotations

import pytest

from bench.files import replacing


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
