"""Calls timed on a GPU, and its memory, with stand-ins for torch.cuda and its events."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from bench.host import gpu
from bench.measure import integrity, memory, timed_call
from bench.measure.integrity import IntegrityError
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.measure.timed_call import Arm, GpuTimer, Process
from bench.models.bert import BertFamily
from methods.base import SequenceInfo
from methods.vanilla import Vanilla


class Event:
    """A stand-in for torch.Event on the host's clock, in milliseconds."""

    def __init__(self, device: str, enable_timing: bool):
        assert device == "cuda" and enable_timing

    def record(self) -> None:
        self.at = time.perf_counter() * 1e3

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.fixture
def cuda(monkeypatch):
    """Stand-ins for functions of torch.cuda; the list of their calls, in order."""
    calls: list[str] = []

    def stand_in(name, value=None):
        monkeypatch.setattr(torch.cuda, name, lambda *_: calls.append(name) or value)

    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        stand_in(name)
    stand_in("memory_allocated", 100)
    stand_in("max_memory_allocated", 740)
    stand_in("max_memory_reserved", 2048)
    stand_in("current_stream", "default")
    stand_in("set_stream")
    monkeypatch.setattr(timed_call, "flush_buffer", lambda: Buffer(calls))
    monkeypatch.setattr(torch, "Event", Event)
    return calls


class Buffer:
    """A stand-in for the buffer that clears the cache."""

    nbytes = 100 << 20

    def __init__(self, calls: list[str]):
        self.calls = calls

    def zero_(self) -> None:
        self.calls.append("flush")


def arm_on(process: Process) -> Arm:
    batch = (torch.randint(5, 60, (1, 40)), SequenceInfo())
    family = BertFamily.tiny(Vanilla())
    return Arm(family, Vanilla(), PerturbedInputs([batch]), "cuda", process)


@pytest.fixture
def process(cuda):
    process = Process()
    process.gpu_timer = GpuTimer()
    cuda.clear()
    return process


def test_on_a_gpu_events_are_timed_and_the_wall_time_is_kept(cuda, process):
    arm = arm_on(process)
    with torch.inference_mode():
        times = [arm(i) for i in range(4)]
    assert all(0 < t <= wall for t, wall in zip(times, arm.wall, strict=True))
    assert arm.walls(2) == [sum(arm.wall[:2]) // 2, sum(arm.wall[2:]) // 2]
    timed_call.check_streams(arm.left, min(times))


def test_on_a_gpu_the_cache_is_cleared_before_each_call_and_outside_its_time(
    cuda, process, monkeypatch
):
    arm = arm_on(process)

    def flush():
        cuda.append("flush")
        time.sleep(0.05)

    monkeypatch.setattr(process.gpu_timer.buffer, "zero_", flush)
    monkeypatch.setattr(arm, "prepared", lambda i, drawn: lambda: torch.randn(1, 3))
    monkeypatch.setattr(integrity, "check_attention_ran", lambda *_: None)
    times = [arm(i) for i in range(3)]
    one = ["flush", "synchronize", "current_stream", "synchronize", "current_stream"]
    assert cuda == 3 * one
    assert min(times) < 0.05e9


def test_work_on_another_stream_is_an_error(cuda, process, monkeypatch):
    """Synchronizing the device after the last event of the current stream shows its end."""
    arm = arm_on(process)
    working: list[bool] = []

    def forward(*_):
        working.append(True)
        return torch.randn(1, 3)

    def synchronize():
        time.sleep(0.02 if working else 0)
        working.clear()

    monkeypatch.setattr(arm, "prepared", lambda i, drawn: forward)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(integrity, "check_attention_ran", lambda *_: None)
    times = [arm(i) for i in range(3)]
    with pytest.raises(IntegrityError, match=r"works on another CUDA stream: 2\d\.\d ms after"):
        timed_call.check_streams(arm.left, max(times))


def test_another_current_stream_is_an_error(cuda, process, monkeypatch):
    arm = arm_on(process)
    streams = iter(("default", "side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: next(streams))
    with torch.inference_mode(), pytest.raises(IntegrityError, match="another CUDA stream is"):
        arm(0)
    assert cuda[-1] == "set_stream"


@pytest.mark.parametrize(("cache", "flushed"), [(50 << 20, 100 << 20), (1 << 20, 64 << 20)])
def test_twice_the_cache_is_overwritten(cache, flushed, monkeypatch):
    facts = SimpleNamespace(L2_cache_size=cache)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: facts)
    monkeypatch.setattr(torch, "empty", lambda size, **_: SimpleNamespace(nbytes=size))
    assert timed_call.flush_buffer().nbytes == flushed


def test_gpu_memory_is_reset_after_workspaces_are_allocated(cuda):
    figures = memory.cuda_peak(lambda: cuda.append("forward"))
    assert cuda.index("forward") < cuda.index("reset_peak_memory_stats")
    assert cuda[cuda.index("reset_peak_memory_stats") :].count("forward") == 1
    assert figures["gpu_alloc_delta_bytes"] == 640 and figures["gpu_reserved_bytes"] == 2048
    assert figures["gpu_nvml_bytes"] is None  # there is no driver


def test_a_driver_that_does_not_know_processes_tells_the_growth(cuda, monkeypatch):
    monkeypatch.setattr(gpu, "used_bytes", lambda: 5 << 30)
    figures = memory.cuda_peak(lambda: None, used_before=2 << 30)
    assert figures["gpu_nvml_bytes"] == 3 << 30 and "growth of the whole" in figures["mem_reason"]
    monkeypatch.setattr(gpu, "process_bytes", lambda pid: 1 << 30)
    figures = memory.cuda_peak(lambda: None, used_before=2 << 30)
    assert figures["gpu_nvml_bytes"] == 1 << 30 and "mem_reason" not in figures
