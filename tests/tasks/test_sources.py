"""Files of rows: broken and unsafe zips, and where local files are."""

import hashlib
import json
import stat
import zipfile
from pathlib import Path

import pytest

from tasks.base import DataError
from tasks.loading import records, sources

MEMBER = "qmsum/validation.jsonl"
ROW = {"id": "a", "pid": "a_0", "input": "Who?\n\nThe text.", "output": "Nobody"}


def archive(path: Path, content: bytes | str, *members: str) -> Path:
    """A zip whose members hold the same."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
        for member in members or (MEMBER,):
            zipped.writestr(member, content)
    return path


def read(path: Path, member: str = MEMBER) -> list:
    return list(records.read(path, member))


@pytest.mark.parametrize("name", ["/etc/rows.jsonl", "../rows.jsonl", "a/../../b", "..\\rows"])
def test_members_that_would_leave_the_folder_are_refused(tmp_path, name):
    path = archive(tmp_path / "x.zip", json.dumps(ROW))
    with zipfile.ZipFile(path, "a") as zipped:
        zipped.writestr(name, "x")
    with pytest.raises(DataError, match="unsafe"):
        read(path)


def test_symlinks_are_refused(tmp_path):
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as zipped:
        link = zipfile.ZipInfo(MEMBER)
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match="unsafe"):
        read(path)


@pytest.mark.parametrize("keep", [0, 30, -40])
def test_cut_files_are_refused(tmp_path, keep):
    path = archive(tmp_path / "x.zip", json.dumps(ROW))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="not a whole zip"):
        read(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_damage_inside_a_member_is_found(tmp_path, method):
    path = tmp_path / "x.zip"
    rows = [ROW | {"id": hashlib.sha256(bytes([i])).hexdigest()} for i in range(200)]
    with zipfile.ZipFile(path, "w", method) as zipped:
        zipped.writestr(MEMBER, "\n".join(map(json.dumps, rows)))
    broken = bytearray(path.read_bytes())
    at = len(broken) // 2
    broken[at : at + 8] = bytes(255 - b for b in broken[at : at + 8])
    path.write_bytes(broken)
    with pytest.raises(DataError, match=r"damaged|broken json|not UTF-8"):
        read(path)


def test_local_file_looks_in_two_places(tmp_path):
    with pytest.raises(DataError, match=r"no file .*scrolls/x\.zip \(nor .*/x\.zip\)"):
        sources.local_file(tmp_path, "scrolls", "x.zip")
    with pytest.raises(DataError, match=r"needs data\.dir"):
        sources.local_file(None, "scrolls", "x.zip")
    flat = archive(tmp_path / "x.zip", "")
    assert sources.local_file(tmp_path, "scrolls", "x.zip") == flat
    (tmp_path / "scrolls").mkdir()
    nested = archive(tmp_path / "scrolls" / "x.zip", "")
    assert sources.local_file(tmp_path, "scrolls", "x.zip") == nested


def test_sha256_follows_a_rewritten_file(tmp_path):
    path = tmp_path / "x"
    for content in (b"one", b"three"):
        path.write_bytes(content)
        assert sources.sha256(path) == hashlib.sha256(content).hexdigest()
