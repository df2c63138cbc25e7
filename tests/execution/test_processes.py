"""How several processes share the pairs of a cell, and how their samples become one row."""

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import bench
from bench.execution import cell_run, stages, worker
from bench.execution.supervisor import Outcome
from bench.measure.paired_timing import PairCost, plan_shares
from bench.request.schema import MEASURES
from bench.rows.columns import WIDENED_TO_ALONE
from bench.rows.comparison import Comparison
from bench.status import Status
from bench.terminal import row_table
from tests import made

QUICK = MEASURES["quick"]


@pytest.mark.parametrize(
    ("pair_s", "startup_s", "twin_s", "pairs", "twin_pairs"),
    [
        (0.1, 1.0, 0.2, [10, 10, 10, 10], [5, 5, 5, 5]),  # half the number with the twin
        (0.6, 5.0, 0.3, [5, 5, 5, 5], [3, 3, 2, 2]),  # enough for a separate interval
        (0.8, 5.0, 1.0, [4, 3, 3, 3], [1, 1, 1, 1]),  # before all pairs come from one process
    ],
)
def test_pairs_with_the_twin_leave_room_for_processes(pair_s, startup_s, twin_s, pairs, twin_pairs):
    shares = plan_shares(QUICK, PairCost(pair_s, startup_s, twin_s), 1)
    assert [one.pairs for one in shares] == pairs
    assert [one.twin_pairs for one in shares] == twin_pairs
    assert {one.total for one in shares} == {sum(pairs) + sum(twin_pairs)}
    assert shares[2].ahead == sum(pairs[:2]) + sum(twin_pairs[:2])
    spent_s = 3 * startup_s + sum(pairs) * pair_s + sum(twin_pairs) * twin_s
    assert spent_s <= QUICK.budget_s


@pytest.mark.parametrize(
    ("measure", "cost", "pairs", "twin_pairs", "reason"),
    [
        ("glance", PairCost(0.01, 0.1), 12, 0, "the measure asks for one process"),
        ("quick", PairCost(8.0, 1.0, 4.0), 2, 2, "a pair takes 8.0 s of a budget of 30 s"),
        ("quick", PairCost(1.0, 11.0), 30, 0, "a further process would take 11 s of a budget of"),
    ],
)
def test_one_process_times_all_pairs_and_says_why(measure, cost, pairs, twin_pairs, reason):
    [alone] = plan_shares(MEASURES[measure], cost, 1)
    assert (alone.pairs, alone.twin_pairs) == (pairs, twin_pairs)
    assert alone.total == pairs + twin_pairs and alone.reason.startswith(reason)


def test_fewer_processes_come_before_fewer_pairs_than_decide():
    shares = plan_shares(QUICK, PairCost(1.0, 7.0), 1)
    assert [one.pairs for one in shares] == [6, 5, 5]
    shares = plan_shares(QUICK.within(300), PairCost(6.0, 40.0), 1)
    assert [one.pairs for one in shares] == [4, 4, 3]
    assert {one.note for one in shares} == {"11 pairs of 6.0 s in 3 processes, about 2 min"}


@pytest.mark.parametrize(("pair_s", "pairs"), [(0.5, 40), (5.0, 12)])
def test_a_large_model_has_all_short_pairs_and_enough_long_ones(pair_s, pairs):
    shares = plan_shares(QUICK.for_large_model(), PairCost(pair_s, 1.0), 1)
    assert sum(one.pairs for one in shares) == pairs


def part(number: int, **more):
    timed = {name: [number] * 2 for name in stages.SIDES}
    timed |= {"pair_order": "MV", "waits_left_out": None}
    faults = dict.fromkeys(stages.PAGE_FAULTS, 4 * number)
    return {"timed": timed, **faults, "wall_samples_ns": None, **more}


@pytest.fixture
def latency(monkeypatch):
    """A function from a child's stand-in to the result of the cell's stage."""

    def run(child, progress=None, stage=stages.latency):
        def child_of(self, module, handlers=None, **request):
            return child(request, self.progress)

        monkeypatch.setattr(cell_run.CellRun, "child", child_of)
        cell = bench.compose("method=vanilla", "length=256", "n=2")
        return stage(cell_run.CellRun(cell, Path(), 60, progress))

    return run


def test_the_samples_of_all_processes_come_into_one_row(latency):
    shares = [asdict(one) for one in plan_shares(QUICK, PairCost(0.1, 0.1), 1)[1:3]]
    requests, reported = [], []

    def child(request, progress):
        requests.append(request)
        progress("load", 0, 0)
        progress("latency", 1, 4)
        if "share" not in request:
            result = part(1, shares=shares, load_ns=7, notes=["a"])
            return Outcome(Status.OK, "latency", result=result)
        return Outcome(Status.OK, "latency", result=part(2, notes=["a"]))

    outcome, columns = latency(child, lambda *words: reported.append(words))
    assert outcome.status == "ok"
    first = {"by_size": False, "scored": None}
    assert requests == [first, *({**first, "share": one} for one in shares)]
    assert [stage for stage, *_ in reported] == ["load", "latency", "latency", "latency"]
    assert columns["lat"]["pair_process"] == [0, 0, 1, 1, 2, 2]
    assert columns["lat"]["pair_order"] == "MVMVMV" and columns["wall_samples_ns"] is None
    assert columns["lat"]["samples_ns"] == [1, 1, 2, 2, 2, 2]
    assert columns["load_ns"] == 7 and columns["lat_page_faults"] == 7
    assert "shares" not in columns and columns["notes"] == ["a"]


