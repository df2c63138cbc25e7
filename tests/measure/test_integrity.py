"""Checks of precision and speed against what is physically possible, and of what a method leaves
behind for vanilla."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from bench.host import torch_host
from bench.measure import failed_check, integrity, physical_floor, precision, timed_call
from bench.measure.failed_check import IntegrityError
from bench.measure.other_work import OtherThreads
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm
from bench.models.bert import BertFamily
from methods.base import SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.vanilla import Vanilla
from tests.cheaters.coarse import Coarse


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (Vanilla(), "float32"),
        (BigBird(), "float32"),
        (Coarse("bfloat16"), "bfloat16 or less"),
        (Coarse("float16"), "float16 or tf32"),
    ],
)
def test_the_precision_inside_is_named(method, dtype):
    family = BertFamily.tiny(method)
    ids = torch.randint(5, 60, (1, 128), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = precision.estimate(family, (ids, SequenceInfo()), "float32")
    assert found["dtype_effective"] == dtype, found


@torch.inference_mode()
def test_a_call_faster_than_its_linear_layers_is_an_error(monkeypatch):
    monkeypatch.setattr(failed_check, "_failures", [])
    layer = torch.nn.Linear(8, 16)
    with physical_floor.counted() as work:
        layer(torch.ones(2, 10, 8))
    assert work.flops == 2 * 2 * 10 * 8 * 16
    physical_floor.check([1000], flops=2000, gemm_gflops=1.0)  # 667 ns at three times the peak
    with pytest.raises(IntegrityError, match="is faster than this machine"):
        physical_floor.check([600], flops=2000, gemm_gflops=1.0)


def test_half_precision_may_be_as_fast_as_float32(monkeypatch):
    peaks = {"bfloat16": 1.0, "float32": 100.0}
    monkeypatch.setattr(torch_host, "gemm_gflops", lambda dtype, device: peaks[dtype])
    assert physical_floor.peak_gflops("bfloat16", 2.0) == 100.0
    assert physical_floor.peak_gflops("float32", 120.0) == 120.0


def test_no_two_processes_get_the_same_inputs():
    batch = (torch.arange(64)[None], SequenceInfo())
    first, second = (PerturbedInputs([batch]).perturbed(0)[0].clone() for _ in range(2))
    assert not torch.equal(first, second)


def test_memory_that_vanilla_must_get_anew_is_an_error(monkeypatch):
    monkeypatch.setattr(failed_check, "_failures", [])
    arm = Arm(BertFamily.tiny(Vanilla()), Vanilla(), PerturbedInputs([]), "cpu")
    arm.guard.keeps_memory = True
    arm.other = [(0, 70_000_000)] * 20
    arm.faults = [10] * 18 + [5000] * 2  # the heap grew
    arm.check_memory_kept()
    arm.faults = [10]
    arm.check_memory_kept()
    arm.faults = [0] * 10 + [5000] * 10  # each time that the other arm ran before
    with pytest.raises(IntegrityError, match="gives memory back that vanilla needs"):
        arm.check_memory_kept()
    arm.guard.keeps_memory = False  # another allocator, which gives it back by itself
    arm.check_memory_kept()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_threads_that_are_moved_to_another_core_are_found(monkeypatch):
    monkeypatch.setattr(failed_check, "_failures", [])
    finished = threading.Event()
    worker = threading.Thread(target=finished.wait)
    worker.start()
    try:
        threads, cpus = OtherThreads(), os.sched_getaffinity(worker.native_id or 0)
        threads.check_affinity()
        os.sched_setaffinity(worker.native_id or 0, {min(cpus)})
        with pytest.raises(IntegrityError, match="the processor affinity of torch's threads"):
            threads.check_affinity()
        assert os.sched_getaffinity(worker.native_id or 0) == cpus
    finally:
        finished.set()
        worker.join()


@pytest.mark.parametrize(("wait_ms", "expected_ms"), [(0, 9), (5, 0)])
def test_a_wait_while_waiting_is_read_is_no_activity(monkeypatch, wait_ms, expected_ms):
    now = waited = 0

    def busy_machine() -> int:
        nonlocal now, waited
        now, waited = now + wait_ms, waited + wait_ms
        read = waited
        now, waited = now + wait_ms, waited + wait_ms
        return read

    monkeypatch.setattr(timed_call.linux, "waited_ns", busy_machine)
    monkeypatch.setattr(timed_call, "perf_counter_ns", lambda: now)
    one = Arm(BertFamily.tiny(Vanilla()), Vanilla(), PerturbedInputs([]), "cpu")
    before, entered = busy_machine(), now
    now += 100 + 9
    one.add_active(entered, before, 100)
    assert one.active == [expected_ms]


def test_waits_for_a_processor_are_no_work_outside_the_timed_region(monkeypatch):
    """A machine whose cores are taken gives no verdict; it doesn't accuse a method."""
    monkeypatch.setattr(failed_check, "_failures", [])
    monkeypatch.setattr(integrity.linux, "counts_waits", lambda: True)
    second = 10**9
    assert integrity.check_untimed_share(9 * second, 10 * second, 0) is None
    busy = integrity.check_untimed_share(5 * second, 10 * second, 4 * second)
    assert busy and busy.startswith("busy machine: 50% of the time is untimed")
    with pytest.raises(IntegrityError, match="50% of the time is untimed"):
        integrity.check_untimed_share(5 * second, 10 * second, second)
    monkeypatch.setattr(integrity.linux, "counts_waits", lambda: False)
    unknown = integrity.check_untimed_share(5 * second, 10 * second, 0)
    assert unknown and "doesn't count waits" in unknown
    assert integrity.check_untimed_calls([9 * second] * 3, [0] * 3, second)


def test_a_wait_between_two_readings_of_a_clock_is_not_hidden_time(monkeypatch):
    monkeypatch.setattr(timed_call.linux, "waited_ns", lambda: 5_000_000)
    one = Arm(BertFamily.tiny(Vanilla()), Vanilla(), PerturbedInputs([]), "cpu")
    one.hidden.append(5_000_000)
    one.add_active(0, 0, 0)
    one.check_clocks(call_ns=1)
