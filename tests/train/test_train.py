"""The trainer on tiny encoders: the same curve after a kill, in parts, recomputed and on two
processes; and the errors that stop it."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState

import bench
from bench.errors import RequestError
from bench.execution import arms, cell_run, stages
from bench.measure import integrity, training_step, two_arms
from bench.request import plugins, weights
from bench.request.schema import MEASURES
from bench.rows.comparison import Comparison
from bench.rows.derived_columns import to_vanilla
from bench.status import Status
from bench.train import trainer
from bench.train.batches import OutsideHeap
from bench.train.checkpoint import STATE, DiskFull, restore_state, save_state
from bench.train.trainer import adamw, load_for_training
from methods.base import Unsupported
from tests.conftest import ROOT

TINY = (
    "recipe=lra_small_listops", "method=vanilla", "length=32", "n=4", "threads=1",
    "recipe.rows=96", "recipe.dev_rows=16", "recipe.steps=24", "recipe.batch=16",
    "recipe.eval_every=8", "recipe.save_every=4", "recipe.warmup=2",
    "model.config.hidden_size=16", "model.config.intermediate_size=32",
    "model.config.head_size=8", "model.config.max_position_embeddings=64",
)  # fmt: skip


def run(folder: Path, *words: str) -> tuple[dict, list[dict]]:
    """The card of a training in this process, and its log."""
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)
    cell = bench.compose(*TINY, f"checkpoints={folder}", *words)
    card = trainer.train(cell, lambda *_: None)
    return card, logged(folder)


def logged(folder: Path) -> list[dict]:
    [log] = folder.glob("*/log.jsonl")
    return [json.loads(line) for line in log.read_text().splitlines()]


def losses(log: list[dict]) -> list[float]:
    return [line["loss"] for line in log if "loss" in line]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, *run(folder)


def test_a_training_ends_in_a_checkpoint_that_a_cell_answers_with(whole, tmp_path):
    folder, card, log = whole
    assert card["steps"] == 24 and card["best_step"] in (8, 16, 24)
    assert card["dev_score"] == max(line["dev_right"] for line in log if "dev_right" in line)
    [place] = folder.iterdir()
    assert weights.card(place) == card
    assert sorted(p.name for p in place.iterdir() if not p.name.startswith(".")) == [
        "card.json", "config.json", "log.jsonl", "model.safetensors",
    ]  # fmt: skip
    cell = bench.compose(*TINY, f"checkpoints={folder}", "measure=quality")
    assert cell.model["weights_sha256"] == card["weights_sha256"]
    row = bench.run(cell, tmp_path)
    assert row["status"] == "ok", row["status_detail"]
    assert (row["weights_kind"], row["weights_protocol"]) == ("from-scratch", "from-scratch")
    assert row["recipe"] == "lra_small_listops" and row["checkpoint_key"] == card["key"]
    assert row["train_steps"] == card["best_step"] and row["n_scored"] == 4
    training = json.loads(row["training"])
    assert training["from"] == "random weights" and training["steps"] == card["best_step"]
    assert training["hours"] == card["wall_ns"] / 3.6e12


def test_a_checkpoint_of_other_classes_or_ids_is_refused_in_one_line(whole, tmp_path):
    [place] = whole[0].iterdir()
    for name in ("config.json", "model.safetensors"):  # without the card that names its task
        shutil.copy(place / name, tmp_path)
    for task, message in (("lra_text", "has 2 classes, model .* has 10: it was trained for"),
                          ("lra_image", "has 256 token ids, model .* has 16")):  # fmt: skip
        cell = bench.compose(f"model={tmp_path}", f"task={task}", "method=vanilla", "length=64",
                             "n=2")  # fmt: skip
        family = arms.load(cell, plugins.build(dict(cell.method)))
        with pytest.raises(RequestError, match=message):
            arms.check_fit(cell, cell.build_task(), family)


def launch(folder: Path, *before: str, words: tuple[str, ...] = ()) -> subprocess.Popen:
    own = [*TINY, *words, f"checkpoints={folder}"]
    command = [*before, "-m", "bench", "train", *own]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=ROOT, env=env, text=True, **quiet)


def test_after_a_kill_it_continues_along_the_same_curve(whole, tmp_path):
    child = launch(tmp_path, sys.executable)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            if len(losses(logged(tmp_path))) >= 10:
                break
        time.sleep(0.05)
    child.kill()
    child.wait()
    [place] = tmp_path.iterdir()
    assert (place / STATE).exists() and weights.card(place) is None
    card, log = run(tmp_path)
    assert log == whole[2] and card["weights_sha256"] == whole[1]["weights_sha256"]


@pytest.mark.parametrize("killed_at", [5, 13])
def test_a_stop_at_any_step_changes_nothing(whole, tmp_path, killed_at, monkeypatch):
    step = trainer.Trainer._step

    def stops(self, number):
        if number == killed_at:
            raise KeyboardInterrupt
        return step(self, number)

    monkeypatch.setattr(trainer.Trainer, "_step", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    monkeypatch.undo()
    card, log = run(tmp_path)
    assert log == whole[2] and card["weights_sha256"] == whole[1]["weights_sha256"]


def test_another_seed_is_another_curve(whole, tmp_path):
    few = ("recipe.steps=2", "recipe.eval_every=2")
    assert losses(run(tmp_path, "seed=1", *few)[1])[0] != losses(whole[2])[0]


def test_a_training_runs_without_mallocs_cache(tmp_path, monkeypatch):
    asked = Mock(side_effect=cell_run.started)
    monkeypatch.setattr(cell_run, "started", asked)
    few = ("recipe.steps=2", "recipe.eval_every=2", "recipe.dev_rows=4")
    outcome = stages.train(bench.compose(*TINY, *few, f"checkpoints={tmp_path}"), None)
    assert outcome.status == Status.OK and outcome.result["steps"] == 2
    _, _, limits, server, *_ = asked.call_args.args
    assert limits.environment.items() >= stages.MALLOC_WITHOUT_CACHE.items()
    assert server is None  # a fork has the malloc of its fork server


def test_rows_kept_outside_the_heap_are_the_rows(monkeypatch):
    monkeypatch.setattr(OutsideHeap, "BLOCK_BYTES", 4096)
    kept = OutsideHeap()
    values = {i: np.arange(i) for i in (3, 100, 0, 2000, 7, 400, 401)}
    for key, value in values.items():
        assert kept.get(key) is None
        kept.put(key, value)
    assert all(np.array_equal(kept.get(key), value) for key, value in values.items())
    assert len(kept.blocks) > 2 and len(kept.blocks[1]) > 4096


def test_a_batch_in_parts_and_recomputed_layers_give_the_same_curve(tmp_path):
    fixed = ("model.config.dropout=0.0", "recipe.steps=4")
    whole_batch = losses(run(tmp_path / "a", *fixed)[1])
    parts = losses(run(tmp_path / "b", *fixed, "recipe.accumulate=4")[1])
    assert parts == pytest.approx(whole_batch, rel=1e-5)
    stored = losses(run(tmp_path / "c", "recipe.steps=4")[1])
    recomputed = losses(run(tmp_path / "d", "recipe.steps=4", "recipe.recompute=true")[1])
    assert recomputed == pytest.approx(stored, rel=1e-5)


def test_bfloat16_follows_float32(whole, tmp_path):
    near = losses(run(tmp_path, "recipe.dtype=bfloat16", "recipe.steps=8")[1])
    assert near == pytest.approx(losses(whole[2])[:8], rel=0.02)
    with pytest.raises(RequestError, match="float16 needs a GPU"):
        run(tmp_path / "half", "recipe.dtype=float16")


AS_MODULE = """
import pathlib, runpy, sys
del sys.argv[1]
module = sys.argv.pop(1)
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    left = [file.read_text().strip() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in left), left
"""
"""`python -c AS_MODULE -m NAME …` runs the module as `python -m NAME …` and fails if it leaves a
gloo thread: one that still works while the interpreter ends aborts the process."""


def test_two_processes_share_a_batch_and_leave_no_thread(tmp_path):
    fixed = ("model.config.dropout=0.0", "recipe.steps=4")
    alone = losses(run(tmp_path / "one", *fixed)[1])
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    process = ("--no-python", sys.executable, "-c", AS_MODULE)
    child = launch(tmp_path / "two", sys.executable, *launcher, *process, words=fixed)
    _, output = child.communicate()
    assert child.returncode == 0, output[-2000:]
    assert losses(logged(tmp_path / "two")) == pytest.approx(alone, rel=1e-4)
    [place] = (tmp_path / "two").iterdir()
    assert weights.card(place)["processes"] == 2


def test_it_stops_early_when_the_dev_score_stops_improving(tmp_path):
    fixed = ("recipe.lr=0.0", "recipe.schedule=constant")
    card, _ = run(tmp_path, *fixed, "recipe.patience=2", "recipe.eval_every=2")
    assert card["steps"] == 6 and card["best_step"] == 2


def test_a_loss_that_is_no_number_stops_it_and_keeps_the_last_good_state(tmp_path, monkeypatch):
    monkeypatch.setattr(
        trainer, "learning_rate", lambda recipe, step, total: 1e30 if step >= 5 else 1e-3
    )
    with pytest.raises(trainer.Diverged, match=r"the loss is nan at step 7; the last good") as stop:
        run(tmp_path, "recipe.save_every=1")
    [place] = tmp_path.iterdir()
    assert str(place / STATE) in str(stop.value) and weights.card(place) is None
    assert all(torch.isfinite(value).all() for value in torch.load(place / STATE)["model"].values())


def test_a_full_disk_keeps_the_state_before(tmp_path):
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", disk], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("a small disk can't be mounted here")
    try:
        save_state(disk / STATE, model, optimizer, None, {"step": 1}, {})
        with torch.no_grad():
            model.weight += 1
        with pytest.raises(DiskFull, match=r"the disk is full while saving .* of step 2"):
            save_state(disk / STATE, model, optimizer, None, {"step": 2}, {})
        assert [path.name for path in disk.iterdir()] == [STATE]
        assert restore_state(disk / STATE, model, optimizer, None)[0] == {"step": 1}
    finally:
        subprocess.run(["umount", disk], check=True)


def test_what_cannot_be_trained_says_so(tmp_path, tiny_t5):
    with pytest.raises(Unsupported, match="frozen weights"):
        run(tmp_path, "method=iceformer")
    with pytest.raises(RequestError, match="asks for one of 10 classes, model tiny"):
        other = bench.compose(
            "recipe=lra_small_listops", f"model={tiny_t5}", "length=32", "n=4", "method=vanilla",
            "recipe.rows=96", f"checkpoints={tmp_path}",
        )  # fmt: skip
        trainer.train(other, lambda *_: None)
    with pytest.raises(RequestError, match="8 rows of lra_listops don't fill a batch of 16"):
        run(tmp_path, "recipe.rows=8")


def test_a_model_that_writes_text_is_finetuned_with_a_method_in_it(tmp_path, tiny_t5):
    cell = bench.compose(
        "recipe=lra_small_listops", "task=narrativeqa", f"model={tiny_t5}", "method=vcc",
        "method.h=4", "length=256", "n=2", "recipe.rows=8", "recipe.dev_rows=4", "recipe.batch=4",
        "recipe.steps=3", "recipe.eval_every=3", "recipe.label_smoothing=0.1", "threads=1",
        "recipe.target_length=8", f"checkpoints={tmp_path}",
    )  # fmt: skip
    assert cell.protocol == "finetune" and cell.model["weights"] == "finetuned"
    trainer.train(cell, lambda *_: None)
    cell = cell.trained()
    family = arms.load(cell, plugins.build(dict(cell.method)))
    assert family.tokenizer.eos_token_id == 1
    assert family.model.generation_config.decoder_start_token_id == 0


@pytest.fixture
def steps(monkeypatch):
    """A function that measures training steps as the child does, in this process."""
    monkeypatch.setattr(arms, "prepare", lambda cell, **how: torch.set_num_threads(1))
    monkeypatch.setattr(training_step.worker, "return_freed_memory", lambda: None)
    monkeypatch.setattr(training_step.worker, "keep_freed_memory", lambda by_size: None)
    # A test runner has more threads, and no supervisor.
    monkeypatch.setattr(integrity, "check_python_threads", lambda: None)
    monkeypatch.setattr(integrity, "check_processes", lambda: None)
    monkeypatch.setattr(two_arms, "time_outside", lambda *given: None)

    def measured(*words: str, **more: Any) -> dict:
        cell = bench.compose(*TINY, "measure=training", "batch=2", *words)
        request = {"cell": cell.to_json(), "by_size": False, **more}
        return training_step.measure(request, Mock())

    return measured


def test_a_training_step_is_measured_in_pairs_and_its_memory_in_one(steps, monkeypatch):
    monkeypatch.setitem(MEASURES, "training", replace(MEASURES["training"], pairs=6, budget_s=20.0))
    samples = steps("method=bigbird")
    timed = Comparison(**samples["timed"])
    assert len(timed.samples_ns) == len(timed.base_samples_ns) == 6
    assert samples["timed_tokens"] > 0 and to_vanilla(timed, 0).ratio > 0
    assert "base_samples_ns" not in steps("method=vanilla")["timed"]
    with pytest.raises(Unsupported, match="frozen weights"):
        steps("method=iceformer")


def test_training_steps_are_timed_in_several_processes(steps, monkeypatch):
    plan = replace(MEASURES["training"], pairs=12, budget_s=600.0)
    monkeypatch.setitem(MEASURES, "training", plan)
    monkeypatch.setattr(two_arms.linux, "age_s", lambda: 1.0)  # a test runner's is minutes
    first = steps("method=bigbird")
    assert len(first["timed"]["samples_ns"]) == 3
    assert [share["pairs"] for share in first["shares"]] == [3, 3, 3]
    further = steps("method=bigbird", share=first["shares"][0])
    assert len(further["timed"]["samples_ns"]) == 3 and "shares" not in further


def test_the_memory_of_a_training_step_is_measured_in_a_process_of_its_own():
    cell = bench.compose(*TINY, "measure=training", "batch=2")
    outcome = cell_run.CellRun(cell, Path(), 120).child("measure.training_step", arm="vanilla")
    assert outcome.status == "ok", outcome.detail
    weights = load_for_training(cell, cell.method).model.parameters()
    # Gradients and Adam's two moments are there at the end of it.
    needed = 3 * sum(weight.numel() * weight.element_size() for weight in weights)
    assert outcome.result["train_peak_bytes"] > needed


def test_a_training_step_leaves_the_weights_as_they_are(tmp_path):
    cell = bench.compose(*TINY, "measure=training", "batch=2")
    family = training_step.start(cell)
    before = {name: value.clone() for name, value in family.model.state_dict().items()}
    batch = training_step.rows(cell, family)[0]
    training_step.step(family, adamw(family.model, training_step.ADAMW_OPTIONS), batch)
    assert any(weight.grad.abs().sum() > 0 for weight in family.model.parameters())
    assert all(torch.equal(before[name], v) for name, v in family.model.state_dict().items())


@pytest.mark.parametrize("recipe", ["lra_retrieval", "lra_fourier_pathfinder"])
def test_every_kind_of_lra_row_trains(tmp_path, recipe):
    cell = bench.compose(
        f"recipe={recipe}", "method=fourier", "method.upsample=false", "length=80", "threads=1",
        "n=4", "recipe.rows=16", "recipe.dev_rows=4", "recipe.steps=2", "recipe.batch=8",
        "recipe.eval_every=2", f"checkpoints={tmp_path}",
    )  # fmt: skip
    card = trainer.train(cell, lambda *_: None)
    assert card["steps"] == 2 and 0 <= card["dev_score"] <= 1
