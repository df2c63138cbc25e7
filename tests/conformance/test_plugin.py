"""A package of someone else's adds a method and a model family: no line changes here."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import pytest
import torch

from bench.conformance import check, families
from bench.conformance.__main__ import requested
from bench.errors import RequestError
from bench.scaffold import new_method
from tests.conftest import ROOT

PACKAGE = {
    "toy_bench/__init__.py": "",
    "toy_bench/method.py": '''
from dataclasses import dataclass

from methods.base import Method
from methods.vanilla import exact_attention


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
def installed(tmp_path_factory, tiny_t5):
    """The environment of a user who installed the package."""
    site = tmp_path_factory.mktemp("site")
    for name, text in PACKAGE.items():
        file = site / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("{path}", str(tiny_t5)).lstrip())
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(site), known]))}


def run(environment, *words):
    done = subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def test_it_is_listed(installed):
    code, output = run(installed, "bench", "ls")
    assert code == 0 and "A toy method" in output and "A toy family" in output


def test_it_runs(installed, tmp_path):
    code, output = run(
        installed, "bench", "run", "method=toy", "model=toy_t5", "length=256", "n=2", "threads=1",
        f"results={tmp_path}",
    )  # fmt: skip
    assert code == 0, output
    assert list(tmp_path.rglob("*.parquet"))


def test_it_passes_the_check_in_its_own_family_too(installed):
    code, output = run(installed, "bench.conformance", "method=toy")
    assert code == 0, output
    lines = output.splitlines()
    assert [line.split() for line in lines if line.startswith("toy")] == [["toy", "ok"]], output
    assert len(lines) == len(families()) + 1 and all(line.endswith("ok") for line in lines)


@pytest.mark.parametrize("words", [[], ["method=vxx"], ["method=vcc", "method.stop=3"], ["vcc"]])
def test_a_wrong_request_is_refused(words):
    with pytest.raises(
        RequestError, match=r"method=NAME|unknown method 'vxx'|parameter of vcc 'stop'"
    ):
        requested(words)


# --- bench new method --------------------------------------------------------------------------


def test_a_new_method_passes_as_it_stands():
    files = {path.relative_to(ROOT): text for path, text in new_method("sliding_window").items()}
    assert [*map(str, files)] == ["methods/sliding_window.py", "conf/method/sliding_window.yaml"]
    assert sum(len(text.splitlines()) for text in files.values()) <= 40
    code, conf = files.values()
    assert "target: methods.sliding_window:SlidingWindow" in conf
    module = types.ModuleType("methods.sliding_window")
    sys.modules[module.__name__] = module  # a dataclass looks its module up
    try:
        exec(compile(code, "sliding_window.py", "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]
    method = module.SlidingWindow()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for name, family in families().items():
            assert check(method, family.tiny(method)) == [], name
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("name", "words"), [("2fast", "lower-case"), ("Fast", "lower-case"), ("vcc", "already")]
)
def test_a_name_that_cannot_be_is_refused(name, words):
    with pytest.raises(RequestError, match=words):
        new_method(name)
