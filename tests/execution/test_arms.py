"""What a process sets up before it measures or answers."""

from __future__ import annotations

import os

import pytest
import torch
from torch.utils import deterministic

import bench
from bench.execution import arms
from bench.measure import memory

MIB = 1 << 20


@pytest.fixture
def prepared(monkeypatch):
    """A function that prepares this process, and leaves it as it was."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None)
    was, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    cell = bench.compose("method=vanilla", "length=256", "n=2", f"threads={threads}")
    yield lambda **how: arms.prepare(cell, **how)
    torch.use_deterministic_algorithms(was)


@pytest.mark.parametrize("how", [{"timed": True}, {"costs": True}])
def test_what_is_measured_pays_for_no_memory_that_it_never_touches(prepared, how):
    prepared(**how)
    assert torch.are_deterministic_algorithms_enabled()
    assert not deterministic.fill_uninitialized_memory
    if memory.can_reset():
        _, peak = memory.peak(lambda: torch.empty(64 * MIB, dtype=torch.uint8))
        assert peak < 8 * MIB


def test_what_answers_sees_memory_that_it_never_wrote_as_nan(prepared):
    prepared()
    assert torch.empty(1000).isnan().all()
