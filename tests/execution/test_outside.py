"""Calls timed by the supervisor's clock, in the method's process and in one without it."""

import contextlib
import random
import signal
import socket
import time
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest
import torch
from safetensors.torch import save

from bench.execution import outside
from bench.execution.supervisor import Limits, Outcome
from bench.rows.comparison import Comparison
from bench.rows.derived_columns import to_vanilla, witnessed
from bench.statistics.paired import Ratio, ratio_of_rounds
from bench.status import Status, Verdict


def samples(true: float = 0.8, inside: float = 1.0, method: float = 1.0) -> Comparison:
    """Samples of four rounds: the method takes `true` times vanilla's time. Next to the method,
    vanilla takes `inside` times its time alone; by the method's own clock, the method takes
    `method` times its time."""
    noise = random.Random(0)

    def times(mean: float, count: int) -> list[int]:
        return [int(1e8 * mean * noise.gauss(1, 0.004)) for _ in range(count)]

    return Comparison(
        samples_ns=times(true * method, 40),
        base_samples_ns=times(inside, 40),
        aa_first_samples_ns=times(inside, 13),
        aa_second_samples_ns=times(inside, 13),
        pair_process=[i // 10 for i in range(40)],
        outside_samples_ns=times(true, 16),
        base_outside_samples_ns=times(1.0, 16),
        outside_process=[i // 4 for i in range(16)],
    )


def test_a_method_that_slows_vanilla_next_to_it_gains_nothing():
    honest = to_vanilla(samples(), 0)
    assert honest.ratio == pytest.approx(0.8, rel=0.01) and honest.note is None
    assert honest.base_inside_outside_ratio == pytest.approx(1, abs=0.01)
    slowed = to_vanilla(samples(true=1.0, inside=1.5), 0)
    assert slowed.ratio == pytest.approx(1.0, rel=0.02)
    assert slowed.ratio_ci_lo < 1 < slowed.ratio_ci_hi
    assert slowed.verdict == Verdict.UNDECIDED, "both ratios must have the verdict"
    assert slowed.note == "vanilla was slowed next to the method, ×1.50"
    both = to_vanilla(samples(true=0.6, inside=1.5), 0)
    assert both.verdict == Verdict.FASTER and both.ratio == pytest.approx(0.6, rel=0.02)


def test_one_round_that_replaces_the_ratio_gives_no_verdict():
    given = samples(true=0.6, inside=1.5)
    one = to_vanilla(replace(given, outside_process=[0] * 16), 0)
    assert one.note == "vanilla was slowed next to the method, ×1.50"
    assert one.ratio_ci_hi < 1 and one.verdict == Verdict.UNDECIDED


def test_one_process_is_faster_only_if_its_turns_outside_are_too():
    one = replace(samples(true=0.7), outside_process=[0] * 16, pair_process=None)
    assert to_vanilla(one, 0).verdict == Verdict.FASTER
    # Both medians are as before, but a turn's ratio is anywhere from 0.3 to 1.5.
    base = [int(1e8 * (0.5 + i / 15)) for i in range(16)]
    mine = [int(0.7 * ns) for ns in reversed(base)]
    found = to_vanilla(replace(one, base_outside_samples_ns=base, outside_samples_ns=mine), 0)
    assert found.outside_ratio == pytest.approx(0.7, rel=0.01) and found.note is None
    assert found.ratio_ci_hi > 1 and found.verdict == Verdict.UNDECIDED


def test_where_times_outside_vary_the_interval_holds_theirs_too():
    given = samples(true=0.95, method=0.7)
    factors = [0.6, 1.6, 1.2, 0.8]
    disturbed = [int(ns * factors[i // 4]) for i, ns in enumerate(given.base_outside_samples_ns)]
    found = to_vanilla(replace(given, base_outside_samples_ns=disturbed), 0)
    assert found.ratio == pytest.approx(0.665, rel=0.01) and found.note is None
    assert found.ratio_ci_hi == pytest.approx(found.outside_ratio_ci_hi)
    assert found.verdict == Verdict.UNDECIDED


def test_a_clock_that_is_slow_in_the_methods_calls_gains_nothing():
    found = to_vanilla(samples(true=1.0, method=0.5), 0)
    assert found.ratio == pytest.approx(1.0, rel=0.02)
    assert found.verdict == Verdict.UNDECIDED
    assert found.note.startswith("by the supervisor's clock the method takes ×2.0")


def test_a_machine_that_is_busier_or_less_busy_meanwhile_accuses_nobody():
    names, given = ("outside_samples_ns", "base_outside_samples_ns"), samples()
    for factor in (0.5, 2.0):
        scaled = {name: [int(factor * ns) for ns in getattr(given, name)] for name in names}
        found = to_vanilla(replace(given, **scaled), 0)
        assert found.base_inside_outside_ratio == pytest.approx(1 / factor, rel=0.02)
        assert found.note is None and found.ratio == pytest.approx(0.8, rel=0.01)


def test_on_a_machine_that_is_too_busy_for_a_verdict_nothing_is_noted():
    busy = replace(samples(true=1.0, method=0.5), reason="busy machine: others took 93 %")
    found = to_vanilla(busy, 0)
    assert found.note is None and found.verdict == Verdict.UNDECIDED
    assert found.ratio == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("inside", [1.04, 0.9])
def test_small_differences_and_a_vanilla_that_is_faster_next_to_the_method_change_nothing(inside):
    found = to_vanilla(samples(inside=inside), 0)
    assert found.note is None and found.ratio == pytest.approx(0.8 / inside, rel=0.01)
    assert found.ratio_ci_lo == pytest.approx(found.ratio, rel=0.05)


def test_one_round_is_widened_and_rounds_without_both_times_are_left_out():
    one = ratio_of_rounds([([110, 110], [0, 0])], [([100], [0])])
    assert one.ratio == pytest.approx(1.1) and one.ci_lo < 1 < one.ci_hi and one.n == 1
    more = ratio_of_rounds([([110, 220, 7], [0, 1, 2])], [([100, 200], [0, 1])])
    assert more[:4] == pytest.approx((1.1, 1.1, 1.1, 0)) and more.n == 2
    with pytest.raises(ValueError, match="no round"):
        ratio_of_rounds([([1], [0])], [([1], [1])])


def test_samples_without_times_outside_are_as_before():
    names = ("outside_samples_ns", "base_outside_samples_ns", "outside_process")
    given = replace(samples(), **dict.fromkeys(names))
    assert to_vanilla(given, 0).base_outside_ns is None
    ratio = Ratio(0.8, 0.7, 0.9, 0.01, 40)
    assert witnessed(given, ratio) == (ratio, {})


def test_an_answer_of_another_size_is_wrong():
    exact = [save({"0": torch.ones(4), "1": torch.ones(4)})]
    found = outside._compared([save({"0": torch.ones(3)})], exact, b"", None)
    assert found == {"rel_l2": [1.0, 1.0], "top1": [0.0, 0.0]}
    with pytest.raises(ValueError, match="an answer is no tensor"):
        outside._compared([b"nonsense"], exact, b"", None)


def test_an_answer_that_differs_from_the_scored_one_is_a_fault():
    answer = torch.arange(4.0)
    given, exact = [save({"0": answer})], [save({"0": answer + 0.0})]
    scored = {"texts": [0], "answers": [answer.tolist(), answer.tolist()]}
    same = outside._compared(given, exact, save({"answer": answer}), scored)
    assert same == {"rel_l2": [0.0], "top1": [1.0]}
    other = outside._compared(given, exact, save({"answer": answer.flip(0)}), scored)
    assert other["fault"].startswith("gives another answer when it is timed than when it is scored")
    scored["answers"][1] = (answer.flip(0)).tolist()  # as random as that
    assert "fault" not in outside._compared(given, exact, save({"answer": answer.flip(0)}), scored)


class Ends:
    """A child that ends, or waits, instead of answering the first request."""

    def __init__(self, ends: bool) -> None:
        self.link, self.other = socket.socketpair()
        self.limits = Limits(time.monotonic() + 0.2)
        self.signals: list[signal.Signals] = []
        if ends:
            self.other.close()

    def send_signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def outcome(self) -> Outcome:
        return Outcome(Status.OOM_HOST, "load", "no memory for it")


@pytest.mark.parametrize(
    ("ends", "reason"), [(True, "no memory for it"), (False, "no answer before the deadline")]
)
def test_a_vanilla_that_can_not_answer_is_a_reason_and_the_method_goes_on(ends, reason):
    method, base = Ends(ends=False), Ends(ends)
    counts = {"calls": 1, "samples": 1, "dropped": 1}
    found = outside.time_both(counts, method, contextlib.nullcontext(base), None)
    assert found == {"reason": f"vanilla in a process without the method: {reason}"}
    assert method.signals[0] == signal.SIGSTOP and method.signals[-1] == signal.SIGCONT
    assert Connection(method.other.detach()).recv_bytes() == b"stop"
