"""A sweep before it runs: its points are Hydra's, its cells are known, and nothing is loaded."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli.main import dispatch
from bench.errors import RequestError
from bench.request import compose
from bench.request.cell import Cell
from bench.request.overrides import check_overrides
from bench.rows.store import Store
from bench.sweep import plan as planning
from bench.sweep.estimate import Estimates, Size, formula_bytes, size
from bench.sweep.grid import SweepGrid
from bench.sweep.plan import plan
from bench.units import memory, span
from tests import made
from tests.conftest import ROOT

QUICK = ["measure=quality", "n=2"]


@pytest.mark.parametrize(
    "words",
    [
        ["method=vcc,vanilla,bigbird", "length=512,1024", "seed=range(0,2)"],
        ["task=glob(lra_l*)", "model=random-lra", "dtype=float32,bfloat16"],
        ["method=vanilla,bigbird", "data.split=test", "model=embedded,random-t5-base"],
        ["method=vcc", "model.adapted={}", "length=512,1024"],
        ["experiment=frontier", "length=512,1024"],
        ["experiment=vcc_table1", "scale=small"],
        ["experiment=iceformer_table1"],
        ["method=vanilla,vcc,bigbird", "method.k=8,16"],
        ["recipe=lra_small_listops,lra_small_text", "method=vanilla,bigbird", "method.window=5"],
    ],
)
def test_every_point_is_what_hydra_composes(words):
    grid = SweepGrid.of(words)
    points = list(grid.points())
    assert points
    for point in (points[0], points[len(points) // 2], points[-1]):
        words = [*grid.fixed, *point.overrides]
        composed, _ = compose.compose_with_hydra(check_overrides(words))
        assert dict(point.request) == compose.resolve(composed, words)


def test_a_parameter_reaches_the_methods_that_have_it():
    words = [
        p.overrides for p in SweepGrid.of(["method=vanilla,vcc,bigbird", "method.h=8,16"]).points()
    ]
    assert words == [("method=vanilla",), ("method=vcc", "method.h=8"),
                     ("method=vcc", "method.h=16"), ("method=bigbird",)]  # fmt: skip
    whole = SweepGrid.of(["experiment=quickstart", "task=quality", "method.h=8"]).points()
    has = {p.request["method"]["name"]: p.request["method"].get("h") for p in whole}
    assert has["vcc"] == 8 and has["vanilla"] is None and len(has) == 5
    # An experiment's own parameter binds nobody to its method.
    [other] = SweepGrid.of(["experiment=vcc_table3", "method=bigbird", "length=512"]).points()
    assert other.overrides == () and other.request["method"]["name"] == "bigbird"
    words = [p.overrides for p in SweepGrid.of(["experiment=kv", "method=vanilla"]).points()]
    assert words == [("length=2048",), ("length=8192",)]
    narrowed = SweepGrid.of(["experiment=kv", "length=2048", "method=snapkv,kivi"]).points()
    assert len(list(narrowed)) == 3 + 2, "budgets of one, bits of the other"


def test_each_recipe_of_a_sweep_brings_its_task_and_its_length():
    points = list(SweepGrid.of(["recipe=lra_small_listops,lra_small_text", "seed=0,1"]).points())
    assert [p.overrides for p in points[::2]] == [
        ("recipe=lra_small_listops", "seed=0"), ("recipe=lra_small_text", "seed=0")]  # fmt: skip
    assert [p.request["task"]["name"] for p in points[::2]] == ["lra_listops", "lra_text_easy"]


def test_what_an_experiment_changes_in_a_group_is_kept(conf_folder):
    (conf_folder / "experiment").mkdir()
    (conf_folder / "experiment" / "deep.yaml").write_text(
        "# @package _global_\n# Deep.\ntask: {max_new_tokens: 3}\n"
        "hydra: {sweeper: {params: {task: 'qasper,qmsum'}}}\n"
    )
    points = list(SweepGrid.of(["experiment=deep"]).points())
    assert [p.request["task"]["name"] for p in points] == ["qasper", "qmsum"]
    assert {p.request["task"]["max_new_tokens"] for p in points} == {3}


def test_planning_loads_no_torch_and_no_pandas_whatever_rows_there_are(tmp_path):
    """Rows under keys of an older version, some of them twice."""
    for copy in ("once", "twice"):
        shutil.copytree(ROOT / "results" / "reference", tmp_path / copy)
    words = ["method=vcc,vanilla,bigbird,fourier,iceformer", "length=512,1024,2048,4096,8192,16384",
             "task=narrativeqa,qasper,qmsum,quality,gov_report", "seed=0,1",
             f"results={tmp_path}"]  # fmt: skip
    program = (
        "import sys\nfrom bench.sweep.plan import plan\n"
        f"print(len(plan({words!r}).cells))\n"
        f"print(len(plan(['experiment=vcc_table2', 'scale=small', 'results={tmp_path}']).cells))\n"
        "print({'torch', 'transformers', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["300", "12", "set()"], done.stderr


def test_hydra_composes_once_for_each_choice_and_not_for_each_point(monkeypatch):
    composed = []
    real = compose.kept_or_composed

    def counted(overrides):
        composed.append(overrides)
        return real(overrides)

    monkeypatch.setattr(compose, "kept_or_composed", counted)
    words = ["method=vcc,vanilla", "task=narrativeqa,qasper", "length=512,1024,2048", "seed=0,1"]
    assert len(list(SweepGrid.of(words).points())) == 24 and len(composed) == 3


def stored(words, folder, **columns):
    """A row of a cell as it would run here, in a folder."""
    cell = Cell.of(compose.compose(words))
    row = {**made.row(), "cell_key": cell.key, "cell": cell.to_json(), **columns}
    Store(folder).append([row])
    return cell


def test_what_is_in_the_store_is_done_whatever_its_sweep_was(tmp_path):
    words = [*QUICK, "length=256", f"results={tmp_path}"]
    stored(["method=vanilla", *words], tmp_path, status="ok")
    stored(["method=bigbird", *words], tmp_path, status="error")
    stored(["method=vcc", *words, "seed=1"], tmp_path, status="oom_host", status_detail="full")
    asked = plan([*words, "method=vanilla,vcc,bigbird", "seed=0,1"])
    states = {p.overrides: p.state for p in asked.cells}
    assert states.pop(("method=vanilla", "seed=0")) == "done"
    assert states.pop(("method=vcc", "seed=1")) == "done"
    assert set(states.values()) == {"to do"} and len(states) == 4
    [full] = [p for p in asked.of("done") if p.reason]
    assert full.reason == "oom_host: full"
    assert len(plan([*words, "method=vanilla,vcc", "force=true"]).open) == 2


def test_a_plans_sketch_is_the_cell_but_for_its_rows(tmp_path):
    for words in (["task=lra_listops", "model=random-lra", "measure=speed"], ["data.split=test"]):
        [planned] = plan([*words, "length=256", "n=2"]).cells
        cell = Cell.of(compose.compose([*words, "length=256", "n=2"]))
        assert planned.cell.plan_key == cell.plan_key and cell.data["sha256"]
        assert replace(planned.cell, data=cell.data) == cell
        other = Cell.of(compose.compose([*words, "length=256", "n=2", "data.split=validation"]))
        assert other.plan_key != cell.plan_key


def test_local_rows_count_by_their_content(real_rows, tmp_path):
    words = ["data=local", f"data.dir={real_rows}", "length=256", "n=2", f"results={tmp_path}"]
    cell = stored(["method=vanilla", "task=lra_listops", "model=random-lra", *words], tmp_path)
    assert cell.plan_key == cell.key
    [planned] = plan(["method=vanilla", "task=lra_listops", "model=random-lra", *words]).cells
    assert planned.cell.plan_key == cell.plan_key


def test_what_a_method_does_not_support_is_known_from_its_row(tmp_path):
    words = ["model=random-llama-1b-like", "measure=speed", "method=vcc", f"results={tmp_path}"]
    [before] = plan(words).cells
    assert before.state == "to do"
    stored([*words, "n=32"], tmp_path, status="unsupported", status_detail="not causal")
    [after] = plan(words).cells
    assert (after.state, after.reason, after.runs) == (
        "unsupported", "unsupported: not causal", False)  # fmt: skip


def test_shards_share_out_every_cell_once_and_evenly():
    words = [*QUICK, "method=vanilla,vcc", "length=256,512,1024,2048", "seed=0,1"]
    whole = [p.overrides for p in plan(words).cells]
    parts = [[p.overrides for p in plan([*words, f"shard={i}/3"]).cells] for i in (1, 2, 3)]
    assert sorted(words for part in parts for words in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    # No machine has all the long inputs.
    assert all(len({word for w in part for word in w if "length" in word}) > 1 for part in parts)


def test_a_budget_gives_each_method_its_coarse_answer_first():
    words = ["measure=quality", "method=vanilla,vcc", "n=64,4", "length=2048,256", "seed=1,0"]
    cells = plan([*words, "time=100h"]).cells
    order = [dict(word.split("=") for word in cell.overrides) for cell in cells]
    assert [cell["n"] for cell in order] == ["4"] * 8 + ["64"] * 8
    assert [cell["seed"] for cell in order[:8]] == ["0"] * 4 + ["1"] * 4
    assert [cell["length"] for cell in order[:4]] == ["256", "256", "2048", "2048"]
    assert [cell["method"] for cell in order[:4]] == ["vanilla", "vcc"] * 2
    few = plan([*words, "time=1m"])
    fitting = [p for p in few.cells if p.runs]
    assert 0 < len(fitting) < 16 and len(fitting) + len(few.of("over budget")) == 16
    assert sum(p.seconds for p in fitting) <= 60
    # One after the other, the rest is asked again when its turn comes.
    assert len(few.open) == 16
    side_by_side = plan([*words, "time=1m", "launcher=joblib", "n_jobs=2"])
    assert len(side_by_side.open) == len([p for p in side_by_side.cells if p.runs]) < 16


def test_estimates_follow_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "REFERENCE", tmp_path / "none")
    words = [*QUICK, "method=vanilla", f"results={tmp_path}"]
    [before] = plan([*words, "length=1024"]).cells
    mebi = 1 << 20
    for length, mib in ((256, 4), (512, 16)):
        stored([*words, f"length={length}"], tmp_path, wall_total_ns=100 * 10**9,
               rss_base_bytes=300 * mebi, rss_peak_delta_bytes=mib * mebi)  # fmt: skip
    [after] = plan([*words, "length=1024"]).cells
    assert after.seconds > 60 > before.seconds
    # Four times as much at twice the length goes on.
    assert abs(after.bytes - (300 + 64) * mebi) < mebi
    base, extra = formula_bytes(before.cell)
    assert before.bytes == base + extra and Estimates([]).seconds(before.cell) == before.seconds
    # A folder without rows of the model has the estimates of the project's own rows.
    monkeypatch.setattr(planning, "REFERENCE", tmp_path)
    [shipped] = plan([*words, "length=1024", f"results={tmp_path / 'other'}"]).cells
    assert (shipped.seconds, shipped.bytes) == (after.seconds, after.bytes)


@pytest.mark.parametrize("wrong", ["x", [3], 1.5, -1, 10**400, {}])
def test_a_size_that_is_no_size_is_estimated_by_the_default(tmp_path, wrong):
    fields = ("d_model", "num_layers", "d_ff", "num_decoder_layers")
    config = {"model_type": "t5", **dict.fromkeys(fields, wrong)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert size({"path": tmp_path}) == Size(2, 64, 256, 0)


def test_a_plan_counts_each_training_once(tmp_path):
    words = ["recipe=lra_small_listops", f"checkpoints={tmp_path}", "threads=1"]
    [plain] = plan([*words, "method=vanilla", "recipe.steps=20000"]).cells
    [both] = plan([*words, "method=bigbird", "recipe.steps=20000"]).cells
    [swap] = plan([*words, "method=bigbird", "recipe.steps=20000", "protocol=swap"]).cells
    [short] = plan([*words, "method=vanilla", "recipe.steps=2000"]).cells
    # With the method and with vanilla, for the answers of both are compared.
    assert 1.7 < both.seconds / plain.seconds < 2.3 and swap.seconds < 1.2 * plain.seconds
    assert plain.seconds > 5 * short.seconds
    first, second = plan([*words, "method=vanilla", "n=8,16", "recipe.steps=20000"]).cells
    assert second.seconds < first.seconds / 5
    [card] = [Path(first.cell.model["path"]) / "card.json"]
    card.parent.mkdir(parents=True)
    shutil.copy(ROOT / "bench/models/embedded/t5/model.safetensors", card.parent)
    (card.parent / "config.json").write_text("{}")
    card.write_text('{"task": "lra_listops"}')
    [found] = plan([*words, "method=vanilla", "n=8", "recipe.steps=20000"]).cells
    assert found.seconds < first.seconds / 5
    [step] = plan([*words, "method=vanilla", "measure=training"]).cells
    assert 1 < step.seconds < plain.seconds


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("defaults: [{override /task: narativeqa}]", "Did you mean narrativeqa?"),
        ("hydra: {sweeper: {params: {task: 'qmsum,narativeqa'}}}", "Did you mean narrativeqa?"),
        (
            "defaults: [{override /method: kivi}]\n"
            "hydra: {sweeper: {params: {method.bitz: '2,4'}}}",
            "unknown parameter of kivi 'bitz'. Did you mean bits?",
        ),
        ("hydra: {sweeper: {params: {lenght: '1,2'}}}", "Did you mean length?"),
    ],
)
def test_an_experiment_with_a_wrong_name_is_named(yaml, told, conf_folder):
    (conf_folder / "experiment").mkdir()
    (conf_folder / "experiment" / "odd.yaml").write_text(f"# @package _global_\n# Odd.\n{yaml}\n")
    with pytest.raises(RequestError) as error:
        plan(["experiment=odd"])
    assert "experiment=odd" in str(error.value) and told in str(error.value)


def test_a_launcher_that_is_not_installed_names_the_extra(monkeypatch):
    from bench.sweep import launchers

    monkeypatch.setattr(launchers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"pip install 'longctx-bench\[slurm\]'"):
        launchers.check_installed("slurm")
    with pytest.raises(RequestError, match=r"pip install 'longctx-bench\[joblib\]'"):
        launchers.check_installed("joblib")


def test_slurm_without_its_commands_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RequestError, match="no sbatch on PATH; start it on a login node"):
        plan(["launcher=slurm", *QUICK])


def test_the_plan_is_a_table_for_programs_too(capsys, tmp_path):
    code = dispatch(["plan", "method=vanilla,vcc", "length=256", *QUICK, f"results={tmp_path}"])
    told = capsys.readouterr()
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert code == 0 and lines[0][:3] == ["state", "overrides", "seconds"]
    assert [line[1] for line in lines[1:]] == ["method=vanilla", "method=vcc"]
    assert "2 cells · 2 to do · about" in told.err


def test_a_row_shows_how_many_texts_a_difference_takes(capsys, tmp_path):
    """With n texts an effect of d is detected, with 4 n texts an effect of d / 2."""
    words = ["method=snapkv", "task=perplexity", "model=embedded-llama", "length=512", "n=16",
             "measure=quality", f"results={tmp_path}"]  # fmt: skip
    assert plan(words).texts is None
    stored(words, tmp_path, n_scored=16, value_diff_detectable=0.04, quality_verdict="undecided")
    stored([*words, "n=8"], tmp_path, n_scored=8, value_diff_detectable=2.0)
    assert dispatch(["plan", *words[:-2], f"results={tmp_path}"]) == 0
    assert "of 0.02 nats from vanilla takes 64 texts, by a row of snapkv" in capsys.readouterr().err


def test_spans_and_memory_in_words():
    assert [span(s) for s in (5, 300, 12_000, 14_400, 400_000)] == [
        "5 s", "5 min", "3 h 20 min", "4 h", "5 days"]  # fmt: skip
    assert [memory(b << 20) for b in (470, 3277)] == ["470 MiB", "3.2 GiB"]
