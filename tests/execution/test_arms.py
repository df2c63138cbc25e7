"""The set-up of a process before it measures or answers."""

import json
import os
import shutil

import pytest
import torch
from torch.utils import deterministic

import bench
from bench.errors import RequestError
from bench.execution import arms
from bench.measure import memory

MIB = 1 << 20


@pytest.fixture
def prepared(monkeypatch):
    """A function that prepares this process, and restores it afterwards."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: None)
    was, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    cell = bench.compose("method=vanilla", "length=256", "n=2", f"threads={threads}")
    yield lambda **how: arms.prepare(cell, **how)
    torch.use_deterministic_algorithms(was)


@pytest.mark.parametrize("how", [{"timed": True}, {"costs": True}])
def test_what_is_measured_pays_for_no_memory_that_it_never_touches(prepared, how):
    prepared(**how)
    assert torch.are_deterministic_algorithms_enabled()
    assert not deterministic.fill_uninitialized_memory
    if memory.can_reset():
        _, peak = memory.peak(lambda: torch.empty(64 * MIB, dtype=torch.uint8))
        assert peak < 8 * MIB


def test_what_answers_sees_memory_that_it_never_wrote_as_nan(prepared):
    prepared()
    assert torch.empty(1000).isnan().all()


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        ("config.json", {"d_ff": "x"}, "config.json: Validation error for field 'd_ff': "),
        ("config.json", {"dtype": [[1]]}, "config.json: list index out of range"),
        ("config.json", {"d_ff": 3}, "has no safetensors weights of its config"),
        ("config.json", {"num_layers": -1}, "config.json: num_layers is -1; it takes 0 or more"),
        ("config.json", {"num_layers": 0}, "no model can be made of it: IndexError"),
        ("config.json", {"pad_token_id": None}, "config.json: pad_token_id is None; it takes a"),
        ("generation_config.json", {"decoder_start_token_id": 10**6}, "on_config.json: decoder_s"),
        ("tokenizer_config.json", {"model_max_length": "x"}, "tokenizer_config.json: model_max_le"),
        ("tokenizer.json", {"model": 3}, "has a tokenizer that can't be read"),
    ],
)
def test_a_broken_checkpoint_is_a_wrong_request(tiny_t5, tmp_path, file, changes, told):
    folder = tmp_path / "model"
    shutil.copytree(tiny_t5, folder)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    cell = bench.compose(f"model={folder}", "method=vanilla", "length=256", "n=2")
    with pytest.raises(RequestError) as refused:
        arms.load(cell, arms.method_of(cell))
    assert str(folder) in str(refused.value) and told in str(refused.value)
    assert "\n" not in str(refused.value)
