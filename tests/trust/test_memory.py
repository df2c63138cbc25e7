"""A known amount of memory is measured as that, whatever came before, and can't be hidden.

K is told from the difference of two cells that only differ in what they allocate, for a cell also
needs a little of its own: the token ids, the hidden states, Python's objects, 0.1 MiB or so.
"""

from __future__ import annotations

import pytest

import bench
from bench import plugins, runner
from tests.conftest import ROOT

CONFS = [ROOT / "tests" / "trust" / "conf", ROOT / "tests" / "cheaters" / "conf"]
MIB = 1 << 20
OWN_MIB = 2
"""What is allocated where K is 0: more than the rest of the forward needs, so that both cells
have their peak at one place."""


@pytest.fixture(scope="module")
def peak(tiny_t5):
    """A function from words of a request to the memory child's figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_CONF_PATH", ":".join(map(str, CONFS)))
        plugins.conf_dirs.cache_clear()

        def measured(*words: str) -> dict[str, int]:
            request = [f"model={tiny_t5}", "length=256", "n=2", "threads=1", "measure=speed"]
            cell = bench.compose(*request, *words)
            outcome = runner._child("memory", {"arm": "method"}, cell, 600, None)
            assert outcome.status == "ok", outcome.detail
            return outcome.result

        yield measured
    plugins.conf_dirs.cache_clear()


@pytest.fixture(scope="module")
def own(peak):
    return peak("method=allocates", f"method.mib={OWN_MIB}")


@pytest.mark.parametrize("mib", [1, 16, 256, 1024])
def test_an_allocation_of_k_mib_measures_k(mib, own, peak):
    figures = peak("method=allocates", f"method.mib={OWN_MIB + mib}")
    for name in ("rss_peak_delta_bytes", "rss_peak_warm_delta_bytes", "alloc_peak_bytes"):
        measured = (figures[name] - own[name]) / MIB
        assert measured == pytest.approx(mib, rel=0.01), name


def test_the_order_of_cells_changes_no_figure(own, peak):
    """`own` came first in its process tree, and a cell of 1 GiB has come since."""
    again = peak("method=allocates", f"method.mib={OWN_MIB}")
    for name in ("rss_peak_delta_bytes", "rss_peak_warm_delta_bytes", "alloc_peak_bytes"):
        assert again[name] == pytest.approx(own[name], rel=0.01), name


def test_memory_that_is_freed_within_a_call_is_seen(peak):
    assert peak("method=frees", "method.reset=false")["rss_peak_delta_bytes"] > 63 * MIB
