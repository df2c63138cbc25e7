"""A method that cheats is caught, or gains nothing: its error is shown next to its speed, or its
ratio comes from times that it can't change. A correct one passes."""

import pytest

import bench
from bench.request import plugins
from bench.rows import row_facts
from bench.rows.store import Store
from bench.status import Status, Verdict
from bench.terminal import row_table
from tasks.base import Row
from tests.cheaters.peeks import Peeks
from tests.conftest import ROOT
from tests.trust.common import bench_run

CONF = ROOT / "tests" / "cheaters" / "conf"
CAUGHT = {
    "cached": "returns a cached output",
    "cached by=address": "returns a cached output",
    "cached by=first": "returns a cached output",
    "cached by=noisy": "returns a cached output",
    "cached by=late": "returns a cached output",
    "in_place": "changes its input in place",
    "in_place what=query": "changes its input in place",
    "in_place what=caught": "changes its input in place",
    "in_place what=sequence": "changes its input in place",
    "in_place what=weights": "changes the model's weights",
    "idle": "never calls its own attention",
    "moody when=skips": "never calls its own attention",
    "sleeper how=lazy": "returns a Lazy, which may compute later",
    "frees": "frees memory before it is read",
    "threaded when=load": "works on another thread",
    "threaded when=process": "works in another process",
    "spinner how=python start=1": "works on another thread",
    "spinner how=python start=20": "works on another thread",
    "spinner how=child start=20": "works in another process",
    "moody when=end measure=quick": "gives another answer when it is timed than when it is scored",
    "later measure=quick": "gives another answer when it is timed than when it is scored",
}
"""Words of a request → what its cell ends with."""
NOTED = {
    "meddler what=threads": "torch's threads",
    "meddler what=precision": "the precision of matrix products",
    "meddler what=deterministic": "deterministic algorithms",
    "meddler what=denormals": "flushing of denormals",
    "meddler what=flash": "flash attention",
    "meddler what=attention": "torch's attention function",
    "meddler what=anomalies": "anomaly detection",
}
"""What is put back after each call, and noted."""
OF_NO_USE = [
    "vanilla_eager",
    # A cache by every token: no input is repeated.
    "cached by=all",
    "remembers",
    "coarse",
    # Clocks, and slowing vanilla in the method's process: neither affects the supervisor's clock.
    "slow_clock",
    "slow_clock how=calls",
    "slow_clock how=loop",
    "shifting_clock",
    "alarm",
    "threaded",
    "sleeper",
    "sleeper how=profile",
    "patcher what=forward",
    # Several processes: the one of a glance is a single draw of how slow vanilla is outside.
    "patcher what=shared measure=quick",
    "patcher what=own",
    "slowed_vanilla",
    "slowed_vanilla by=proxy",
    "meddler what=profile",
    "meddler what=profiler",
    "meddler what=priority",
    "meddler what=hook",
    "spinner how=native start=1",
    # Functions that decide the order and the checks, in the method's process.
    "patcher what=equal",
    "patcher what=norm",
    "patcher what=coin",
]
SHOWN = ["moody when=timed", "moody when=end"]
"""Faster, with the error of the timed calls next to the ratio."""


@pytest.fixture(autouse=True)
def cheaters_configured(monkeypatch):
    monkeypatch.setenv("BENCH_CONF_PATH", str(CONF))
    plugins.conf_dirs.cache_clear()
    yield
    monkeypatch.undo()
    plugins.conf_dirs.cache_clear()


@pytest.fixture
def row(tiny_t5, tmp_path, monkeypatch):
    """A function from the words of a cheater to its cell's row."""
    (tmp_path / "remembered").mkdir()
    monkeypatch.setenv("REMEMBERED", str(tmp_path / "remembered"))
    monkeypatch.setenv("LATER_SEEN", str(tmp_path / "seen"))

    def run(words: str):
        name, *changes = words.split()
        request = [f"model={tiny_t5}", "length=256", "n=2", "threads=1", f"method={name}"]
        if not any(change.startswith("measure=") for change in changes):
            request.append("measure=glance")
        of_method = [c if c.startswith("measure=") else f"method.{c}" for c in changes]
        cell = bench.compose(*request, *of_method)
        return bench.run(cell, tmp_path / "rows", progress=lambda *_: None)

    return run


@pytest.mark.parametrize("words", CAUGHT)
def test_what_a_check_finds_is_an_error_that_names_it(row, words):
    found = row(words)
    assert found["status"] == Status.ERROR
    assert f"integrity check failed: {CAUGHT[words]}" in found["status_detail"]


@pytest.mark.parametrize("words", NOTED)
def test_what_is_changed_of_torchs_state_is_put_back_and_noted(row, words):
    found = row(words)
    assert found["status"] == Status.OK, found["status_detail"]
    assert f"the method changes global state: {NOTED[words]}" in found["noise_reason"]
    assert found["lat_verdict"] != Verdict.FASTER


@pytest.mark.parametrize("words", OF_NO_USE)
def test_a_cheat_that_no_check_finds_is_of_no_use(row, words):
    found = row(words)
    assert found["status"] == Status.OK, found["status_detail"]
    assert found["lat_verdict"] != Verdict.FASTER, found["lat_ratio"]
    assert found["lat_timed_rel_l2"] < 0.05 and found["lat_outside_rel_l2"] < 0.05


@pytest.mark.parametrize("words", SHOWN)
def test_a_wrong_answer_in_timed_calls_is_shown_next_to_their_ratio(row, words):
    found = row(words)
    assert found["status"] == Status.OK, found["status_detail"]
    assert found["lat_timed_rel_l2"] > 0.05 and found["fid_rel_l2"] is not None


@pytest.mark.parametrize(("share", "agrees"), [(0.5, False), (0, False), (1, True)])
def test_a_cache_that_reports_half_of_what_it_reads_disagrees(tmp_path, share, agrees):
    cell = bench.compose(
        "method=understates", f"method.share={share}", "model=embedded-llama", "length=256",
        "task=longeval_lines", "n=1", "threads=1", "measure=glance", "new_tokens=4",
    )  # fmt: skip
    found = bench.run(cell, tmp_path, progress=lambda *_: None)
    assert found["status"] == Status.OK, found["status_detail"]
    assert found["kv_read_reported_pct"] == pytest.approx(100 * share, abs=0.1)
    assert row_facts.kv_read_agrees(found) is agrees
    assert found["mem_agree"] is agrees
    shown = {label.strip(): rest for label, *rest in row_table._decoding(found)}
    assert ("read as reported" in shown) is not agrees


def test_no_label_is_in_a_process_that_predicts(tiny_t5, tmp_path):
    """Peeks is exact attention until it finds a label."""
    rows = [Row("1", "query", "document", ("a label",))]
    assert "a label" in Peeks("rows").labels() and "a label" in Peeks("objects").labels()
    del rows
    run = bench_run(
        CONF, tiny_t5, tmp_path, "-m", "method=peeks", "method.where=rows,objects",
        "measure=quality",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    stored = Store(tmp_path).rows().to_pylist()
    assert [row["status"] for row in stored] == [Status.OK] * 2
    for row in stored:
        assert row["predictions_sha256"] == row["base_predictions_sha256"]
