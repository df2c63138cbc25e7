"""What the children measure beside latency: on kernels and machines that offer less, or more."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import plugins, system
from bench.children import arms, gate, latency, machine, memory
from bench.children.fidelity import fidelity
from bench.errors import RequestError
from bench.models.bert import BertFamily
from methods.base import Sequence
from methods.iceformer import IceFormer
from methods.vanilla import Vanilla


def test_without_clear_refs_the_peak_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr(memory, "can_reset", lambda: False)
    held = []

    def forward(family, ids, sequence):
        held.append(torch.empty(64 << 20, dtype=torch.uint8).fill_(1))
        memory.threading.Event().wait(0.1)

    monkeypatch.setattr(memory.arms, "first_token", forward)
    figures = memory.host_peak(None, torch.zeros(1, 1), Sequence())
    assert figures["mem_method"] == "VmRSS, sampled" and "clear_refs" in figures["mem_reason"]
    assert figures["rss_peak_delta_bytes"] == pytest.approx(64 << 20, rel=0.1)


def test_without_proc_there_is_no_figure_and_a_reason(monkeypatch):
    def missing(field):
        raise OSError(f"/proc/self/status has no {field}")

    monkeypatch.setattr(memory, "can_reset", lambda: False)
    monkeypatch.setattr(memory, "status_bytes", missing)
    monkeypatch.setattr(memory.arms, "first_token", lambda *_: None)
    figures = memory.host_peak(None, torch.zeros(1, 1), Sequence())
    assert figures["mem_method"] is None and "VmRSS" in figures["mem_reason"]


def zone(folder: Path, name: str, joules: float) -> Path:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
    (path / "max_energy_range_uj").write_text("1000000000\n")
    return path


def test_energy_is_that_of_all_packages_and_survives_a_wrap(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "POWERCAP", tmp_path)
    assert machine.energy_meter("cpu") == (None, "the kernel offers no RAPL counter here")
    zone(tmp_path, "intel-rapl:0", 990)
    zone(tmp_path, "intel-rapl:1", 10)
    zone(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    meter, reason = machine.energy_meter("cpu")
    assert reason is None
    before = meter()
    zone(tmp_path, "intel-rapl:0", 20)  # wrapped at 1,000 J
    zone(tmp_path, "intel-rapl:1", 12)
    assert meter() - before == pytest.approx(30 + 2)


def test_what_torch_knows_of_the_machine():
    facts = machine.facts("float32", "cpu")
    assert facts["gemm_gflops"] > 0
    assert facts["blas"]


def test_threads_get_a_physical_core_each_as_long_as_there_are_any(monkeypatch, tmp_path):
    monkeypatch.setattr(system, "CPUS", tmp_path)
    monkeypatch.setattr(system, "usable_cpus", lambda: [0, 1, 2, 3])
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert system.spread_cpus(2) == [0, 2]
    assert system.spread_cpus(3) == [0, 2, 1]
    assert system.spread_cpus(9) == [0, 2, 1, 3]


def test_fidelity_tells_how_well_keys_were_chosen():
    family = BertFamily.tiny(IceFormer(k=5))
    ids = torch.randint(5, 60, (1, 40))
    with torch.inference_mode():
        found = fidelity(family, Vanilla(), (ids, Sequence()))
        assert 0.9 < found["fid_recall"] <= 1
        assert 0 < found["fid_mass"] <= found["fid_mass_best"] + 1e-6 < 1
        family.method = plugins.build(plugins.conf("method", "bigbird"))
        assert "fid_recall" not in fidelity(family, Vanilla(), (ids, Sequence()))


class Event:
    """A CUDA event's stand-in, on the host's clock; milliseconds."""

    def __init__(self, device: str, enable_timing: bool):
        assert device == "cuda" and enable_timing

    def record(self) -> None:
        self.at = time.perf_counter() * 1e3

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


@pytest.fixture
def cuda(monkeypatch):
    """torch.cuda with the calls that measuring makes, in the order they were made."""
    made: list[str] = []

    def stand_in(name, value=None):
        monkeypatch.setattr(torch.cuda, name, lambda *_: made.append(name) or value)

    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        stand_in(name)
    stand_in("memory_allocated", 100)
    stand_in("max_memory_allocated", 740)
    stand_in("max_memory_reserved", 2048)
    monkeypatch.setattr(torch, "Event", Event)
    return made


def test_on_a_gpu_events_are_timed_and_the_wall_stands_beside_them(cuda):
    family = BertFamily.tiny(Vanilla())
    batch = (torch.randint(5, 60, (1, 40)), Sequence())
    arm = latency.Arm(family, Vanilla(), gate.Fresh([batch], 0), "cuda")
    with torch.inference_mode():
        took = [arm(i) for i in range(4)]
    assert cuda.count("synchronize") == 2 * len(took)  # before the first event and after the last
    assert all(0 < t <= wall for t, wall in zip(took, arm.wall, strict=True))
    assert latency.walls(arm, 2) == [sum(arm.wall[:2]) // 2, sum(arm.wall[2:]) // 2]


def test_gpu_memory_is_reset_when_workspaces_are_there(cuda, monkeypatch):
    monkeypatch.setattr(memory.arms, "first_token", lambda *_: cuda.append("forward"))
    figures = memory.cuda_peak(None, torch.zeros(1, 1), Sequence())
    assert cuda.index("forward") < cuda.index("reset_peak_memory_stats")
    assert cuda[cuda.index("reset_peak_memory_stats") :].count("forward") == 1
    assert figures["gpu_alloc_delta_bytes"] == 640 and figures["gpu_reserved_bytes"] == 2048
    assert figures["gpu_nvml_bytes"] is None  # no driver tells of this process


def test_the_first_forward_has_a_query_wherever_the_rows_have_theirs():
    vip = torch.zeros(2, 100, dtype=torch.bool)
    vip[0, 3:5] = vip[1, 95:] = True
    ids, sequence = memory.beginning(torch.arange(200).view(2, 100), Sequence(vip=vip))
    assert ids.shape == sequence.vip.shape == (2, memory.SMALL)
    assert sequence.vip[0].nonzero().flatten().tolist() == [3, 4]
    assert sequence.vip[1].nonzero().flatten().tolist() == [0]
    assert not vip[1, 0], "the rows' own mask stays as it is"


def test_a_head_must_fit_the_task_only_where_it_is_trained():
    task = plugins.build(plugins.conf("task", "lra_listops"))
    cell = SimpleNamespace(task={"name": "lra_listops"}, model={"name": "mine"})
    family = BertFamily.tiny(Vanilla())
    with pytest.raises(RequestError, match="has 10 classes, model mine knows 2"):
        arms.check_fit(cell, task, family)
    family.lacks = ["classifier.weight"]
    arms.check_fit(cell, task, family)
    with pytest.raises(ValueError, match="no trained head"):
        family.check_trained()
