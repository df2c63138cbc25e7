"""The native kernels as a build: made once, and torch in words where they can't be."""

import os
import subprocess
import sys

import pytest

from methods import kernels
from methods.base import Call, Sequence
from methods.vanilla import Vanilla
from tests.methods.native import inputs, native

NATIVE = ["native avx512 int8", "native avx512 float32", "native avx512 float32"]
PROGRAM = """
import torch
from methods import kernels
from methods.base import Call, Sequence
from methods.iceformer import IceFormer
from methods.vanilla import Vanilla
torch.manual_seed(0)
inputs = [torch.randn(1, 2, 100, 16) for _ in range(3)]
for method in (IceFormer(), IceFormer(search="dci"), Vanilla(kernel="native")):
    output = method.attend(*inputs, Call(Sequence(), 0.25, 0))
    print(f"{output.sum():.4f}", method.kernel_used, sep="|")
"""


def run(**environment):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split("|") for line in done.stdout.splitlines()]
    return [float(number) for number, _ in lines], [used for _, used in lines], done.stderr


def test_without_a_compiler_torch_runs_and_says_so(tmp_path):
    numbers, used, _ = run(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"), CXX="")
    assert len(used) == 3 and all(one.startswith("torch (") for one in used)
    if kernels.available() is None:
        assert all("no compiler" in one for one in used)
        with_compiler, used, _ = run()
        assert used == NATIVE
        assert numbers == pytest.approx(with_compiler, abs=2e-3)


@native
def test_it_is_built_once_and_says_so(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    _, _, said = run(**cache)
    assert "compiling" in said
    built = list((tmp_path / "longctx-bench").iterdir())
    assert len(built) == 1 and built[0].suffix == ".so"
    _, used, said = run(**cache)
    assert "compiling" not in said and used == NATIVE


@native
def test_a_broken_compiler_is_a_reason(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'error: no room' >&2; exit 1\n")
    compiler.chmod(0o755)
    _, used, _ = run(CXX=str(compiler), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert used == ["torch (it can't be built or loaded: error: no room)"] * 3
    assert not any((tmp_path / "cache" / "longctx-bench").iterdir())


def test_calls_that_differ_are_all_noted():
    method = Vanilla(kernel="native")
    query, key, value = inputs(1, 10, 16)
    for _ in range(2):
        method.attend(query, key, value, Call(Sequence(), 0.25, 0, dropout=0.0))
        method.attend(query.double(), key.double(), value.double(), Call(Sequence(), 0.25, 0))
    first, *others = method.kernel_used.split("; ")
    if kernels.available() is None:
        assert first == "native avx512 float32" and others == ["torch (not float32)"]
    else:
        assert first == f"torch ({kernels.available()})" and not others
