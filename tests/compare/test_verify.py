"""A row measured again: it agrees, disagrees, or this host can't tell."""

import json

import pytest

from bench.compare import verify
from bench.errors import RequestError
from bench.rows.store import Store
from tests import made
from tests.compare.conftest import rewrite


def row(**more):
    columns = {"value": 80.0, "n_scored": 32, "predictions_sha256": "p"}
    columns |= ratio(0.5, 0.49, 0.51) | {"lat_ratio_p": 1e-4, "lat_n_pairs": 40}
    return made.full(**{**columns, **more})


def ratio(value, low, high):
    return {"lat_ratio": value, "lat_ratio_ci_lo": low, "lat_ratio_ci_hi": high}


def said(old, new, figure):
    return next(a for a in verify.compare_rows(old, new) if a.figure == figure)


@pytest.mark.parametrize(
    ("figure", "here", "verdict"),
    [
        ("quality", {"predictions_sha256": "q", "value": 82.0}, "agrees"),
        ("quality", {"predictions_sha256": "q", "value": 70.0}, "disagrees"),
        ("quality", {"value": 82.0}, "disagrees"),
        ("quality", {"value": None}, "can't tell"),
        ("latency", {}, "agrees"),
        ("latency", ratio(0.7, 0.69, 0.71), "disagrees"),
        ("latency", ratio(0.52, 0.3, 0.9), "can't tell"),
        ("latency", {"noisy": True}, "can't tell"),
        ("latency", {"lat_ratio": None, "lat_reason": "vanilla doesn't fit"}, "can't tell"),
        ("memory", {}, "agrees"),
        ("memory", {"rss_peak_delta_bytes": 130 << 20}, "disagrees"),
        ("memory", {"rss_peak_delta_bytes": 130 << 20, "host_id": "far"}, "can't tell"),
        ("memory", {"mem_method": "VmRSS, sampled"}, "can't tell"),
    ],
)
def test_a_second_measurement_agrees_disagrees_or_cannot_tell(figure, here, verdict):
    assert said(row(), row(**here), figure).verdict == verdict


@pytest.mark.parametrize("figure", ["latency", "memory"])
def test_another_kernel_is_named_and_explains_a_difference(figure):
    changes = ratio(0.7, 0.69, 0.71) | {"rss_peak_delta_bytes": 130 << 20}
    native = row(kernel="native avx512 float32")
    check = said(native, row(**changes, kernel="torch (no C++ compiler)"), figure)
    assert check.verdict == "can't tell"
    assert check.reason.startswith("on torch here, the row on native avx512 float32; ")
    same = said(native, row(kernel="torch"), figure)
    assert same.verdict == "agrees" and "on torch here" in same.reason


def test_another_host_may_have_another_ratio_within_reason():
    far = {"host_id": "far"}
    near, odd, off = ratio(0.6, 0.59, 0.61), ratio(1.2, 1.18, 1.22), ratio(2.0, 1.9, 2.1)
    assert said(row(), row(**far, **near), "latency").verdict == "agrees"
    assert said(row(), row(**far, **odd), "latency").verdict == "can't tell"
    assert said(row(), row(**far, **off), "latency").verdict == "disagrees"


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("ok", "oom_host", "can't tell"),
        ("timeout", "ok", "can't tell"),
        ("ok", "error", "disagrees"),
        ("unsupported", "ok", "disagrees"),
        ("unsupported", "unsupported", "agrees"),
    ],
)
def test_how_a_cell_ended_is_compared_too(old, new, verdict):
    answers = verify.compare_rows(row(status=old), row(status=new))
    assert verify.overall(answers) == verdict


@pytest.fixture
def ask(command, folder):
    """Measures the folder's row again: the exit code and the last line."""

    def run():
        code, out, _ = command("verify", f"{folder}/aaaa")
        return code, out.splitlines()[-1]

    return run


def test_verify_runs_the_same_cell_and_disagrees_with_exit_code_1(ask, folder, measured_here):
    [stored] = Store(folder).rows().to_pylist()
    measured_here["row"] = stored
    assert ask() == (0, f"row {'a' * 12}: agrees")
    assert measured_here["cell"].key == stored["cell_key"]
    measured_here["row"] = stored | {"value": 10.0, "predictions_sha256": "other"}
    assert ask() == (1, f"row {'a' * 12}: disagrees")


def test_of_changed_code_verify_can_not_tell(ask, folder, measured_here):
    [stored] = Store(folder).rows().to_pylist()
    cell = json.loads(stored["cell"]) | {"code_sha256": "older"}
    rewrite(folder, cell=json.dumps(cell))
    measured_here["row"] = stored | {"value": 10.0, "predictions_sha256": "other"}
    assert ask() == (0, f"row {'a' * 12}: this host can't tell")


def test_without_the_weights_verify_can_not_tell(ask, model, measured_here):
    (model / "model.safetensors").write_bytes(b"others")
    assert ask() == (0, f"row {'a' * 12}: this host can't tell")
    (model / "model.safetensors").unlink()
    assert ask() == (0, f"row {'a' * 12}: this host can't tell")
    assert "cell" not in measured_here


def test_without_a_gpu_verify_can_not_tell(folder):
    [stored] = Store(folder).rows().to_pylist()
    cell = json.loads(stored["cell"])
    cell["device"] = {"name": "h200", "kind": "cuda", "require": "no such card"}
    with pytest.raises(RequestError, match="device=h200"):
        verify.cell_here(stored | {"cell": json.dumps(cell)}, None)
