"""What a child says that its samples took is compared with the time between its messages."""

from __future__ import annotations

import time

import pytest

from bench.execution import claimed_time
from bench.execution.claimed_time import LOOP_STARTS, ClaimedTime, Disagreement
from bench.execution.worker import Report

METHOD, VANILLA = 7, 8
MS = 1_000_000
DELAYS = [0] * 9 + [40 * MS]
"""Of a busy machine: one sample of ten waits."""


def disagreement(*samples: tuple[int, int, int], waited_ns: int = 0) -> Disagreement | None:
    """For samples of an arm, with nanoseconds that passed and those that the child claims."""
    with ClaimedTime() as claims:
        claims.waited_ns = waited_ns
        claims.messages, now = [(b"%d 0" % LOOP_STARTS, 0)], 0
        for arm, passed_ns, claimed_ns in samples:
            now += passed_ns
            claims.messages.append((b"%d %d" % (arm, claimed_ns), now))
        return claims.disagreement()


@pytest.mark.parametrize("waits", ["in a sample", "between samples"])
def test_an_honest_child_agrees_however_long_it_waits(waits):
    samples = []
    for delay in DELAYS:
        timed = 2 * MS + (delay if waits == "in a sample" else 0)
        samples += [(METHOD, 2 * MS + delay + 20_000, timed), (VANILLA, 5 * MS, 5 * MS - 20_000)]
    assert disagreement(*samples) is None
    assert disagreement() is None


def test_a_clock_that_hides_a_share_of_each_sample_is_found():
    samples = [(METHOD, 5 * MS, 4 * MS), (VANILLA, 5 * MS, 5 * MS)] * 5
    found = disagreement(*samples)
    assert found and not found.excused
    assert found.text.startswith("replaces the clock: a sample of 4.0 ms took 5.0 ms")


def test_waits_of_the_child_excuse_what_passes_between_its_samples():
    """On a busy machine it waits after a sample, before it can send how long that took."""
    samples = [(METHOD, 251 * MS, 243 * MS), (VANILLA, 250 * MS, 250 * MS)] * 10
    found = disagreement(*samples, waited_ns=80 * MS)
    assert found and found.excused
    assert found.text.startswith("busy machine: a sample of 243.0 ms took 251.0 ms")
    found = disagreement(*samples, waited_ns=8 * MS)
    assert found and not found.excused


def test_waits_do_not_excuse_more_time_than_passed():
    found = disagreement((VANILLA, 5 * MS, 8 * MS), waited_ns=1000 * MS)
    assert found and not found.excused


def test_a_kernel_that_counts_no_waits_accuses_nobody(monkeypatch):
    monkeypatch.setattr(claimed_time.linux, "counts_waits", lambda: False)
    found = disagreement(*[(METHOD, 5 * MS, 4 * MS), (VANILLA, 5 * MS, 5 * MS)] * 5)
    assert found and found.excused


def test_the_waits_of_a_child_are_read(monkeypatch):
    waits = iter([0, 7 * MS, 9 * MS])
    monkeypatch.setattr(claimed_time.linux, "waited_ns", lambda task: next(waits))
    with ClaimedTime() as claims:
        claims.child = 123
        claims.messages = [(b"0 0", 0)]
        for _ in range(3):
            claims.receive()
        assert claims.waited_ns == 2 * MS


def test_a_clock_that_gives_hidden_time_back_in_another_arm_is_found():
    assert disagreement((METHOD, 5 * MS, 2 * MS), (VANILLA, 5 * MS, 8 * MS)) is not None
    shifted = [(METHOD, 10 * MS, 10 * MS - 100_000), (VANILLA, 10 * MS, 10 * MS + 100_000)] * 20
    found = disagreement(*shifted)
    assert found and "took 200.0 ms" in found.text


def test_work_between_the_samples_of_a_loop_is_found():
    assert disagreement(*[(METHOD, 900 * MS, 500 * MS)] * 2) is not None


def test_the_kernel_stamps_what_a_report_sends():
    with ClaimedTime() as claims:
        report = Report(claims.child_end.fileno(), claims.child_end.fileno())
        before = time.time_ns()
        report.claim(LOOP_STARTS, 0)
        report.claim(METHOD, 5)
        time.sleep(0.01)
        claims.receive()
        contents = [content for content, _ in claims.messages[-2:]]
        assert contents == [b"0 0", b"7 5"]
        assert before <= claims.messages[-2][1] <= claims.messages[-1][1] < time.time_ns() - 9 * MS


def test_samples_whose_messages_do_not_fit_are_left_out():
    with ClaimedTime() as claims:
        report = Report(claims.child_end.fileno(), claims.child_end.fileno())
        report.claim(LOOP_STARTS, 0)
        while report.sent:
            report.claim(METHOD, 0)
        claims.receive()
        report.claim(METHOD, 10 * MS)  # of which nobody knows when it began
        report.claim(METHOD, 0)
        claims.receive()
        assert report.sent and claimed_time.LOOP_STARTS == 0
        assert claims.disagreement() is None
