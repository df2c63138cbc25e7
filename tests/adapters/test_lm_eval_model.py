"""Methods as a model of lm-evaluation-harness: vanilla scores and answers like its own model on the
same checkpoint; a continuation is scored with the entries that a method keeps of its context."""

import random

import pytest

from bench.errors import RequestError

pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from bench.adapters.lm_eval_model import LongContextLM
from bench.request import plugins

WORDS = "the silver lantern stood at mill then snow came and it was late".split()


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory):
    """Three layers of size 32 with the shipped tokenizer and large random weights."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    tokenizer = AutoTokenizer.from_pretrained(plugins.ROOT / "bench/models/embedded/llama")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        eos_token_id=tokenizer.eos_token_id, initializer_range=0.3,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


def text(words: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def asked(kind: str, *arguments) -> list[Instance]:
    return [Instance(kind, {}, one, at) for at, one in enumerate(arguments)]


PAIRS = [(text(20 + 9 * at, at), f" {text(1 + at % 4, 99 + at)}") for at in range(6)]
PAIRS += [(PAIRS[0][0], " lantern"), ("", " snow came")]
PROMPTS = [
    (text(15 + 7 * at, at), {"until": ["the"], "max_gen_toks": 8, "do_sample": False})
    for at in range(5)
]


def both(checkpoint, **given):
    theirs = HFLM(pretrained=checkpoint, device="cpu", batch_size=2, **given)
    return theirs, LongContextLM(checkpoint, device="cpu", batch_size=2, **given)


@pytest.mark.parametrize("max_length", [None, 48])
def test_vanilla_scores_as_their_own_model(tiny_llama, max_length):
    theirs, ours = both(tiny_llama, max_length=max_length)
    requests = asked("loglikelihood", *PAIRS)
    one, other = (model.loglikelihood(requests, disable_tqdm=True) for model in (theirs, ours))
    assert [greedy for _, greedy in one] == [greedy for _, greedy in other]
    assert [value for value, _ in other] == pytest.approx([value for value, _ in one], abs=1e-3)
    requests = asked("loglikelihood_rolling", (text(70, 1),), (text(9, 2),))
    one, other = (m.loglikelihood_rolling(requests, disable_tqdm=True) for m in (theirs, ours))
    assert other == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("max_length", [None, 40])
def test_vanilla_answers_as_their_own_model(tiny_llama, max_length):
    theirs, ours = both(tiny_llama, max_length=max_length)
    requests = asked("generate_until", *PROMPTS)
    one, other = (model.generate_until(requests, disable_tqdm=True) for model in (theirs, ours))
    assert one == other and any(one)


def test_an_encoder_decoder_answers_as_their_own_model(tiny_t5):
    theirs, ours = both(str(tiny_t5))
    assert ours.backend == "seq2seq"
    requests = asked("loglikelihood", *PAIRS[:-1])
    one, other = (model.loglikelihood(requests, disable_tqdm=True) for model in (theirs, ours))
    assert [value for value, _ in other] == pytest.approx([value for value, _ in one], abs=1e-3)
    requests = asked("generate_until", *PROMPTS[:2])
    one, other = (model.generate_until(requests, disable_tqdm=True) for model in (theirs, ours))
    assert one == other


def test_a_continuation_is_scored_over_what_the_method_keeps(tiny_llama):
    requests = asked("loglikelihood", *PAIRS[1:4])

    def scores(**given):
        model = LongContextLM(tiny_llama, device="cpu", **given)
        return [value for value, _ in model.loglikelihood(requests, disable_tqdm=True)]

    exact = scores()
    assert scores(method="knorm", budget=1.0) == pytest.approx(exact, abs=1e-3)
    compressed = scores(method="knorm", budget=0.3)
    assert all(abs(a - b) > 1e-2 for a, b in zip(exact, compressed, strict=True))
    assert compressed == pytest.approx(scores(method="knorm", budget=0.3, batch_size=3), abs=1e-3)


def test_the_first_token_is_said_to_come_before_the_compression(tiny_llama, caplog):
    requests = asked("loglikelihood", (PAIRS[0][0], " lantern"), (PAIRS[0][0], " mill"))
    method = LongContextLM(tiny_llama, method="knorm", budget=0.3, device="cpu")
    exact = LongContextLM(tiny_llama, device="cpu")
    one, other = (m.loglikelihood(requests, disable_tqdm=True) for m in (method, exact))
    assert [value for value, _ in one] == pytest.approx([value for value, _ in other], abs=1e-3)
    assert "2 of 2 continuations have one token" in caplog.text


def test_a_whole_text_has_no_context_to_compress(tiny_llama):
    requests = asked("loglikelihood_rolling", (text(30, 1),))
    evicting = LongContextLM(tiny_llama, method="knorm", budget=0.3, device="cpu")
    with pytest.raises(RequestError, match="no context before it whose KV cache"):
        evicting.loglikelihood_rolling(requests)
    rolling = LongContextLM(tiny_llama, method="streaming_llm", budget=8, device="cpu")
    exact = LongContextLM(tiny_llama, device="cpu")
    one, other = (m.loglikelihood_rolling(requests)[0] for m in (rolling, exact))
    assert abs(one - other) > 1e-2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"method": "snapvk"}, "unknown method 'snapvk'. Did you mean snapkv?"),
        ({"method": "snapkv", "budgte": 0.5}, "unknown parameter of snapkv 'budgte'"),
        ({"method": "snapkv", "budget": 7.5}, "method.budget=7.5 is not accepted"),
        ({"batch_size": "auto"}, "batch_size=auto is not accepted: a number"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"method": "linformer"}, "method=linformer"),
    ],
)
def test_a_wrong_request_is_one_line(given, told, tiny_llama):
    with pytest.raises(RequestError) as refused:
        LongContextLM(tiny_llama, **{"device": "cpu", **given})
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_an_answer_is_not_sampled(tiny_llama):
    model = LongContextLM(tiny_llama, device="cpu")
    for option in ({"do_sample": True, "temperature": 0.7}, {"num_beams": 4}):
        given = "a mill", {"until": [], "max_gen_toks": 8, **option}
        with pytest.raises(RequestError, match="the likeliest token is taken at each step"):
            model.generate_until(asked("generate_until", given))
