"""A third-party package adds a method and a model family without a change in this project."""

import os
import subprocess
import sys
import types
from typing import Any

import pytest

from bench.cli.inspect_commands import new_method
from bench.conformance import check, families
from bench.conformance.__main__ import main as check_command
from bench.request import plugins
from tests.conftest import ROOT

PACKAGE = {
    "toy_bench/__init__.py": "",
    "toy_bench/method.py": '''
from dataclasses import dataclass

from methods.base import Method
from methods.parts.attention import exact_attention


@dataclass(frozen=True)
class Toy(Method):
    """Exact attention, with a parameter that changes nothing."""

    step: int = 1

    def attend(self, query, key, value, call):
        return exact_attention(query, key, value, call)
''',
    "toy_bench/family.py": '''
from bench.models.t5 import T5Family


class ToyFamily(T5Family):
    """T5 without the last norm of its encoder."""

    def encode(self, ids, sequence):
        encoder = self.model.get_encoder()
        return self.method.encode(self.layers, encoder.embed_tokens(ids), sequence)
''',
    "toy_bench/conf/method/toy.yaml": """
# A toy method.
name: toy
target: toy_bench.method:Toy
step: 2
""",
    "toy_bench/conf/model/toy_t5.yaml": """
# A toy family.
name: toy_t5
family: toy_bench.family:ToyFamily
path: {path}
weights: pretrained-swap
""",
    "toy_bench-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: toy-bench\nVersion: 1.0\n",
    "toy_bench-1.0.dist-info/entry_points.txt": "[bench.conf]\ntoy = toy_bench:conf\n",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory, tiny_t5):
    """The folder that the package is installed in."""
    site = tmp_path_factory.mktemp("site")
    for name, text in PACKAGE.items():
        file = site / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{path}", str(tiny_t5)).lstrip())
    return site


@pytest.fixture
def installed(site, monkeypatch):
    """The package installed for this process."""
    monkeypatch.syspath_prepend(str(site))
    plugins.conf_dirs.cache_clear()
    yield
    plugins.conf_dirs.cache_clear()


def test_it_runs(site, tmp_path):
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    words = ["run", "method=toy", "model=toy_t5", "length=256", "n=2", "threads=1"]
    words.append("measure=glance")
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words, f"results={tmp_path}"],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.rglob("*.parquet"))


def test_it_passes_the_check_in_its_own_family_too(installed, capsys, monkeypatch):
    every = families()
    assert {"toy", "t5", "lra"} <= set(every)
    monkeypatch.setattr(
        "bench.conformance.__main__.families",
        lambda: {name: every[name] for name in ("lra", "toy")},
    )
    assert check_command(["method=toy"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["lra", "ok"], ["toy", "ok"]
    ]  # fmt: skip


# --- bench new method --------------------------------------------------------------------------


def test_a_new_method_passes_as_it_stands():
    files = new_method("sliding_window")
    assert list(files) == [
        "methods/sliding_window.py",
        "conf/method/sliding_window.yaml",
        "tests/methods/test_sliding_window.py",
    ]
    assert sum(len(text.splitlines()) for text in files.values()) <= 60
    code, conf, tests = files.values()
    assert "target: methods.sliding_window:SlidingWindow" in conf
    module = types.ModuleType("methods.sliding_window")
    sys.modules[module.__name__] = module  # a dataclass looks its module up
    try:
        exec(compile(code, "sliding_window.py", "exec"), module.__dict__)
        names: dict[str, Any] = {}
        exec(compile(tests, "test_sliding_window.py", "exec"), names)
        for test in [value for name, value in names.items() if name.startswith("test_")]:
            test()
    finally:
        del sys.modules[module.__name__]
    method = module.SlidingWindow()
    for name, family in families().items():
        assert check(method, family.tiny(method)) == [], name
