"""Cheaters are caught by name, and the honest are let through."""

from __future__ import annotations

import pytest

import bench
from bench import plugins
from bench.store import Store
from bench.supervisor import supervise
from tests.conftest import ROOT
from tests.trust.common import bench_run

CONF = ROOT / "tests" / "cheaters" / "conf"
CHEATS = {
    "cached": "returns a cached output",
    "in_place": "changes its input in place",
    "threaded": "works on another thread",
    "sleeper": "works or sleeps outside the timed region",
    "frees": "frees memory before it is read",
    "idle": "never calls its own attention",
    "later": "answers otherwise than in the first process",
    "peeks": "reads the labels",
}
SPEED = {
    "vanilla": None,
    "vanilla_eager": None,
    "vcc k=4 h=8 segment=64": None,
    "cached by=address": "returns a cached output",
    "cached by=first": "returns a cached output",
    "cached by=noisy": "returns a cached output",
    "cached by=late": "returns a cached output",
    # Known by every token: nothing comes twice, so there is nothing to gain, and nothing to see.
    "cached by=all": None,
    "in_place what=query": "changes its input in place",
    "in_place what=caught": "changes its input in place",
    "in_place what=sequence": "changes its input in place",
    "in_place what=weights": "changes the model's weights",
    "sleeper how=lazy": "may compute later",
    # These stay what they are until the process ends, so they come last.
    "threaded when=process": "works in another process",
    "threaded when=load": "works on another thread",
}
LABELS = {
    "vanilla": None,
    "vcc k=4 h=8 segment=64": None,
    "peeks how=caught": "a row's references",
    "peeks how=objects": "gc.get_objects searches the process",
    "peeks how=task": "imports tasks",
    "peeks how=load": "asks the task for them",
    "peeks how=stories": "imports tasks.seeds",
    "peeks how=made": "imports tasks.seeds",
}


@pytest.fixture(autouse=True)
def cheaters_known(monkeypatch):
    monkeypatch.setenv("BENCH_CONF_PATH", str(CONF))
    plugins.conf_dirs.cache_clear()
    yield
    monkeypatch.undo()
    plugins.conf_dirs.cache_clear()


def test_a_sweep_over_cheaters_ends_with_the_name_of_each_cheat(tiny_t5, tmp_path, monkeypatch):
    monkeypatch.setenv("LATER_SEEN", str(tmp_path / "seen"))
    fast = [name for name in CHEATS if name != "peeks"]
    bench_run(CONF, tiny_t5, tmp_path, "-m", f"method={','.join(fast)}", "measure=speed")
    said = bench_run(CONF, tiny_t5, tmp_path, "method=peeks", "measure=quality")
    rows = {row["method"]: row for row in Store(tmp_path).rows().to_pylist()}
    assert rows.keys() == CHEATS.keys(), said.stderr
    told = {name: (row["status"], row["status_detail"] or "") for name, row in rows.items()}
    honest = [
        name
        for name, cheat in CHEATS.items()
        if told[name][0] != "error" or cheat not in told[name][1]
    ]
    assert not honest, {name: told[name] for name in honest}
    assert all(row["value"] is None for row in rows.values())


@pytest.mark.parametrize("kind", ["speed", "quality"])
def test_variants_are_caught_and_the_honest_are_not(kind, tiny_t5, tmp_path):
    words = [f"model={tiny_t5}", "method=vanilla_eager", "length=256", "n=2", "threads=1"]
    cell = bench.compose(*words, f"measure={kind}")
    expected = SPEED if kind == "speed" else LABELS
    request = {
        "cell": cell.to_json(),
        "methods": {words: method_of(words) for words in expected},
        "results": str(tmp_path) if kind == "quality" else None,
    }
    outcome = supervise("tests.trust.variants", request, deadline_s=600)
    assert outcome.status == "ok", outcome.detail
    told = outcome.result["told"]
    wrong = {
        name: told[name]
        for name, reason in expected.items()
        if (told[name] is None) != (reason is None) or (reason or "") not in (told[name] or "")
    }
    assert not wrong


def method_of(words: str) -> dict[str, object]:
    """The configuration that 'name key=value …' stands for."""
    name, *changes = words.split()
    given = {key: value for key, _, value in (change.partition("=") for change in changes)}
    typed = {key: int(value) if value.isdigit() else value for key, value in given.items()}
    return {**plugins.conf("method", name), **typed}
