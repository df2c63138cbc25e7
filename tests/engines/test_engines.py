"""Engines with a tiny model, against the same weights in this project's decoder."""

import signal

import pytest
import torch

import bench
from bench.engines.base import Answer, Start
from bench.engines.gguf_weights import file_of
from bench.engines.process import EngineProcess
from bench.errors import RequestError, RunError
from bench.measure import engine, quality
from bench.models import stored
from bench.models.base import Spec
from bench.models.checkpoints import load_tokenizer
from bench.models.decoder import DecoderFamily
from methods.base import SequenceInfo
from methods.vanilla import Vanilla

pytest.importorskip("gguf", reason="GGUF files are written by the package gguf")

from tests import tiny_gguf

IDS = [6, 0, 1, 2, 3, 5, 0, 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("engines")
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
    yield stored.from_gguf(tiny_gguf.write(path / "tiny.gguf", tiny_gguf.weights(), 2048))
    patch.undo()


def llama_cpp(**settings):
    pytest.importorskip("xllamacpp", reason="pip install 'longctx-bench[llama-cpp]'")
    from bench.engines.llama_cpp import LlamaCpp

    return LlamaCpp(**{"weights": "f32", "cache": "f32", "flash": False, **settings})


@pytest.fixture
def start(folder):
    """Starts an engine; closes it after the test."""
    sessions = []

    def started(engine):
        sessions.append(engine.start(Start(folder, load_tokenizer(folder), 512, 1)))
        return sessions[-1]

    yield started
    for session in sessions:
        session.close()


@pytest.fixture(scope="module")
def own_text(folder):
    """The decoder's greedy answer of 12 tokens."""
    family = DecoderFamily.load(Spec("tiny", folder), Vanilla(), "float32", "cpu")
    [text] = family.generate(torch.tensor([IDS]), SequenceInfo(), 12)
    return text


def test_llama_cpp_gives_the_decoder_s_text(start, own_text):
    session = start(llama_cpp())
    answer = session.generate(IDS, 12)
    assert answer.text == own_text
    assert 0 < answer.first_ns <= answer.last_ns
    assert session.version.startswith("xllamacpp ") and session.peak_bytes() > 1 << 20


def test_an_answer_of_a_number_of_tokens(start):
    session = start(llama_cpp())
    assert [session.generate(IDS, n, exactly=True).tokens for n in (1, 9)] == [1, 9]
    assert session.generate(IDS, 1, exactly=True).token_ns is None


def test_quantised_caches_and_weights_run(start):
    session = start(llama_cpp(weights="file", cache="q8_0", flash=True))
    assert session.generate(IDS, 4, exactly=True).tokens == 4


def test_an_answer_of_other_length_is_not_timed():
    class Short:
        def answer(self, ids, new_tokens, exactly=False):
            return Answer("a", 1, 5, 5)

    prompt = torch.zeros(1, 3, dtype=torch.long), SequenceInfo()
    with pytest.raises(RunError, match="1 tokens where 4 are timed"):
        engine.of_engine(Short(), 4, prompt)


def test_a_prompt_beyond_the_context_is_an_error(start):
    with pytest.raises(RunError, match="exceeds the available context size"):
        start(llama_cpp()).generate([0] * 5000, 4)


def test_a_killed_server_is_an_error(start):
    session = start(llama_cpp())
    session.client.deadline_s = 0.1
    session.process.process.send_signal(signal.SIGKILL)
    session.process.process.wait()
    with pytest.raises(RunError):
        session.generate(IDS, 4)


def test_a_quantised_cache_needs_flash_attention():
    with pytest.raises(ValueError, match="needs flash=true"):
        llama_cpp(cache="q4_0")


def test_a_checkpoint_without_gguf_is_refused(tmp_path):
    with pytest.raises(RequestError, match="has no GGUF file"):
        llama_cpp().start(Start(tmp_path, None, 64, 1))


def test_a_file_is_converted_once(folder):
    made = file_of(folder, "f16")
    stamp = made.stat().st_mtime_ns
    assert file_of(folder, "f16") == made and made.stat().st_mtime_ns == stamp
    assert file_of(folder, "file").name == stored.KEPT_GGUF


def test_a_row_compares_an_engine_with_vanilla(folder, tmp_path):
    llama_cpp()
    words = ["engine=llama_cpp", f"model={folder}", "task=longeval_lines", "length=256", "n=2",
             "measure=decoding", "new_tokens=4", "time=4s", "threads=1", "fill=true",
             "engine.weights=f16", "model.weights=pretrained"]  # fmt: skip
    row = bench.run(bench.compose(*words), results=tmp_path)
    assert row["status"] == "ok", row["status_detail"]
    assert row["method"] == "llama_cpp" and row["kernel"].startswith("xllamacpp ")
    assert row["lat_samples_ns"] and row["lat_base_samples_ns"] and row["tpot_ratio"] > 0
    assert row["whole_peak_ratio"] == row["whole_peak_bytes"] / row["base_whole_peak_bytes"]
    assert row["value"] is not None and row.get("kv_bytes_held") is None


def test_the_process_is_waited_for_after_the_answers(folder, monkeypatch):
    """Else its processor time counts as that of other processes, and the machine as busy."""
    llama_cpp()
    codes, close = [], EngineProcess.close

    def closed(process):
        close(process)
        codes.append(process.process.returncode)

    monkeypatch.setattr(EngineProcess, "close", closed)
    words = ["engine=llama_cpp", f"model={folder}", "task=longeval_lines", "length=256", "n=2",
             "measure=quality", "threads=1", "engine.weights=f16",
             "model.weights=pretrained"]  # fmt: skip
    report = type("Report", (), {"__call__": lambda *_: None, "send": lambda *_, **__: None})()
    request = {"cell": bench.compose(*words).to_json(), "done": [[]], "stage": "quality"}
    assert quality.measure(request, report)["tokens_seen_mean"] > 0
    assert codes == [0]


def test_a_row_compares_two_servers(folder, start, tmp_path):
    one, other = (start(llama_cpp(cache=cache)).client.base_url for cache in ("f32", "f16"))
    words = ["engine=openai", f"base_url={one}", f"engine.vanilla={other}", f"model={folder}",
             "task=longeval_lines", "length=256", "n=2", "measure=decoding", "new_tokens=4",
             "time=4s", "threads=1", "fill=true", "model.weights=pretrained"]  # fmt: skip
    row = bench.run(bench.compose(*words), results=tmp_path)
    assert row["status"] == "ok", row["status_detail"]
    assert row["lat_samples_ns"] and row["lat_base_samples_ns"] and row["tpot_ratio"] > 0
    assert row["value"] == row["base_value"] and row["quality_comparison"] == "same weights"
    assert row["prefix_first_token_ratio"] > 0 and row["base_whole_peak_bytes"] is None


@pytest.mark.parametrize(
    ("address", "key"),
    [("http://127.0.0.1:8000/v2", "K"), ("http://127.0.0.1:8001/v1", None), ("http://a/v1", None)],
)
def test_another_server_does_not_get_the_key(address, key):
    words = ["engine=openai", "engine.key=K", f"engine.vanilla={address}", "task=longeval_lines",
             "model=embedded-llama", "length=256", "n=1"]  # fmt: skip
    base = bench.compose(*words).baseline()
    assert (base.method["base_url"], base.method["key"]) == (address, key)
