"""The first commands of a user: make's names, and the environment."""

import os
import re
import shutil
import subprocess

import pytest

from bench.request import plugins
from bench.request.overrides import check_overrides
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """As from a shell, also where make runs the tests."""
    clean = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.run(["make", *words], capture_output=True, text=True, cwd=ROOT, env=clean)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["bench", "LENGHT=256"], "unknown name 'LENGHT' for make bench. Did you mean LENGTH?"),
        (["bench", "method=bigbird"], "unknown name 'method' for make bench. Did you mean METHOD?"),
        (["report", "METHOD=vcc"], "unknown name 'METHOD' for make report."),
    ],
)
def test_a_name_that_a_target_does_not_read_is_refused(words, line):
    done = make("-n", *words)
    assert done.returncode == 2 and line in done.stderr and len(done.stderr.splitlines()) == 1
    assert "Known: " in done.stderr and not done.stdout


def test_values_reach_bench_as_they_are_given():
    given = ["MODEL=it's a b/ü", "DATA_DIR=~/x y", "LENGTH=256", "ARGS=n=3 seed=1"]
    line = make("-n", "bench", *given).stdout.splitlines()[-1]
    shell = ["bash", "-c", f"printf '%s\\n' {line}"]
    words = subprocess.run(shell, capture_output=True, text=True).stdout.splitlines()
    expected = ["model=it's a b/ü", "data.dir=~/x y", "length=256", "n=3", "seed=1"]
    assert words[1:] == ["run", *expected]


def test_lra_small_trains_every_method_that_can_be_trained():
    printed = make("-n", "lra-small", "SEEDS=0,1").stdout.splitlines()[-1]
    cells = re.findall(r"bench run -m seed=0,1 (recipe=.*?) \|\|", printed)
    swapped = {cell for cell in cells if "protocol=swap" in cell}
    echo = "; ".join(f"echo {cell}" for cell in cells if cell not in swapped)
    words = ["bash", "-c", f"task=text; block=16; {echo}"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert all(check_overrides(line.split()) for line in lines)
    names = [line.split()[1].removeprefix("method=") for line in lines]
    trained = {plugins.conf("method", name)["target"] for name in names}
    methods = [plugins.conf("method", name) for name in plugins.available("method")]
    expected = {m["target"] for m in methods if m["facts"]["trains"]}
    elsewhere = {"methods.vanilla:VanillaEager", "methods.bigbird.etc:BigBirdETC", "methods.hf:HF"}
    assert trained == expected - elsewhere and len(names) == len(trained)
    convolved = {cell for cell in cells if "method.convolution=35" in cell}
    assert len(convolved) == 1 and "method=nystromformer" in min(convolved - swapped)
    assert {re.search("method=([a-z0-9_]+)", cell)[1] for cell in swapped} == {
        "bigbird", "fourier", "vcc", "iceformer", "nystromformer", "h_transformer_1d", "lara", "mra"
    }  # fmt: skip


def test_setup_looks_at_the_version_of_python_first(tmp_path):
    old = tmp_path / "python3.10"
    old.write_text('#!/bin/sh\ntest "$1" = --version && echo Python 3.10.14\n')
    old.chmod(0o755)
    done = make("-B", "setup", f"PYTHON={old}")
    first, *rest = done.stderr.splitlines()
    assert done.returncode == 2 and not done.stdout
    assert first.startswith(f"setup: Python 3.11 or newer is needed; {old} is Python 3.10.14.")
    assert len(rest) == 1 and rest[0].startswith("make: ***")
