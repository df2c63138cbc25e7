"""A cell's processes are forks of one that has loaded its model, and never a method."""

import os
import signal
from pathlib import Path

import pytest

import bench
from bench.errors import RequestError
from bench.execution import cell_run, spawn
from bench.execution.cell_run import CellRun

REQUEST = ["length=256", "n=2", "threads=1"]


@pytest.fixture(autouse=True)
def no_server_of_another_test():
    spawn.close_fork_servers()
    yield
    spawn.close_fork_servers()


def run_of(*words: str, tmp_path: Path) -> CellRun:
    return CellRun(bench.compose(*REQUEST, *words), tmp_path, 60)


def seen(run: CellRun, method: bool = True) -> dict[str, object]:
    module = "tests.execution.method_seen"
    request, server = {"cell": run.cell.to_json(), "method": method}, run.server()
    with cell_run.started(module, request, run.limits(server), server) as running:
        outcome = running.outcome()
    assert outcome.status == "ok", outcome.detail
    return outcome.result


def test_model_and_inputs_are_loaded_once_for_all_cells_that_have_them_in_common(tmp_path):
    first = run_of("method=iceformer", tmp_path=tmp_path)
    assert cell_run.load_parent(first) is None
    vanilla, iceformer = seen(first, method=False), seen(first)
    expected = {"shared": True, "inputs": True, "references": 0}
    assert vanilla.items() >= {**expected, "method": "Vanilla", "imported": False}.items()
    assert iceformer.items() >= {**expected, "method": "IceFormer", "imported": True}.items()
    other = run_of("method=bigbird", tmp_path=tmp_path)
    assert cell_run.load_parent(other) is None
    assert seen(other) == {**iceformer, "method": "BigBird"}, "by the same parent"
    [model] = (server for key, server in spawn.fork_servers.items() if key[0] == cell_run.MODEL)
    longer = run_of("method=bigbird", "length=300", tmp_path=tmp_path)
    assert not seen(longer)["inputs"] and seen(longer)["shared"] is False
    assert cell_run.load_parent(longer) is None
    found = seen(longer)
    assert found["inputs"] and found["parent"] != iceformer["parent"]
    assert model in spawn.fork_servers.values() and model.usable, "the weights are not loaded again"
    parents = [key for key in spawn.fork_servers if key[0] == cell_run.PARENT]
    assert len(parents) == 1


def test_a_killed_parent_is_replaced_and_until_then_children_load_by_themselves(tmp_path):
    run = run_of("method=vanilla", tmp_path=tmp_path)
    cell_run.load_parent(run)
    os.kill(seen(run)["parent"], signal.SIGKILL)
    assert not seen(run)["shared"]
    assert cell_run.load_parent(run) is None and seen(run)["shared"]
    [model] = (server for key, server in spawn.fork_servers.items() if key[0] == cell_run.MODEL)
    os.kill(model.child.pid, signal.SIGKILL)
    model.child.wait()
    assert not seen(run)["shared"]
    assert cell_run.load_parent(run) is None and seen(run)["shared"]


def test_a_model_that_can_not_be_loaded_is_the_cells_outcome(tmp_path, tiny_t5):
    run = run_of("method=vanilla", f"model={tiny_t5}", tmp_path=tmp_path)
    weights = tiny_t5 / "model.safetensors"
    weights.rename(tiny_t5 / "gone")
    try:
        with pytest.raises(RequestError, match="safetensors"):
            cell_run.load_parent(run)
    finally:
        (tiny_t5 / "gone").rename(weights)
    short = CellRun(run.cell, tmp_path, 0.0)
    assert cell_run.load_parent(short).status == "timeout"
