"""What is printed where the terminal's encoding lacks characters, or nothing can be written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bench.cli.main import dispatch
from bench.request import plugins
from tests.conftest import ROOT


def bench(*words, out=subprocess.PIPE, err=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], stdout=out, stderr=err, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_characters_that_the_encoding_lacks_become_ascii(encoding):
    done = bench("ls", "tasks", PYTHONIOENCODING=encoding)
    assert done.returncode == 0 and not done.stderr
    assert b"unless length=... says so" in done.stdout


def test_a_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        done = bench("ls", out=full)
        silent = bench("nothing", err=full)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith("No space left on device")
    assert silent.returncode == 2


def test_new_says_where_it_cannot_write(tmp_path, monkeypatch, capsys):
    (tmp_path / "methods").touch()  # no folder can be made there, whoever asks
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    assert dispatch(["new", "method", "nearest"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("bench: can't write ") and "methods/nearest.py" in line


def test_the_score_of_one_pair_says_next_to_nothing(tmp_path, capsys):
    pair = tmp_path / "pair.jsonl"
    pair.write_text('{"prediction": "in the mill", "reference": "the mill"}\n')
    assert dispatch(["score", "narrativeqa", str(pair)]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(lines["f1"]) > 0 and lines["standard_error"] == "–" and lines["n_scored"] == "1"
    assert float(lines["ci_hi"]) - float(lines["ci_lo"]) > 80


def test_an_error_nobody_thought_of_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("bench.cli.list_command.ls", lambda words: {}["missing"])
    assert dispatch(["ls"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "KeyError: 'missing' (" in line and "BENCH_TRACEBACK=1" in line
    monkeypatch.setenv("BENCH_TRACEBACK", "1")
    assert dispatch(["ls"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
