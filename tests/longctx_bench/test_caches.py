"""Methods' KV caches in `generate`: the harness's own answers, and the bytes that it weighs."""

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

import longctx_bench
from bench.errors import RequestError
from bench.measure.memory import held_bytes
from longctx_bench.named import built
from methods.base import SequenceInfo, Unsupported
from methods.vanilla import Vanilla
from tests.models.decoders import tiny
from tests.models.test_decoders import NEW, N, close, prompts

GREEDY = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=2)
CACHES = {
    "snapkv": {"budget": 0.4, "window": 2, "kernel_size": 1},
    "adakv": {"budget": 0.4, "window": 2, "kernel_size": 1},
    "duo_attention": {"sinks": 2, "recent": 5},
    "h2o": {"budget": 0.4},
    "kivi": {"group": 4, "residual": 4},
    "streaming_llm": {"budget": 8, "sinks": 2},
    "linear_transformer": {},
}


@pytest.mark.parametrize("name", CACHES)
@torch.no_grad()
def test_generate_answers_as_the_harness(name):
    family = tiny("llama", built(name, CACHES[name]))
    ids, sequence = prompts()
    expected = family.generate_ids(ids, sequence, NEW)
    decoding = family.prefill(ids, sequence)
    for step in range(expected.shape[1] - 1):
        decoding.step(expected[:, step : step + 1])
    cache = longctx_bench.cache(name, family.model, **CACHES[name])
    output = family.model.generate(
        ids,
        attention_mask=sequence.valid.long(),
        past_key_values=cache,
        generation_config=GREEDY,
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences[:, N:], expected)
    close(output.logits[-1], decoding.logits)
    assert cache.get_seq_length() == N + NEW - 1
    assert cache.held_bytes() == held_bytes(decoding.cache)


@torch.no_grad()
def test_it_holds_fewer_bytes_than_transformers_own_cache():
    model = tiny("qwen3", Vanilla()).model
    ids = torch.randint(3, 64, (1, 100), generator=torch.Generator().manual_seed(0))
    full = DynamicCache(config=model.config)
    model(ids, past_key_values=full)
    whole = sum(x.nbytes for layer in full.layers for x in (layer.keys, layer.values))
    cache = longctx_bench.cache("snapkv", model, budget=0.25, window=4)
    model(ids, past_key_values=cache)
    entry = 2 * 2 * 16 * 4 + 2 * 8  # keys, values and tokens of two heads
    assert cache.held_bytes() <= 2 * 25 * entry + 64
    assert cache.held_bytes() < whole * 0.3
    cache.reset()
    assert cache.held_bytes() == cache.get_seq_length() == 0


@torch.no_grad()
def test_a_question_follows_on_the_same_cache():
    family = tiny("llama", built("snapkv", CACHES["snapkv"]))
    (ids, _), question = prompts(), torch.arange(5, 10)[None]
    expected = family.prefill(ids[:1], SequenceInfo()).step(question)
    cache = longctx_bench.cache("snapkv", family.model, **CACHES["snapkv"])
    family.model(ids[:1], past_key_values=cache)
    logits = family.model(question, past_key_values=cache).logits[:, -1]
    close(logits, expected)


@torch.no_grad()
def test_without_the_cache_the_model_is_exact_again():
    model = tiny("gemma2", Vanilla()).model
    ids, sequence = prompts()
    mask = sequence.valid.long()
    model.set_attn_implementation("eager")
    expected = model.generate(ids, attention_mask=mask, generation_config=GREEDY)
    longctx_bench.cache("h2o", model, budget=0.5)
    assert torch.equal(model.generate(ids, attention_mask=mask, generation_config=GREEDY), expected)


def test_what_it_cannot_do_is_said():
    model, mistral = (tiny(kind, Vanilla()).model for kind in ("llama", "mistral"))
    ids, sequence = prompts()
    with pytest.raises(Unsupported, match="attn_implementation='longctx:bigbird' is enough"):
        longctx_bench.cache("bigbird", model)
    with pytest.raises(Unsupported, match="vcc: it runs the stack of layers itself"):
        longctx_bench.cache("vcc", model)
    with pytest.raises(Unsupported, match="kvpress: it runs a function that another package"):
        longctx_bench.cache("kvpress", model)
    with pytest.raises(RequestError, match="Did you mean snapkv"):
        longctx_bench.cache("snap_kv", model)
    with pytest.raises(RequestError, match="Did you mean budget"):
        longctx_bench.cache("snapkv", model, budgets=0.5)
    cache = longctx_bench.cache("snapkv", model, budget=0.4, window=2)
    with pytest.raises(Unsupported, match="can't be restored"), torch.no_grad():
        model.generate(ids, past_key_values=cache, num_beams=2, max_new_tokens=3, do_sample=False)
    cache.reset()
    with pytest.raises(Unsupported, match="padding on the left"), torch.no_grad():
        mask = sequence.valid.flip(1).long()
        model(ids, attention_mask=mask, past_key_values=cache)
    cache = longctx_bench.cache("linear_transformer", mistral)
    with pytest.raises(Unsupported, match="sliding windows"), torch.no_grad():
        mistral(ids, past_key_values=cache)
