"""The build of the native kernels: compiled once, and torch with a reason where it can't be."""

import pytest
import torch

from methods import kernels
from methods.base import AttentionCall, SequenceInfo
from methods.iceformer.iceformer import IceFormer
from methods.kernels import build
from methods.parts import widths
from methods.vanilla import Vanilla
from tests.methods.native import inputs, native


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """Sets variables for a separate build in a separate cache."""

    def set_variables(**variables):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        build.load.cache_clear()

    yield set_variables
    build.load.cache_clear()


def run():
    """Outputs and kernels of three methods."""
    query, key, value = inputs(1, 100, 16, heads=2)
    methods = [IceFormer(), IceFormer(search="dci"), Vanilla(kernel="native")]
    call = AttentionCall(SequenceInfo(), 0.25, 0)
    outputs = [method.attend(query, key, value, call) for method in methods]
    return outputs, [method.kernel_used for method in methods]


def test_without_a_compiler_torch_runs_and_says_so(environment, tmp_path):
    with_compiler, _ = run()
    environment(PATH=str(tmp_path), CXX="")
    outputs, used = run()
    assert all(one.startswith("torch (") for one in used)
    if "this CPU" not in used[0]:
        assert all("no compiler" in one for one in used)
    for output, expected in zip(outputs, with_compiler, strict=True):
        torch.testing.assert_close(output, expected, rtol=1e-4, atol=1e-5)


@native
def test_it_is_built_once_and_says_so(environment, tmp_path, capsys):
    environment()
    run()
    assert "compiling" in capsys.readouterr().err
    (built,) = (tmp_path / "cache" / "longctx-bench").iterdir()
    assert built.suffix == ".so"
    environment()
    _, used = run()
    assert "compiling" not in capsys.readouterr().err
    assert used == [kernels.name("int8"), kernels.name(), kernels.name()]


@native
def test_a_broken_compiler_is_a_reason(environment, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho 'error: no room' >&2; exit 1\n")
    compiler.chmod(0o755)
    environment(CXX=str(compiler))
    _, used = run()
    assert used == ["torch (it can't be built or loaded: error: no room)"] * 3
    assert not any((tmp_path / "cache" / "longctx-bench").iterdir())


def test_calls_that_differ_are_all_noted():
    method = Vanilla(kernel="native")
    query, key, value = inputs(1, 10, 16)
    for _ in range(2):
        method.attend(query, key, value, AttentionCall(SequenceInfo(), 0.25, 0, dropout=0.0))
        method.attend(
            query.double(), key.double(), value.double(), AttentionCall(SequenceInfo(), 0.25, 0)
        )
    first, *others = method.kernel_used.split("; ")
    if kernels.available() is None:
        assert first == kernels.name() and others == ["torch (not float32 or bfloat16)"]
    else:
        assert first == f"torch ({kernels.available()})" and not others


@native
def test_a_lower_width_is_forced_by_name(monkeypatch, request):
    lowest = widths.available()[-1].name
    monkeypatch.setenv("BENCH_KERNELS", lowest)
    build.load.cache_clear()
    request.addfinalizer(build.load.cache_clear)
    _, used = run()
    assert used == [f"native {lowest} {products}" for products in ("int8", "float32", "float32")]


def test_a_width_that_this_cpu_has_not_is_refused(environment):
    environment(BENCH_KERNELS="avx1024")
    with pytest.raises(ValueError, match=r"^BENCH_KERNELS is 'avx1024'; it takes "):
        Vanilla(kernel="native")
