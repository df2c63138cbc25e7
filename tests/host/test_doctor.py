"""bench doctor: each finding has its state, and what to do about it."""

import json
import subprocess
import sys

import pytest

from bench.cli import host_commands as doctor
from bench.cli.host_commands import State
from bench.cli.main import dispatch
from bench.host import host, linux
from methods.parts import widths
from tests.conftest import ROOT


def findings(tmp_path):
    return {finding.about: finding for finding in doctor.examine(tmp_path)}


def test_what_is_not_well_has_an_advice(tmp_path):
    for finding in findings(tmp_path).values():
        assert finding.found
        assert bool(finding.advice) == (finding.state != State.OK), finding


def test_the_command_prints_records_and_needs_no_torch(tmp_path):
    script = (
        "import sys; from bench.cli.main import dispatch; "
        f"code = dispatch(['doctor', '--json', '--results', {str(tmp_path)!r}]); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    records = json.loads(done.stdout)
    assert {"about", "state", "found", "advice"} == set(records[0])
    assert "torch" in {record["about"] for record in records}


@pytest.mark.parametrize(
    "version, fits", [("2.6.0", True), ("2.13.0+cpu", True), ("1.0", False), ("2.5.1+cu121", False)]
)
def test_a_torch_that_does_not_fit_is_bad(version, fits, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: version)
    finding = findings(tmp_path)["torch"]
    assert (finding.state != State.BAD) == fits
    assert fits or "pip install 'torch" in finding.advice


def test_no_compiler_and_no_vectors_are_worth_a_look(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(widths, "cpu_flags", set)
    found = findings(tmp_path)
    assert found["compiler"].state == found["native kernels"].state == State.LOOK
    assert "no-such-compiler" in found["compiler"].found


def test_a_wrong_width_is_bad(monkeypatch, tmp_path):
    monkeypatch.setenv(widths.VARIABLE, "avx1024")
    finding = findings(tmp_path)["native kernels"]
    assert finding.state == State.BAD and "avx1024" in finding.found


def test_little_memory_a_full_disk_and_a_quota_are_worth_a_look(monkeypatch, tmp_path):
    monkeypatch.setattr(host, "available_memory", lambda: 1 << 30)
    monkeypatch.setattr(linux, "cpu_quota", lambda: 0.5)
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 70)
    found = findings(tmp_path)
    for about in ("memory", "disk", "processor"):
        assert found[about].state == State.LOOK, about
    assert "threads=1" in found["processor"].advice


def test_a_folder_that_cannot_be_written_ends_with_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert dispatch(["doctor", "--results", str(tmp_path)]) == 1
    assert "can't be written" in capsys.readouterr().out


def test_bytecode_that_is_never_written_is_worth_a_look(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert doctor._bytecode().state == State.LOOK
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE")
    assert doctor._bytecode().state == State.OK


def test_models_of_the_hub_and_of_packages_are_listed(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert doctor._models().found == "the shipped ones, none of the hub"
    models = tmp_path / "longctx-bench" / "models"
    (tmp_path / "hub" / "models--org--hub").mkdir(parents=True)
    (models / "of.downloads").mkdir(parents=True)
    for name in ("org--packaged", ".org--torn.unfinished"):
        (models / name).mkdir()
        (models / name / "config.json").touch()
    assert doctor._models().found == "the shipped ones, org/hub, org/packaged"
