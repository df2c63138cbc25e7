"""Output if the terminal's encoding lacks characters, or if nothing can be written."""

import json
import os
import subprocess
import sys

import pytest

from bench.cli.main import dispatch
from bench.request import plugins
from bench.rows.columns import COLUMNS
from bench.rows.store import Store
from tests import made
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
    assert b"unless it is given length=..." in done.stdout


CONTROLS = "\x1b[2J\x1b]0;title\x07\u202e\0\x9b2J\r[/red]"
SHOWN = b"\\u001b[2J\\u001b]0;title\\u0007\\u202e\\u0000\\u009b2J\\u000d[/red]"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two rows of which every text column holds control characters and markup."""
    texts = [c.name for c in COLUMNS.values() if c.type == "string" and not c.values]
    folder = tmp_path_factory.mktemp("rows")
    for number in range(2):
        text = {name: f"{number}{CONTROLS}" for name in texts}
        row = made.row(status="error", noisy=True, value=1.0, higher_is_better=True, n_scored=2)
        Store(folder).append([row | text | {"created_utc": "2026-11-20T00:00:00+00:00"}])
    (folder / f"rows-{CONTROLS[:8]}.parquet").write_text("torn")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("results",),
        ("results", "--format", "table"),
        ("results", "--json"),
        ("explain", "0", "1", "--format", "table"),
        ("compare", "0", "1"),
        ("verify", "0"),
        ("leaderboard", "--out", "page.html"),
        ("results", "task=" + CONTROLS.replace("\0", "")),
    ],
    ids=lambda words: " ".join(words[:1] + words[-1:]),
)
def test_stored_text_can_not_control_the_terminal(hostile, tmp_path, words):
    words = [word.replace("page.html", f"{tmp_path}/page.html") for word in words]
    done = bench(*words, f"results={hostile}")
    printed = done.stdout + done.stderr
    assert not set("\x1b\0\x07\x9b\u202e\r") & set(printed.decode())
    assert SHOWN[:8] in printed and b"\n" in printed


def test_a_row_that_a_run_shows_is_clean_and_styled(hostile):
    shows = (
        "import sys; from pathlib import Path; from bench.rows.store import Store\n"
        "from bench.terminal import output, row_table\n"
        "output.accept_any_text()\n"
        "row_table.show(Store(sys.argv[1]).rows().to_pylist()[0], Path(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", shows, str(hostile)], cwd=ROOT, capture_output=True,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "300", "TERM": "xterm"},
    )  # fmt: skip
    assert not done.stderr
    assert SHOWN in done.stdout and b"\x1b[31merror\x1b[0m" in done.stdout
    assert not any(bad in done.stdout for bad in (b"\x1b[2J", b"\x1b]", b"\0", b"\r"))


def test_json_keeps_what_is_cleaned(hostile):
    rows = json.loads(bench("results", "--json", f"results={hostile}").stdout)
    assert rows[0]["model"] == f"0{CONTROLS}"


def test_a_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        done = bench("ls", out=full)
        silent = bench("nothing", err=full)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.endswith("No space left on device")
    assert silent.returncode == 2


def test_new_says_where_it_cannot_write(tmp_path, monkeypatch, refused):
    (tmp_path / "methods").touch()  # no folder can be made there, by any user
    monkeypatch.setattr(plugins, "ROOT", tmp_path)
    line = refused("new", "method", "nearest")
    assert line.startswith("bench: can't write ") and "methods/nearest.py" in line


def test_the_score_of_one_pair_says_next_to_nothing(tmp_path, capsys):
    pair = tmp_path / "pair.jsonl"
    pair.write_text('{"prediction": "in the mill", "reference": "the mill"}\n')
    assert dispatch(["score", "narrativeqa", str(pair)]) == 0
    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert float(lines["f1"]) > 0 and lines["standard_error"] == "–" and lines["n_scored"] == "1"
    assert float(lines["ci_hi"]) - float(lines["ci_lo"]) > 80


def test_an_error_nobody_thought_of_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr("bench.request.plugins.problems", lambda: {}["missing"])
    assert dispatch(["ls"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "KeyError: 'missing' (" in line and "BENCH_TRACEBACK=1" in line
    monkeypatch.setenv("BENCH_TRACEBACK", "1")
    assert dispatch(["ls"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err
