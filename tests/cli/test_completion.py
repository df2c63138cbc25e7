"""Completion: candidates for a line, and the script in a real bash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.cli.main import SHELLS, Bash, bench, dispatch
from tests.conftest import ROOT


def candidates(line):
    _, *given, word = line.split(" ")
    items = Bash(bench, {}, "bench", "").get_completions([each for each in given if each], word)
    return [item.value for item in items]


@pytest.mark.parametrize(
    "line, some",
    [
        ("bench pl", {"plan", "plot"}),
        ("bench run method=big", {"method=bigbird"}),
        ("bench plan -m method=vanilla,ice", {"method=vanilla,iceformer"}),
        ("bench run method=bigbird method.wi", {"method.window="}),
        ("bench run measure=qu", {"measure=quick", "measure=quality"}),
        ("bench results --for", {"--format"}),
    ],
)
def test_candidates(line, some):
    found = candidates(line)
    assert some <= set(found)
    assert all(each.startswith(line.split(" ")[-1]) for each in found)


@pytest.mark.parametrize(
    "line", ["bench nope x", "bench run method=nope method.x", "bench run nope=", "bench run n=1"]
)
def test_what_is_unknown_has_no_candidates(line):
    assert candidates(line) == []


def test_a_name_that_is_given_and_a_value_are_not_offered_again():
    assert "method=" not in candidates("bench run method=vcc ")
    assert "method=vcc,vcc" not in candidates("bench run method=vcc,v")


def test_folders_are_completed(tmp_path):
    (tmp_path / "rows").mkdir()
    assert candidates(f"bench run results={tmp_path}/r") == [f"results={tmp_path}/rows/"]


def test_every_shell_has_a_script(capsys):
    for shell in SHELLS:
        assert dispatch(["completion", shell]) == 0
        assert f"{shell}_complete" in capsys.readouterr().out


@pytest.fixture
def bench_in_path(tmp_path):
    script = tmp_path / "bench"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bench "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT)}  # fmt: skip


@pytest.mark.parametrize(
    "words, replies",
    [
        ("bench spec", ["spectrum"]),
        ("bench run method = bigbird_", ["bigbird_etc"]),
        ("bench run method = vcc,iceform", ["vcc,iceformer"]),
        ("bench run method = bigbird method.wi", ["method.window="]),
        ("bench results --format = js", ["json"]),
    ],
)
def test_bash_completes(words, replies, bench_in_path):
    """readline divides words at "=" and sets COMP_WORDS."""
    script = (
        f'eval "$(bench completion bash)"; compopt() {{ :; }}; COMP_WORDS=({words}); '
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _bench_completion bench; "
        "printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        capture_output=True, text=True, env=bench_in_path, cwd=Path(ROOT), check=True,
    )  # fmt: skip
    assert done.stdout.split() == replies
