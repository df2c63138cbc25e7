"""Likelihood of a continuation: equal to a plain pass of the model, and worse with less cache."""

import json
from dataclasses import dataclass

import pytest
import torch

import bench
from bench.compare import matching
from bench.measure import quality
from bench.models.decoder import DecoderFamily
from bench.request import plugins
from bench.request.cell import Cell
from bench.rows import rescore
from bench.rows.query import Selection
from bench.rows.store import Store
from methods.base import Method, SequenceInfo
from methods.parts.kv_cache import FullCache, decoding_singly
from methods.streaming_llm import StreamingLLM
from methods.vanilla import Vanilla
from tasks.generators import stories

PROMPT, AFTER = 40, 9


@dataclass(frozen=True)
class KeepsAll(Method):
    """A method whose own cache leaves nothing out."""

    def kv_cache(self, workload):
        return FullCache()


def texts(rows: int = 2) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(5, 60, (rows, PROMPT + AFTER), generator=draw)


def measured(method, ids, sequence=None, is_vanilla=False):
    family = DecoderFamily.tiny(method)
    prompts = ids[:, :-AFTER], sequence or SequenceInfo()
    with torch.inference_mode():
        found = quality.likelihoods(family, prompts, ids[:, -AFTER:], is_vanilla)
    assert family.method is method
    return [json.loads(text) for text in found]


@torch.inference_mode()
def plain(ids):
    """[B, N]: negative log-likelihood of the last tokens by transformers' own forward pass."""
    logits = DecoderFamily.tiny(Vanilla()).model(ids).logits[:, :-1]
    nll = -logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return nll[:, -AFTER:]


def test_vanilla_has_the_likelihood_of_a_plain_pass_of_the_model():
    ids = texts()
    found = measured(Vanilla(), ids, is_vanilla=True)
    assert [list(one) for one in found] == [["nll"]] * 2
    assert torch.allclose(torch.tensor([one["nll"] for one in found]), plain(ids), atol=1e-4)


def test_a_cache_that_keeps_all_diverges_by_nothing_step_by_step():
    ids = texts()
    for one, expected in zip(measured(KeepsAll(), ids), plain(ids), strict=True):
        assert torch.allclose(torch.tensor(one["nll"]), expected, atol=1e-4)
        assert max(one["kl"]) < 1e-5 and all(one["equal"])


def test_rows_of_a_padded_batch_have_the_likelihood_that_they_have_alone():
    ids = texts()
    short = ids[1:, 8:]
    padded = ids.clone()
    padded[1, : PROMPT - 8], padded[1, PROMPT - 8 : PROMPT] = short[0, :-AFTER], 0
    valid = torch.ones(2, PROMPT, dtype=torch.bool)
    valid[1, -8:] = False
    for method, is_vanilla in ((Vanilla(), True), (KeepsAll(), False)):
        _, found = measured(method, padded, SequenceInfo(valid=valid), is_vanilla)
        (alone,) = measured(method, short, is_vanilla=is_vanilla)
        assert found["nll"] == pytest.approx(alone["nll"], abs=1e-4)


def test_a_cache_that_drops_nearly_all_diverges():
    for one in measured(StreamingLLM(budget=2, sinks=1), texts()):
        assert one["kl"][0] < 1e-6  # by the prompt, which is read exactly
        assert min(one["kl"][1:]) > 0


OF_DECODERS = [
    name for name, conf in plugins.usable("method").items()
    if "decoder" in (conf.get("facts") or {}).get("families", ()) and name != "kvpress"
    and not plugins.is_engine(name)
]  # fmt: skip


@pytest.mark.parametrize("name", OF_DECODERS)
def test_each_method_of_decoders_reads_a_continuation(name):
    for one in measured(plugins.build(plugins.conf("method", name)), texts()):
        assert len(one["nll"]) == len(one["kl"]) == len(one["equal"]) == AFTER
        assert min(one["nll"]) > 0 and min(one["kl"]) >= 0 and {*one["equal"]} <= {0, 1}


