"""bench compare and explain, as commands on stored rows."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.rows.store import Store
from tests import made
from tests.conftest import ROOT
from tests.rows.test_results import bench, listed


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Vanilla right on 24 of 40, a method on 4 of 40: 40 % faster, half the memory."""
    folder = tmp_path_factory.mktemp("finished")
    results, model = folder / "runs", made.checkpoint(folder / "model")
    half, some = [True] * 24 + [False] * 16, [True] * 4 + [False] * 36
    memory = {"rss_peak_delta_bytes": 100 << 20, "mem_method": "VmHWM"}
    made.answered(results, model, half, None, "method=vanilla", row_id="a1", **memory)
    memory["rss_peak_delta_bytes"] = 50 << 20
    made.answered(results, model, some, half, row_id="b2", **made.timing(0.6), **memory)
    return results


@pytest.fixture
def stored(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "runs"))


@pytest.fixture
def folders(stored, tmp_path):
    """The finished rows, the same with others, the same without predictions, and pairs of folders
    whose cells differ in host, in status and in parameters."""
    more, model = shutil.copytree(stored, tmp_path / "more"), made.checkpoint(tmp_path / "model")
    made.answered(more, model, [True] * 4, None, "method=vanilla", "length=1024", row_id="d4")
    (model / "model.safetensors").write_bytes(b"other weights")
    made.answered(more, model, [True] * 40, None, "method=bigbird", row_id="c3")
    shutil.copytree(stored, tmp_path / "gone", ignore=shutil.ignore_patterns("*.jsonl"))
    settings = [made.row(method_params=f'{{"h": 90, "k": {k}}}') for k in (8, 16)]
    settings.append(made.row(method="bigbird", method_params='{"window": 3}'))
    timed = [made.row(seed=seed, **made.timing(0.5)) for seed in (0, 1)]
    elsewhere = [row | {"host_id": "there"} for row in timed]
    failed = [timed[0], made.row(seed=1, status="oom_host")]
    for name, rows in {
        "before": settings, "after": settings,
        "here": timed, "there": elsewhere, "one": elsewhere[:1], "failed": failed,
    }.items():  # fmt: skip
        named = (row | {"row_id": f"{name}-{i}"} for i, row in enumerate(rows))
        Store(tmp_path / name).append(named)


@pytest.mark.usefixtures("folders")
def test_rows_are_compared_and_limits_are_the_exit_code(transcript):
    """Figures of one cell and of several, by ids, filters and folders, for people and programs."""
    transcript("compare", width=120)


def test_reading_rows_needs_no_torch(stored):
    program = (
        "import sys\nfrom bench.cli.main import main\n"
        f"for words in ['results'], ['compare', 'a1', 'b2'], ['explain', 'a1', 'b2']:\n"
        f"    try: main([*words, '--results', {str(stored)!r}])\n"
        "    except SystemExit as stop: assert not stop.code\n"
        "print({'torch', 'transformers', 'hydra'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.strip().splitlines()[-1] == "set()", done.stderr


def test_explain_lists_what_of_the_key_differs_and_what_else(stored, capsys):
    code, out, _ = bench(capsys, "explain", "a1", "b2", "--results", stored)
    found = {line["name"]: line for line in listed(out)}
    assert code == 0 and found["method.name"]["row1"] == "vanilla"
    assert found["method.name"]["row2"] == "vcc" and found["method.k"]["row1"] == ""
    assert found["code_sha256"]["part"] == "key" and found["method_version"]["part"] == "row"
    assert not {"length", "task.name", "model.path"} & set(found)
    _, out, _ = bench(capsys, "explain", "a1", "a1", "--results", stored, "--format", "table")
    assert out[0].strip() == "the same cell"
