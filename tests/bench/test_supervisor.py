"""However a child ends, its outcome says how, and nothing hangs."""

from __future__ import annotations

import time

import pytest

from bench.supervisor import supervise


def ended(end: str, **limits):
    settings = {"deadline_s": 60.0} | limits
    return supervise("tests.bench.stub_child", {"end": end}, **settings)


def test_a_result_comes_back_and_progress_is_heard():
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
def test_a_death_is_an_error_with_its_reason(end, status, told):
    outcome = ended(end)
    assert outcome.status == status and outcome.stage == "work"
    assert told in outcome.detail


def test_a_hanging_child_is_stopped_at_the_deadline():
    began = time.monotonic()
    outcome = ended("hang", deadline_s=8.0)
    assert outcome.status == "timeout" and outcome.stage == "work"
    assert time.monotonic() - began < 60


def test_memory_runs_out_in_the_child_and_not_on_the_machine():
    assert ended("allocate", memory_bytes=1 << 30).status == "oom_host"


def test_a_hundred_megabytes_of_output_do_no_harm():
    outcome = ended("print")
    assert outcome.status == "ok"


def test_a_grandchild_that_holds_the_pipes_is_not_waited_for():
    began = time.monotonic()
    assert ended("orphan").status == "ok"
    assert time.monotonic() - began < 55
