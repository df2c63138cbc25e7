"""Data cached on disk for the next command are never stale."""

import os

import pytest

from bench import files
from bench.errors import RequestError
from bench.request import code_hash, compose
from bench.sweep.grid import SweepGrid

WORDS = ("method=bigbird", "length=512")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longctx-bench"


@pytest.fixture
def composed(monkeypatch):
    """How often Hydra has composed."""
    calls, with_hydra = [], compose.compose_with_hydra

    def counted(overrides):
        calls.append(overrides)
        return with_hydra(overrides)

    monkeypatch.setattr(compose, "compose_with_hydra", counted)
    return calls


def test_the_same_words_are_composed_once(composed):
    first = compose.compose(WORDS)
    assert compose.compose(WORDS) == first
    assert len(composed) == 1
    assert compose.compose([*WORDS, "dtype=bfloat16"])["dtype"] == "bfloat16"
    assert len(composed) == 2
    requests = [[p.request for p in SweepGrid.of(["method=bigbird,vcc", f"seed={seed},5"]).points()]
                for seed in (1, 2)]  # fmt: skip
    assert [r["seed"] for each in requests for r in each] == [1, 5, 1, 5, 2, 5, 2, 5]
    assert len(composed) == 4, "each method is composed once; the seed composes nothing"


def test_plain_values_are_put_into_what_was_composed(composed):
    compose.compose(WORDS)
    words = ["method=bigbird", "length=100", "n=3", "seed=1", "results=folder/of/rows"]
    found = compose.compose(words)
    assert len(composed) == 1
    whole = compose.resolve(compose.compose_with_hydra(compose.check_overrides(words))[0], words)
    assert found == whole and (found["n"], found["results"]) == (3, "folder/of/rows")
    with pytest.raises(RequestError, match=r"length.*1e3|1e3.*length"):
        compose.compose(["method=bigbird", "length=1e3"])


def test_a_changed_file_is_composed_anew(conf_folder):
    path = conf_folder / "method" / "windowed.yaml"
    path.parent.mkdir()
    target = "methods.bigbird.bigbird:BigBird"
    for window in (5, 7):
        path.write_text(f"name: windowed\ntarget: {target}\nwindow: {window}\n")
        for _ in range(2):
            request = compose.compose(["method=windowed", "length=512"])
            assert request["method"]["window"] == window


def test_a_model_in_a_folder_is_looked_into_each_time(composed, tmp_path):
    for _ in range(2):
        compose.compose([*WORDS, f"model={tmp_path}", "task=narrativeqa"])
    assert len(composed) == 2


@pytest.mark.parametrize("content", ["", "{", "[1]x"])
def test_a_broken_file_is_made_anew(composed, cache, content):
    first = compose.compose(WORDS)
    for path in (cache / "request").iterdir():
        path.write_text(content)
    assert compose.compose(WORDS) == first
    assert len(composed) == 2


def test_nothing_is_kept_where_nothing_can_be_written(composed, cache):
    cache.parent.mkdir()
    cache.write_text("a file")
    assert compose.compose(WORDS) == compose.compose(WORDS)
    assert len(composed) == 2


def test_only_what_json_gives_back_is_kept():
    for value in ({1: "number as key"}, {"set": {1}}, (1, 2)):
        files.keep("test", ["a"], value)
        assert files.read_kept("test", ["a"]) is None
    files.keep("test", ["a"], {"none": None, "number": 0.1})
    assert files.read_kept("test", ["a"]) == {"none": None, "number": 0.1}


def test_the_older_half_goes(cache, monkeypatch):
    monkeypatch.setattr(files, "MOST_FILES", 4)
    for i in range(5):
        files.keep("test", [i], {"number": i})
        for path in (cache / "test").iterdir():
            os.utime(path, (i, i) if path.stat().st_mtime > 100 else None)
    assert files.read_kept("test", [4]) == {"number": 4}
    assert len(list((cache / "test").iterdir())) == 3


def test_a_hash_of_code_follows_each_file(tmp_path, monkeypatch):
    package = tmp_path / "kept_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "first.py").write_text("from kept_package import second\nA = second.B\n")
    (package / "second.py").write_text("B = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def sha256() -> str:
        for cached in (code_hash.code_sha256, code_hash._module, code_hash.parsed):
            cached.cache_clear()
        return code_hash.code_sha256("kept_package.first")

    before = sha256()
    assert sha256() == before
    (package / "second.py").write_text("B = 2\n")
    changed = sha256()
    assert changed != before
    (package / "second.py").unlink()
    (package / "second").mkdir()
    (package / "second" / "__init__.py").write_text("B = 1\n")
    assert sha256() != changed
    (package / "second" / "kernel.cpp").write_text("int a;\n")
    assert sha256() not in (before, changed)