def test_samples_of_new_tokens_are_apart_from_fidelity(latency):
    def child(request, progress):
        first = {"fidelity": {"decode_kl_mean": 0.5}, "shares": [{"process": 1}]}
        result = part(1) if "share" in request else part(1, **first)
        return Outcome(Status.OK, "decoding", result=result)

    outcome, columns = latency(child, stage=stages.decoding)
    assert outcome.status == "ok" and columns.pop("tpot")["pair_process"] == [0, 0, 1, 1]
    assert columns == {"decode_kl_mean": 0.5, "notes": [], "tpot_engine": None}


def test_a_further_process_that_fails_fails_the_cell(latency):
    def child(request, progress):
        if "share" in request:
            return Outcome(Status.ERROR, "latency", "Cheat: answers otherwise")
        result = part(1, shares=[{"process": 1}])
        return Outcome(Status.OK, "latency", result=result)

    outcome, columns = latency(child)
    assert outcome.status == "error" and not columns
    assert outcome.detail == "Cheat: answers otherwise\nin process 2 of 2"


@pytest.mark.parametrize("library", ["a.so", None])
@pytest.mark.parametrize("arm", ["method", "vanilla"])
def test_what_runs_out_of_memory_is_timed_again_with_large_blocks_kept_by_size(
    latency, monkeypatch, library, arm
):
    monkeypatch.setattr(stages.worker, "kept_blocks_library", lambda: library)
    tried = []

    def child(request, progress):
        tried.append(request["by_size"])
        fits = "ok" if request["by_size"] else "oom_host"
        ended, base = (fits, "ok") if arm == "method" else ("ok", fits)
        return Outcome(Status(ended), "warmup", result=part(1, baseline_status=base))

    _, columns = latency(child)
    assert tried == ([False, True] if library else [False])
    assert columns.get("large_memory_kept") == (True if library else None)
    assert columns["baseline_status"] == ("ok" if library or arm == "method" else "oom_host")


KEPT_BLOCKS = """
import os, sys, torch
from bench.execution import worker
from bench.host import linux
from bench.measure.timed_call import page_faults

def faults():
    for mib in (16, 64):
        pages = []
        for _ in range(16):
            before = page_faults()
            torch.ones(mib << 18)
            pages.append(page_faults() - before)
        print(mib, sorted(pages)[8] > 1000)

def peak():
    held, before = [], linux.status_bytes("VmRSS")
    for size in range(1, 9):
        blocks = [torch.ones(64 << 18) for _ in range(2)]
        held.append(torch.ones(1000 * size))
        del blocks
        held.append(torch.ones(8 << 18))
    print((linux.status_bytes("VmRSS") - before) >> 20)

for by_size, part in ((False, faults), (True, faults), (True, peak))[: int(sys.argv[1])]:
    if not (child := os.fork()):
        worker.keep_freed_memory(by_size)
        part()
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_blocks_are_kept_when_they_are_freed_and_by_size_need_no_more_than_the_peak():
    """In more than half of 16 calls: malloc needs some calls until it keeps a block. Where malloc
    keeps all it takes what is held from freed blocks, which then fit no more."""
    if sys.platform != "linux":
        pytest.skip("malloc is told by glibc's mallopt")
    by_size = worker.kept_blocks_library() is not None  # needs a compiler
    words = [sys.executable, "-c", KEPT_BLOCKS, "3" if by_size else "1"]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    assert said[:8] == ["16", "False", "64", "False"] * (2 if by_size else 1)
    if not by_size:
        pytest.skip("blocks are kept by size by a library, which needs a compiler")
    assert 192 <= int(said[8]) < 256


def test_a_row_of_several_processes_is_consistent_and_says_how_they_differ():
    row = made.full(**made.timing(0.8))
    assert row["lat_n_processes"] == 4 and row["lat_process_sd_pct"] > 0.5
    assert not made.sample_faults(row)
    latency = Comparison.of(row, "lat")
    assert row_table.between(latency) == f"±{latency.process_sd_pct:.1f} % (4 processes)"
    assert made.sample_faults(row | {"lat_pair_process": None})


def test_one_process_says_what_is_assumed_of_others():
    row = made.full(**made.timing(0.8, processes=1))
    assert row["lat_n_processes"] == 1 and not made.sample_faults(row)
    assert row["lat_ratio_ci_method"] == "one process, and 10 % between processes"
    assert row["lat_verdict"] == "faster" and row["lat_ratio_ci_hi"] > 0.95
    reason = "a pair takes 8.0 s of a budget of 30 s"
    text = row_table.between(replace(Comparison.of(row, "lat"), process_reason=reason))
    assert text == "±10 % assumed: a pair takes 8.0 s of a budget of 30 s"


def test_an_older_row_says_that_it_is_of_one_process():
    row = made.full(**made.timing(0.8, processes=1))
    older = row | {"lat_n_processes": None, "lat_ratio_ci_method": None}
    text = row_table.between(Comparison.of(older, "lat"))
    assert text == "not seen: an older row, of one process"


@pytest.mark.parametrize(("alone", "verdict"), [(1.0, "faster"), (2.5, "undecided")])
def test_a_method_that_takes_another_time_alone_widens_its_interval(alone, verdict):
    samples = made.timing(0.6, noise=0.05)
    samples["lat_solo_median_ns"] = int(alone * np.median(samples["lat_samples_ns"][:10]))
    row = made.full(**samples | made.times(samples))
    assert row["lat_verdict"] == verdict and not made.sample_faults(row)
    assert (WIDENED_TO_ALONE in row["lat_ratio_ci_method"]) == (alone > 1)
    assert row["lat_ratio_ci_hi"] == pytest.approx(0.6 * alone, rel=0.1)
    told = [line for line in row_table._latency(row) if "interval widened" in line]
    assert bool(told) == (alone > 1)
