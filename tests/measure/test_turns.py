"""Times in turns: pairs with vanilla, bytes of each cache, and sweeps that time cells together."""

import pytest
import torch

import bench
from bench.cli.main import dispatch
from bench.errors import RequestError
from bench.execution import arms, cell_group, worker
from bench.execution.supervisor import Outcome
from bench.measure import integrity, memory, turns
from bench.rows.comparison import pooled
from bench.rows.store import Store
from bench.status import Status
from methods.base import Unsupported

SHAPE = ["model=embedded-llama", "task=longeval_lines", "length=256", "threads=1", "measure=tokens"]
ROUNDS = 3
BLOCKS = ["method=xattention", "method.block=32", "method.stride=8"]
"""Small enough to leave something out of 156 tokens."""


def cells(*methods):
    return [bench.compose(*SHAPE, *words.split()) for words in methods]


def measured(some):
    """A child's measurements, in this process, which keeps its settings and other threads."""
    request = {"cells": [cell.to_json() for cell in some], "rounds": ROUNDS, "counts": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arms, "prepare", lambda cell, timed: None)
        patch.setattr(worker, "keep_freed_memory", lambda: None)
        patch.setattr(integrity, "check_python_threads", lambda: None)
        patch.setattr(integrity, "check_processes", lambda: None)
        return turns.measure(request, lambda *_: None)


@pytest.fixture(scope="module")
def timed():
    some = cells("method=vanilla", "method=snapkv budget=0.25", "method=q8_0", "method=quest")
    return some, measured(some)


def test_each_cache_has_a_pair_in_each_round(timed):
    fields = timed[1]["timed"]
    assert len(fields["1"]["samples_ns"]) == len(fields["1"]["base_samples_ns"]) == ROUNDS
    assert set(fields["1"]["pair_order"]) <= {"M", "V"} and len(fields["1"]["pair_order"]) == ROUNDS
    assert len(fields["1"]["aa_first_samples_ns"]) == ROUNDS
    assert len(fields["0"]["samples_ns"]) == 2 * ROUNDS and "base_samples_ns" not in fields["0"]
    assert fields["2"]["calls_per_sample"] == turns.STEPS


def test_a_method_that_reads_everything_is_dropped_and_alone_refused(timed):
    found = timed[1]
    assert "3" not in found["timed"] and found["dropped"][3].startswith("Unsupported: ")
    with pytest.raises(Unsupported):
        measured(cells("method=quest"))


def test_bytes_are_those_that_the_memory_stage_counts(timed):
    some, found = timed
    family = arms.load(some[0], arms.vanilla())
    [(ids, sequence)] = arms.longest_inputs(some[0], family, 1)
    for number, method in (("-1", arms.vanilla()), ("1", arms.method_of(some[1]))):
        family.method = method
        with torch.inference_mode():
            alone = memory.columns(family, ids, sequence, some[0].new_tokens, None)
        kernel = found["counts"][number].pop("kernel")
        assert found["counts"][number] == alone and kernel.startswith(("torch", "native"))


def test_vanilla_reads_apart_where_another_method_reads_the_prompt():
    some = cells("method=snapkv budget=0.25 method.prefill=vertical_slash")
    found = measured(some)
    own, exact = (found["counts"][number]["kv_bytes_held"] for number in ("0", "-1"))
    assert own < exact and len(found["timed"]["0"]["samples_ns"]) == ROUNDS


def test_first_tokens_are_timed_in_turns():
    words = [*SHAPE, "measure=first_token"]
    some = [bench.compose(*words, *method) for method in (["method=vertical_slash"], BLOCKS)]
    found = measured(some)
    assert not found["dropped"] and {*found["counts"]} == {"-1", "0", "1"}
    assert all(len(found["timed"][i]["samples_ns"]) == ROUNDS for i in "01")
    assert found["counts"]["0"]["attend_ns"] > 0 and found["timed"]["0"]["calls_per_sample"] == 1


def test_a_sweep_times_its_cells_together(tmp_path):
    words = [*SHAPE, "method=vanilla,snapkv,q8_0", "method.budget=0.25", f"results={tmp_path}"]
    assert dispatch(["run", "-m", *words]) == 0
    rows = {row["method"]: row for row in Store(tmp_path).rows().to_pylist()}
    assert {row["status"] for row in rows.values()} == {Status.OK}
    own, base = rows["snapkv"], rows["vanilla"]
    assert own["tpot_n_pairs"] == 20 and own["tpot_n_processes"] == 4
    assert own["tpot_ratio"] and own["kv_held_ratio"] < 1 and own["value"] is None
    assert base["tpot_ratio"] is None and base["kv_bytes_held"] == own["base_kv_bytes_held"]
    assert rows["q8_0"]["others_pct"] == own["others_pct"], "measured in the same processes"


def test_a_sweep_times_first_tokens_together(tmp_path):
    words = [*SHAPE, "measure=first_token", "method=vanilla,xattention,snapkv", *BLOCKS[1:]]
    assert dispatch(["run", "-m", *words, "budget=0.25", f"results={tmp_path}"]) == 0
    rows = {row["method"]: row for row in Store(tmp_path).rows().to_pylist()}
    own, base = rows["xattention"], rows["vanilla"]
    assert own["lat_n_pairs"] == 12 and own["lat_n_processes"] == 3 and own["lat_ratio"]
    assert own["tpot_ratio"] is None and own["attend_ns"] > 0 and base["lat_median_ns"] > 0
    assert rows["snapkv"]["others_pct"] == own["others_pct"], "measured in the same processes"


MEASURED = {"timed": {}, "counts": {"-1": {}}, "columns": {}}


def test_halves_are_timed_where_memory_runs_out():
    some = cells("method=vanilla", "method=snapkv budget=0.25", "method=q8_0")
    asked = []

    class Run:
        def child(self, module, *, cells, rounds, counts):
            asked.append(len(cells))
            status = Status.OOM_HOST if len(cells) > 2 else Status.OK
            return Outcome(status, "tokens", result=MEASURED)

    outcome, found = cell_group.time_in_turns(Run(), some)
    assert asked == [3, *[2] * 4, *[1] * 4] and outcome.status == Status.OK and found == {}


@pytest.mark.parametrize(
    "words",
    [
        ["measure=tokens", "method=vertical_slash"],
        ["measure=tokens", "method=snapkv", "batch=2"],
        ["measure=first_token", "method=vcc", "model=embedded", "task=narrativeqa"],
    ],
    ids=" ".join,
)
def test_what_cant_be_timed_in_turns_is_refused(words, tmp_path):
    cell = bench.compose(*SHAPE, *words)
    with pytest.raises(RequestError, match=r"accepted for method=.*: measure=speed, m"):
        bench.run(cell, tmp_path)
    assert not list(tmp_path.glob("*.parquet"))


def test_samples_of_several_processes_are_pooled():
    one = {"samples_ns": [1, 2], "base_samples_ns": [3, 4], "pair_order": "MV", "kernel": "torch"}
    both = pooled([one, one])
    assert both["samples_ns"] == [1, 2, 1, 2] and both["pair_process"] == [0, 0, 1, 1]
    assert both["pair_order"] == "MVMV" and both["kernel"] == "torch"
    assert pooled([{"samples_ns": [1]}, {"samples_ns": [2]}]) == {"samples_ns": [1, 2]}
