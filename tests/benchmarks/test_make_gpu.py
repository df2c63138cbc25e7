"""`make gpu`: its cells compose, its twin runs, and a killed run keeps its results."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from itertools import islice

import pytest

from bench.execution.runner import FINISHED
from bench.request.parameters import check_values
from bench.rows.columns import COLUMNS
from bench.rows.store import Store
from bench.status import PlanState, Status
from bench.sweep.grid import SweepGrid
from bench.sweep.plan import plan
from benchmarks import gpu, gpu_summary
from benchmarks.gpu_pieces import CONFORMANCE, PIECES
from tests.conftest import ROOT

SWEEPS = [piece for piece in PIECES if piece.name != CONFORMANCE]


@pytest.mark.parametrize("piece", SWEEPS, ids=lambda piece: piece.name)
def test_every_cell_composes_and_some_of_their_twins(piece):
    points = list(SweepGrid.of(piece.overrides("h200")).points())
    twins = list(islice(SweepGrid.of(piece.overrides(None)).points(), 2))
    for device, some in (("h200", points), ("cpu", twins)):
        for point in some:
            check_values(point.request)
            assert point.request["device"]["name"] == device
    assert len(points) > 5


def test_the_gpu_is_planned_where_there_is_none(tmp_path):
    longest = next(piece for piece in SWEEPS if piece.name == "longest")
    cells = plan([*longest.overrides("cuda"), f"results={tmp_path}"], elsewhere=True).cells
    assert cells and all(cell.state == PlanState.TO_DO and cell.seconds > 0 for cell in cells)


def started(out, *words):
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(out), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)


def test_a_folder_of_others_is_left_as_it_is(tmp_path):
    (tmp_path / "log.txt").write_text("mine")
    process = started(tmp_path, "--dry", "--pieces", "longest")
    _, errors = process.communicate()
    assert process.returncode == 2 and "holds what bench didn't write" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_the_twin_leaves_rows_a_log_and_a_summary_and_is_not_run_twice(tmp_path):
    words = ("--dry", "--share", "40", "--pieces", "longest", "--seconds", "600")
    printed, errors = started(tmp_path, *words).communicate()
    assert "longest: 1 cells" in printed and "probe=max_length" in printed, errors
    [row] = Store(tmp_path / "rows").rows().to_pylist()
    assert row["status"] != Status.SKIPPED and row["device"] == "cpu"
    assert "$ python -m bench run -m" in (tmp_path / "log.txt").read_text()
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# make gpu: no GPU")
    assert "none of their figures is a GPU's" in summary
    assert f"Cells: 1 {row['status']}." in summary and summary in printed
    if row["status"] in FINISHED:
        longest = next(piece for piece in SWEEPS if piece.name == "longest")
        words = [*longest.overrides(None), *gpu.sharing(40), f"results={tmp_path / 'rows'}"]
        assert [cell.state for cell in plan(words).cells] == [PlanState.DONE]


def checks(out) -> list[dict]:
    path = out / "conformance.jsonl"
    return list(map(json.loads, path.read_text().splitlines())) if path.exists() else []


def test_a_killed_run_keeps_its_checks_and_goes_on(tmp_path):
    words = ("--dry", "--share", "300", "--pieces", CONFORMANCE, "--seconds", "600")
    process = started(tmp_path, *words)
    while process.poll() is None and not checks(tmp_path):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = checks(tmp_path)
    assert kept and (tmp_path / "summary.md").exists()
    process = started(tmp_path, *words)
    printed, errors = process.communicate()
    assert process.returncode == 0, errors
    done = checks(tmp_path)
    assert done[: len(kept)] == kept and not any(line["failures"] for line in done)
    cells = {tuple(line[name] for name in ("method", "family", "dtype")) for line in done}
    assert len(cells) == len(done)
    assert "every 300th of all methods" in printed and "| dtype | keep it |" in printed


def test_no_gpu_is_one_line():
    process = started("unused")
    printed, errors = process.communicate()
    if "no CUDA GPU" not in errors:
        pytest.skip("there is a GPU")
    assert process.returncode == 2 and not printed
    assert errors.count("\n") == 1 and "make gpu DRY=1 plans it without one" in errors


def test_what_the_python_lacks_is_named_with_what_brings_it(monkeypatch):
    assert gpu.missing() == ""
    versions = {"torch": "2.7.0+cu128", "transformers": "4.57.1"}

    def version(name):
        if name == "hydra-core":
            raise metadata.PackageNotFoundError(name)
        return versions.get(name) or found(name)

    found = metadata.version
    monkeypatch.setattr(gpu.metadata, "version", version)
    line = gpu.missing()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [transformers], [hydra] = (
        [one for one in declared if one.startswith(name)] for name in ("transformers", "hydra-core")
    )
    assert line.startswith(f"needs {transformers} (here 4.57.1), {hydra}; with")
    assert f"pip install --no-index --find-links wheels '{transformers}' '{hydra}'" in line
    assert "\n" not in line


def test_the_summary_shows_time_memory_and_clocks_of_a_gpu():
    row = dict.fromkeys(COLUMNS) | {
        "status": "ok", "method": "vcc", "task": "narrativeqa", "model": "m", "length": 4096,
        "dtype": "bfloat16", "device": "cuda", "gpu_name": "NVIDIA H200",
        "lat_median_ns": 2_500_000, "lat_ratio": 0.5, "lat_ratio_ci_lo": 0.4,
        "lat_ratio_ci_hi": 0.6,
        "lat_verdict": "faster",
        "gpu_alloc_delta_bytes": 3 << 20, "gpu_reserved_bytes": 8 << 20, "gpu_nvml_bytes": 9 << 20,
        "gpu_clock_mhz": 1980, "gpu_throttle_reasons": "none", "created_utc": "2026", "torch": "2",
    }  # fmt: skip
    oom = row | {"status": "oom_device", "length": 8192, "lat_ratio": None, "lat_median_ns": None}
    skipped = row | {"status": "skipped"}
    text = gpu_summary.page([row, oom, skipped], [])
    assert text.startswith("# make gpu: NVIDIA H200\n") and "a processor, at toy" not in text
    assert "Cells: 1 ok, 1 oom_device, 1 skipped. Skipped: the time was over" in text
    assert "0.500 (0.400 … 0.600) faster | 3.0 | 8 | 9 | 1,980 | none | ok |" in text
    assert text.count("| 8,192 |") == 1 and "| oom_device |" in text
