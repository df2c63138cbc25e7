"""However a child ends, its outcome says how, and nothing hangs."""

from __future__ import annotations

import time

import pytest

from bench import runner, spawn
from bench.supervisor import supervise


@pytest.fixture(params=["alone", "forked"])
def ended(request):
    """A function from how a child should end, and its limits, to its outcome."""

    def run(end: str, **limits):
        settings = {"deadline_s": 60.0, "preloaded": request.param == "forked"} | limits
        return supervise("tests.bench.stub_child", {"end": end}, **settings)

    return run


def test_a_result_comes_back_and_progress_is_heard(ended):
    heard = []
    outcome = ended("well", progress=lambda *message: heard.append(message))
    assert (outcome.status, outcome.result) == ("ok", {"answer": 42})
    assert ("work", 0, 3) in heard


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("raise", "error", "ArithmeticError: seven is not eight"),
        ("segfault", "error", "SIGSEGV"),
        ("exit", "error", "last words"),
    ],
)
def test_a_death_is_an_error_with_its_reason(ended, end, status, told):
    outcome = ended(end)
    assert outcome.status == status and outcome.stage == "work"
    assert told in outcome.detail


def test_a_hanging_child_is_stopped_at_the_deadline(ended):
    began = time.monotonic()
    outcome = ended("hang", deadline_s=8.0)
    assert outcome.status == "timeout" and outcome.stage == "work"
    assert time.monotonic() - began < 60


def test_memory_runs_out_in_the_child_and_not_on_the_machine(ended):
    assert ended("allocate", memory_bytes=1 << 30).status == "oom_host"


def test_a_hundred_megabytes_of_output_do_no_harm(ended):
    outcome = ended("print")
    assert outcome.status == "ok"


def test_a_grandchild_that_holds_the_pipes_is_not_waited_for(ended):
    began = time.monotonic()
    assert ended("orphan").status == "ok"
    assert time.monotonic() - began < 55


def test_a_nursery_that_was_killed_is_an_error_and_the_next_child_has_another():
    def run(end: str, progress=None):
        return supervise(
            "tests.bench.stub_child", {"end": end}, deadline_s=60, progress=progress, preloaded=True
        )

    run("well")
    [nursery] = spawn._nurseries.values()
    outcome = run("hang", lambda *_: nursery.process.kill())
    assert outcome.status == "error" and "SIGKILL" in outcome.detail
    assert run("well").status == "ok"
    assert [*spawn._nurseries.values()] != [nursery]


def test_no_child_of_a_cell_reaches_for_the_network(ended):
    outcome = ended("offline", environment=runner.SETTINGS)
    assert outcome.result == {"hub": True, "datasets": True}, outcome.detail
