"""Checks of precision, and of state that a method leaves for vanilla."""

import random
import subprocess
import threading

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench.measure import integrity, latency, memory, paired_timing
from bench.measure.integrity import IntegrityError
from bench.measure.paired_timing import PairSamples, PairShare
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, Process, Sample
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
        found = latency.estimate(family, (ids, SequenceInfo()), "float32")
    assert found["dtype_effective"] == dtype, found


def test_no_two_processes_get_the_same_inputs():
    batch = (torch.arange(64)[None], SequenceInfo())
    first, second = (PerturbedInputs([batch]).perturbed(0)[0].clone() for _ in range(2))
    assert not torch.equal(first, second)


@torch.inference_mode()
def test_what_a_method_changes_of_torchs_state_is_put_back_and_noted():
    process = Process()
    torch.set_flush_denormal(True)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    FlopCounterMode(display=False).__enter__()
    torch.set_default_dtype(torch.float64)
    process.restore()
    process.restore()
    modes = "torch's function or dispatch modes"
    assert integrity.STATE[modes][0]() == process.state[modes]
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == threads
    assert not integrity.STATE["flushing of denormals"][0]()
    changed = ("torch's threads", "the default dtype", "flushing of denormals", modes)
    assert process.notes == [f"the method changes global state: {name}" for name in changed]


@torch.inference_mode()
def test_answers_of_timed_calls_are_compared_with_vanillas_on_the_same_input(alone):
    """If a method is exact in the checks but not while it is timed, its row contains the error."""
    method = BigBird(block_size=4, random=1)
    family, ids = BertFamily.tiny(method), torch.randint(5, 60, (1, 64))
    own, base = (
        Arm(family, one, PerturbedInputs([(ids.clone(), SequenceInfo())]), "cpu")
        for one in (method, Vanilla())
    )
    share, coin = PairShare(3, 3, 2), random.Random(0)
    samples = paired_timing.sample_pairs(own, base, share, coin, lambda done: None)
    assert len(samples.rel_l2) == 6 and min(samples.rel_l2) > 1e-3
    same = paired_timing.sample_pairs(base, base.of(Vanilla()), share, coin, lambda done: None)
    assert max(same.rel_l2) < 1e-5 and set(same.top1) == {1.0}


def test_waits_for_a_processor_are_left_out_where_ratios_are_steadier_without(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    pairs = [(Sample(200 + wait, wait), Sample(100, 0)) for wait in (0, 50, 900, 10, 400)]
    steadier = PairSamples(pairs, [], "", [], [])
    assert steadier.sides(pairs) == ([200] * 5, [100] * 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert steadier.sides(pairs)[0] == [200, 250, 1100, 210, 600]


def test_a_thread_or_a_process_that_is_left_behind_is_an_error():
    finished, thread = threading.Event(), None
    try:
        thread = threading.Thread(target=finished.wait)
        thread.start()
        with pytest.raises(IntegrityError, match="works on another thread"):
            integrity.check_python_threads()
    finally:
        finished.set()
        thread.join()
    with subprocess.Popen(["sleep", "60"]) as child:
        with pytest.raises(IntegrityError, match="works in another process"):
            integrity.check_processes()
        child.kill()


@pytest.mark.skipif(not memory.can_reset(), reason="the high-water mark can't be reset here")
def test_a_forward_that_resets_the_high_water_mark_is_an_error():
    with pytest.raises(IntegrityError, match="high-water mark was reset"):
        memory.check_high_water_mark(memory.reset_high_water_mark, 1 << 20)


@pytest.mark.skipif(not memory.can_reset(), reason="the high-water mark can't be reset here")
def test_a_thread_that_ends_late_does_not_look_like_a_reset(monkeypatch):
    """It frees its stack between the two readings of the check."""
    stack_pages = 200
    with memory.touched(stack_pages):
        base = memory.resident_bytes()
    monkeypatch.setattr(memory, "resident_bytes", lambda: base)
    memory.check_high_water_mark(lambda: None, 1 << 20)