@torch.inference_mode()
def test_a_continuation_is_read_in_one_pass_as_in_single_steps():
    ids = texts(1)
    for name in OF_DECODERS:
        family = DecoderFamily.tiny(plugins.build(plugins.conf("method", name)))
        one, other = (family.prefill(ids[:, :-AFTER], SequenceInfo()) for _ in range(2))
        logits = family.read_at_once(one, ids[:, -AFTER:])
        if logits is None:
            assert "prefill" not in plugins.conf("method", name), "it changes no cache"
            continue
        steps = [other.step(token) for token in ids[:, -AFTER:].split(1, 1)]
        near = 1e-2 if name == "nomad" else 1e-4  # it rounds products to 8 bits
        assert torch.allclose(logits, torch.stack(steps, 1), atol=near), name
        assert torch.equal(one.logits, logits[:, -1])
        assert one.sequence.positions.shape == other.sequence.positions.shape


class Peeking(FullCache):
    """Could let a token read later ones when several come at once."""

    at_once = True


def test_a_cache_from_elsewhere_gets_one_token_at_a_time():
    assert decoding_singly(FullCache()) and not decoding_singly(Peeking())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Rows of a method that drops nearly all entries, and of vanilla, on the shipped decoder, which
    knows the words of the project's stories; each text is a story over and over."""
    folder, stories_of = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("texts")
    for i in range(4):
        words = stories.story("test", i, 128, 0).text.split()[:80]
        (stories_of / f"{i}.txt").write_text(" ".join(words * 10))
    request = ("task=perplexity", "task.continuation=32", "model=embedded-llama", "length=160",
               "n=4", "batch=2", "threads=1", "measure=quality",
               f"data.dir={stories_of}")  # fmt: skip
    for method in (("method=streaming_llm", "method.budget=4", "method.sinks=1"),
                   ("method=vanilla",)):  # fmt: skip
        row = bench.run(bench.compose(*request, *method), folder)
        assert row["status"] == "ok", row["status_detail"]
    return folder


def test_a_cell_has_its_loss_against_vanillas_on_the_same_tokens(folder):
    row, vanilla = Store(folder).rows().to_pylist()
    assert row["model"] == "embedded-llama" and row["metric"] == "nats_per_token"
    assert row["higher_is_better"] is False and row["value"] > row["base_value"]
    assert row["base_value"] == vanilla["value"]
    assert row["value_diff"] == pytest.approx(row["value"] - row["base_value"])
    assert row["chance"] is row["chance_reason"] is row["at_chance"] is None
    assert row["tokens_seen_mean"] == 128 and row["truncated_frac"] == 0
    assert row["ci_method"] == "Student's t over samples"
    figures = json.loads(row["metrics"])
    assert figures["kl"] > 0 and figures["top1_agree"] < 1
    assert "kl" not in json.loads(vanilla["metrics"])


def test_a_row_has_the_time_of_each_part_of_its_quality(folder):
    row, vanilla = Store(folder).rows().to_pylist()
    parts = ("quality_prefill_ns", "quality_decode_ns", "base_quality_ns")
    assert 0 < sum(row[name] for name in parts) < row["quality_ns"] < row["wall_total_ns"]
    assert row["quality_load_ns"] > 0 and row["scoring_ns"] > 0
    # Its answers were stored, as those that the method was compared with.
    assert vanilla["quality_prefill_ns"] is None and vanilla["quality_decode_ns"] == 0
    assert vanilla["base_quality_ns"] is None


def test_its_stored_predictions_are_scored_again_and_compared(folder):
    rows = Store(folder).rows().to_pylist()
    for row in rows:
        assert rescore.quality(row, folder)["value"] == row["value"]
    sides = [Selection("", folder, [row], []) for row in rows]
    (cell,), _ = matching.compare_selections(*sides, on=["method", "method_params"], margin=1)
    difference = cell.difference("quality")
    assert difference.n == 4 and difference.unit == "loss"
    assert difference.change == pytest.approx(-rows[0]["value_diff"], abs=1e-5)


def test_the_key_of_predictions_has_the_number_of_tokens():
    words = ("task=perplexity", "model=embedded-llama", "length=160", "n=1", "threads=1")
    cells = [bench.compose(*words, f"task.continuation={m}") for m in (32, 33)]
    assert isinstance(cells[0], Cell) and cells[0].prediction_key != cells[1].prediction_key
