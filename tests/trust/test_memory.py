"""A known allocation is measured correctly, after any earlier work, and can't be hidden.

It is measured as the difference of two cells that differ only in what they allocate, as a cell also
needs about 0.1 MiB for its token ids, hidden states and Python objects.

Torch's own count is the same in each process. Resident memory is counted in pages of 4 KiB, and how
many of them a forward's small objects touch depends on the holes that the heap happens to have: one
cell needed 520 to 524 pages in 28 processes, each time the same within a process. The difference of
two is therefore known to RESOLUTION_BYTES, which is more than 1 % of an allocation below 3.2 MiB.
"""

import ctypes
from pathlib import Path

import pytest

import bench
from bench.execution import cell_run
from bench.execution.supervisor import Outcome
from bench.request import plugins
from bench.status import Status
from tests.conftest import ROOT

CONFS = [ROOT / "tests" / "trust" / "conf", ROOT / "tests" / "cheaters" / "conf"]
MIB = 1 << 20
IPC_RMID = 0  # linux/ipc.h
OWN_MIB = 4
"""Allocated by both cells: more than the rest of the forward needs, so that both have their peak at
the same point."""
RESOLUTION_BYTES = 32 << 10
RESIDENT = ("rss_peak_delta_bytes", "rss_peak_warm_delta_bytes")
FIGURES = (*RESIDENT, "alloc_peak_bytes")


def near(name: str, size: float) -> object:
    """A value that equals a measured figure of `size` bytes."""
    return pytest.approx(size, rel=0.01, abs=RESOLUTION_BYTES if name in RESIDENT else None)


@pytest.fixture(scope="module")
def memory_child(tiny_t5):
    """A function from the words of a request to the status of the memory child."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_CONF_PATH", ":".join(map(str, CONFS)))
        plugins.conf_dirs.cache_clear()

        def measured(*words: str) -> Outcome:
            request = [f"model={tiny_t5}", "length=256", "n=2", "threads=1", "measure=speed"]
            cell = bench.compose(*request, *words)
            run = cell_run.CellRun(cell, Path(), 600)
            assert cell_run.load_parent(run) is None
            return run.child("measure.memory", arm="method")

        yield measured
    plugins.conf_dirs.cache_clear()


@pytest.fixture(scope="module")
def peak(memory_child):
    """A function from the words of a request to the memory child's columns."""

    def measured(*words: str) -> dict[str, int]:
        outcome = memory_child(*words)
        assert outcome.status == Status.OK, outcome.detail
        return outcome.result

    return measured


@pytest.fixture
def no_segments_left(where):
    """Removes segments of shared memory that didn't exist before a test that makes one. After any
    other test it might remove those of a concurrent test."""
    before = segments()
    yield
    for segment in segments() - before if where == "segment" else ():
        ctypes.CDLL(None).shmctl(segment, IPC_RMID, None)


def segments() -> set[int]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {int(line.split()[1]) for line in lines}


@pytest.fixture(scope="module")
def baseline(peak):
    return peak("method=allocates", f"method.mib={OWN_MIB}")


@pytest.mark.parametrize("mib", [1, 16, 256, 1024])
def test_an_allocation_of_k_mib_measures_k(mib, baseline, peak):
    figures = peak("method=allocates", f"method.mib={OWN_MIB + mib}")
    for name in FIGURES:
        assert figures[name] - baseline[name] == near(name, mib * MIB), name


def test_the_order_of_cells_changes_no_figure(baseline, peak):
    """`baseline` was measured first, before cells of up to 1 GiB."""
    repeated = peak("method=allocates", f"method.mib={OWN_MIB}")
    for name in FIGURES:
        assert repeated[name] == near(name, baseline[name]), name


@pytest.mark.parametrize("where", ["memfd", "tmpfs", "segment"])
def test_memory_that_is_not_mapped_is_in_the_peak(where, peak, no_segments_left):
    assert peak("method=memfd", f"method.where={where}")["rss_peak_delta_bytes"] > 16 * MIB


def test_memory_of_another_process_is_an_error(memory_child):
    outcome = memory_child("method=memfd", "method.where=child")
    assert outcome.status == Status.ERROR
    assert "works in another process" in (outcome.detail or "")


def test_memory_that_is_freed_within_a_call_is_in_the_peak(peak):
    assert peak("method=frees", "method.reset=false")["rss_peak_delta_bytes"] > 63 * MIB
