"""bench compare and explain, as commands on stored rows."""

from __future__ import annotations

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


def test_compare_gives_three_figures_for_a_program(stored, capsys):
    code, out, err = bench(capsys, "compare", "method=vanilla", "method=vcc", "--results", stored)
    assert code == 0 and not err
    found = {line["figure"]: line for line in listed(out)}
    verdicts = {name: line["verdict"] for name, line in found.items()}
    assert verdicts == {"quality": "worse", "latency": "better", "memory": "better"}
    assert float(found["quality"]["change"]) == -50 and found["quality"]["n"] == "40"
    assert float(found["latency"]["lo"]) < -40 + 2 and found["memory"]["change"] == "-50"
    assert {line["row_a"] for line in found.values()} == {"a1"}
    assert found["quality"]["cell"] == "narrativeqa length=512"


def test_compare_gives_a_table_for_people(stored, capsys):
    _, out, _ = bench(capsys, "compare", "a1", "b2", "--results", stored, "--format", "table")
    table = "\n".join(out)
    assert "×0.6" in table and "50.0 MiB" in table and "-50.0 (" in table and "worse" in table
    (quality,) = (i for i, line in enumerate(out) if "quality (n=40)" in line)
    assert out[quality + 1].strip() == "same weights"
    assert max(map(len, out)) <= 80


def test_scores_of_other_weights_are_not_said_to_be_of_the_same(stored, tmp_path, capsys):
    model = made.checkpoint(tmp_path / "model")
    (model / "model.safetensors").write_bytes(b"other weights")
    made.answered(stored, model, [True] * 40, None, "method=bigbird", row_id="c3")
    _, out, _ = bench(capsys, "compare", "a1", "c3", "--results", stored)
    assert listed(out)[0]["comparison"] == "each trained for itself"


def test_the_same_story_under_two_lengths_is_not_the_same_sample(stored, tmp_path, capsys):
    model = made.checkpoint(tmp_path / "model")
    made.answered(stored, model, [True] * 4, None, "method=vanilla", "length=1024")
    words = ["method=vanilla,n=40,length=512", "method=vanilla,n=4,length=1024"]
    code, out, _ = bench(capsys, "compare", *words, "--results", stored)
    assert code == 0 and listed(out)[0]["note"] == "no shared samples"


def test_words_after_the_sides_filter_both(stored, capsys):
    code, out, _ = bench(capsys, "compare", "a1", "b2", "length=512", "--results", stored)
    assert code == 0 and len(listed(out)) == 3
    code, _, err = bench(capsys, "compare", "a1", "b2", "length=1", "--results", stored)
    assert code == 2 and "unknown length in" in err[0]


def test_notes_of_several_cells_are_one_line(tmp_path, capsys):
    sides = [Store(tmp_path / name) for name in ("before", "after")]
    for n, side in enumerate(sides):
        side.append([made.row(seed=seed, host_id=str(n)) for seed in (0, 1)])
    words = ["compare", *(side.folder for side in sides), "--format", "table"]
    _, out, _ = bench(capsys, *words)
    [line] = [line for line in out if line.startswith("2 cells, ")]
    assert line == "2 cells, memory: measured on different hosts"


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (["latency > 5%"], 0),
        (["quality < -2%"], 1),
        (["memory > 10%", "latency > 5%"], 0),
        (["memory > 10%", "quality < -2%"], 1),
    ],
)
def test_fail_if_is_the_exit_code(stored, limits, code, capsys):
    words = [word for text in limits for word in ("--fail-if", text)]
    found, _, err = bench(capsys, "compare", "a1", "b2", "--results", stored, *words)
    assert found == code and len(err) == code
    assert not err or err[0] == "bench: quality < -2%: narrativeqa length=512: -83.3 %"


def test_what_cannot_be_judged_or_has_failed_does_not_pass(tmp_path, capsys):
    before, after = Store(tmp_path / "before"), Store(tmp_path / "after")
    before.append([made.row(**made.timing(0.5)), made.row(seed=1, **made.timing(0.5))])
    after.append([made.row(host_id="there", **made.timing(0.5))])
    words = ["compare", before.folder, after.folder, "--fail-if", "latency > 5%"]
    code, _, err = bench(capsys, *words)
    assert code == 1 and err[0] == "bench: 1 cells of A have no counterpart"
    assert err[1] == "bench: latency > 5%: can't be judged: measured on different hosts"
    after.append([made.row(seed=1, status="oom_host")])
    code, _, err = bench(capsys, *words)
    assert code == 1 and len(err) == 1 and "B ended with oom_host" in err[0]


def test_samples_that_are_gone_leave_the_rest_compared(stored, capsys):
    for path in (stored / "predictions").rglob("*.jsonl"):
        path.unlink()
    _, out, _ = bench(capsys, "compare", "a1", "b2", "--results", stored)
    quality, latency, _ = listed(out)
    assert "samples can't be paired: its predictions are" in quality["note"]
    assert quality["a"] and quality["b"] and not quality["verdict"] and latency["verdict"]


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
    assert found["code_sha256"]["part"] == "key" and found["method_version"]["part"] == "beside"
    assert not {"length", "task.name", "model.path"} & set(found)
    _, out, _ = bench(capsys, "explain", "a1", "a1", "--results", stored, "--format", "table")
    assert out[0].strip() == "the same cell"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["compare", "nothing", "b2"], "'nothing' is no folder, no filter such as"),
        (["compare", "method=vcc", "method=vcc"], "are the same rows"),
        (["compare", "a1", "b2", "--on", "lenght"], "Did you mean length?"),
        (["compare", "a1", "b2", "--margin", "-1"], "it must be 0 or more"),
        (["explain", "batch=1", "b2"], "'batch=1' names 2 rows; give the id of one"),
        (["compare", "a1", "b2", "--fail-if", "latency"], "can't read the limit 'latency'"),
        (["compare", "a1", "b2", "--fail-if", "latncy > 5%"], "Did you mean latency?"),
        (["compare", "a1", "b2", "--fail-if", "quality < 2%"], "0 or less after <, such as"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(stored, words, told, capsys):
    code, _, err = bench(capsys, *words, "--results", stored)
    assert code == 2 and len(err) == 1 and told in err[0]


def test_cells_are_told_apart_by_the_parameters_that_differ(tmp_path, capsys):
    before, after = Store(tmp_path / "before"), Store(tmp_path / "after")
    for store in (before, after):
        store.append([made.row(method_params=f'{{"h": 90, "k": {k}}}') for k in (8, 16)])
        store.append([made.row(method="bigbird", method_params='{"window": 3}')])
    _, out, _ = bench(capsys, "compare", before.folder, after.folder)
    assert {line["cell"] for line in listed(out)} == {
        "vcc narrativeqa length=512 method.k=8",
        "vcc narrativeqa length=512 method.k=16",
        "bigbird narrativeqa length=512",
    }
