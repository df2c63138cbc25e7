"""Generated inputs that are kept: the next process finds them; damaged ones are made anew."""

import json
import multiprocessing
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import bench
from bench.execution import encoded_rows
from bench.models.checkpoints import load_tokenizer
from bench.request import plugins


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longctx-bench" / "rows"


def cell(*given):
    return bench.compose(
        "model=embedded-llama", "task=ruler_niah_single_1", "n=3", "length=600", *given
    )


def tokenizer(model="embedded-llama"):
    return load_tokenizer(Path(plugins.conf("model", model)["path"]))


def encoded(one, n=None, by=None):
    """Inputs of a cell's first n rows, and how many of them were written."""
    task, calls = one.build_task(), []

    def encode(*given):
        calls.append(given)
        return task.encode(*given)

    rows = one.rows().rows[:n]
    counting = SimpleNamespace(encode=encode)
    return encoded_rows.encoded(one, counting, rows, by or tokenizer()), len(calls)


def test_rows_are_written_once(cache):
    first, written = encoded(cell())
    assert written == 3 and [path.name for path in cache.glob("*/*")] == ["3.npz"]
    again, written = encoded(cell("method=snapkv"))
    assert written == 0 and again == first
    fewer, written = encoded(cell(), n=2)
    assert written == 0 and fewer == first[:2]
    more, written = encoded(cell("n=5"))
    assert written == 5 and more[:3] == first


@pytest.mark.parametrize(
    "given", ["length=700", "seed=1", "task.max_new_tokens=60", "data.split=validation"]
)
def test_another_request_has_rows_of_its_own(cache, given):
    first, _ = encoded(cell())
    other, written = encoded(cell(given))
    assert written == 3 and other != first


def test_another_tokenizer_has_rows_of_its_own(cache):
    encoded(cell())
    other = tokenizer()
    other.add_tokens(["grass"])
    _, written = encoded(cell(), by=other)
    assert written == 3


def test_a_change_of_the_code_makes_rows_anew(cache, monkeypatch):
    encoded(cell())
    monkeypatch.setattr(encoded_rows.code_hash, "code_sha256", lambda *given, **more: "changed")
    assert encoded(cell())[1] == 3


@pytest.mark.parametrize("damage", ["", "PK no zip", None])
def test_a_damaged_file_is_made_anew(cache, damage):
    first, _ = encoded(cell())
    (path,) = cache.glob("*/*")
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    path.write_bytes(flipped if damage is None else damage.encode())
    again, written = encoded(cell())
    assert written == 3 and again == first and path.read_bytes() == whole
    assert encoded(cell())[1] == 0


def test_rows_that_are_not_generated_are_not_kept(cache, tmp_path):
    folder = tmp_path / "ruler" / "niah_single_1"
    folder.mkdir(parents=True)
    (folder / "validation.jsonl").write_text(json.dumps({"input": "x = 1", "outputs": ["x"]}))
    one = cell(f"data.dir={tmp_path}", "n=1")
    assert encoded(one)[1] == encoded(one)[1] == 1 and not cache.exists()


def test_no_right_answer_is_stored(cache):
    one = cell()
    encoded(one)
    (path,) = cache.glob("*/*")
    with encoded_rows.np.load(path) as arrays:
        assert set(arrays.files) == set(encoded_rows.ARRAYS)
        assert arrays["rows"].tolist() == [row.id for row in one.rows().rows]


def test_what_was_used_longest_ago_goes_first(cache, monkeypatch):
    encoded(cell())
    (first,) = cache.glob("*/*")
    monkeypatch.setattr(encoded_rows, "MOST_BYTES", int(4.5 * first.stat().st_size))
    for seed in (1, 2, 3):
        encoded(cell(f"seed={seed}"))
    for age, path in enumerate(cache.glob("*/*")):
        os.utime(path, (age + 1, age + 1))
    encoded(cell())  # used again
    oldest = min(cache.glob("*/*"), key=lambda path: path.stat().st_mtime)
    encoded(cell("seed=4"))
    assert first.exists() and not oldest.parent.exists() and len([*cache.glob("*/*")]) == 4


def test_a_disk_that_takes_nothing_is_no_failure(cache, monkeypatch):
    cache.parent.parent.mkdir(parents=True)
    cache.parent.write_text("a file where the folder would be")
    first, written = encoded(cell())
    assert written == 3 and encoded(cell()) == (first, 3)


def test_processes_store_the_same_rows_at_once(cache):
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        found = pool.map(encoded, [cell()] * 4)
    assert all(rows == found[0][0] for rows, _ in found)
    assert [path.name for path in cache.glob("*/*")] == ["3.npz"]
