"""Features of a machine besides its counters: an energy meter, math libraries, physical cores."""

from pathlib import Path

import pytest

from bench.host import linux, torch_host


def rapl_zone(folder: Path, name: str, joules: float) -> None:
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")
    (path / "max_energy_range_uj").write_text("1000000000\n")


def test_energy_sums_all_packages_and_survives_a_counter_overflow(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_host, "POWERCAP", tmp_path)
    assert torch_host.energy_meter("cpu") == (None, "the kernel offers no RAPL counter here")
    rapl_zone(tmp_path, "intel-rapl:0", 990)
    rapl_zone(tmp_path, "intel-rapl:1", 10)
    rapl_zone(tmp_path, "intel-rapl:0:0", 5)  # a part of the first
    meter, reason = torch_host.energy_meter("cpu")
    assert reason is None
    before = meter()
    rapl_zone(tmp_path, "intel-rapl:0", 20)  # overflowed at 1,000 J
    rapl_zone(tmp_path, "intel-rapl:1", 12)
    assert meter() - before == pytest.approx(30 + 2)


def test_matrix_product_speed_and_blas_are_known():
    facts = torch_host.facts("float32", "cpu")
    assert facts["gemm_gflops"] > 0
    assert facts["blas"]


def test_threads_get_one_physical_core_each_while_there_are_any(monkeypatch, tmp_path):
    monkeypatch.setattr(linux, "CPUS", tmp_path)
    monkeypatch.setattr(linux, "usable_cpus", lambda: [0, 1, 2, 3])
    for cpu, siblings in enumerate(("0-1", "0-1", "2-3", "2-3")):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert linux.spread_cpus(2) == [0, 2]
    assert linux.spread_cpus(3) == [0, 2, 1]
    assert linux.spread_cpus(9) == [0, 2, 1, 3]
