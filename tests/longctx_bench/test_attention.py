"""Methods as `attn_implementation` in models that transformers runs: as the harness runs them."""

import subprocess
import sys

import pytest
import torch
import transformers

import longctx_bench
from bench.errors import RequestError
from bench.models.bart import BartFamily
from bench.models.bert import BertFamily, RobertaFamily
from longctx_bench.named import built
from methods.base import SequenceInfo, Unsupported
from methods.vanilla import Vanilla
from tests.conftest import ROOT
from tests.models.decoders import tiny
from tests.models.test_decoders import NEW, N, close, prompts

GREEDY = transformers.GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=2)
SMALL = {
    "iceformer": {"k": 4, "kernel": "torch"},
    "vertical_slash": {"vertical": 1, "slash": 2, "first_columns": 1, "near_diagonals": 1,
                       "granularity": "token", "kernel": "torch"},
    "a_shape": {"global_tokens": 2, "local_window": 4, "kernel": "torch"},
    "bigbird": {"block_size": 2, "window": 1, "random": 1, "kernel": "torch"},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def usable():
    return longctx_bench.register(**SMALL)


def loaded(family, folder, implementation, auto=transformers.AutoModelForCausalLM):
    """The family's model as a user loads it."""
    family.model.save_pretrained(folder)
    return auto.from_pretrained(folder, attn_implementation=implementation).eval()


@pytest.mark.parametrize("kind", ["gemma2", "gpt2", "gpt_oss", "mistral"])
@torch.no_grad()
def test_a_decoder_reads_as_with_eager_attention(kind):
    model = tiny(kind, Vanilla()).model
    ids, sequence = prompts()
    given = {"input_ids": ids, "attention_mask": sequence.valid.long()}
    logits, tokens = [], []
    for name in ("eager", "longctx:vanilla"):
        model.set_attn_implementation(name)
        logits.append(model(**given).logits[sequence.valid])
        tokens.append(model.generate(**given, generation_config=GREEDY))
    close(logits[1], logits[0])
    assert torch.equal(*tokens)


@pytest.mark.parametrize("name", ["iceformer", "vertical_slash", "a_shape"])
@torch.no_grad()
def test_a_decoder_answers_as_in_the_harness(name, tmp_path):
    method = built(name, SMALL.get(name, {}))
    family = tiny("llama", method)
    ids, sequence = prompts()
    expected = family.generate_ids(ids, sequence, NEW)
    model = loaded(family, tmp_path, f"longctx:{name}")
    mask = sequence.valid.long()
    tokens = model.generate(ids, attention_mask=mask, generation_config=GREEDY)[:, N:]
    assert torch.equal(tokens, expected)
    logits = model(ids, attention_mask=mask).logits[:, -1]
    close(logits, family.prefill(ids, sequence).logits)
    model.set_attn_implementation("sdpa")
    assert not torch.allclose(model(ids, attention_mask=mask).logits[:, -1], logits)


@pytest.mark.parametrize("kind", [BertFamily, RobertaFamily, BartFamily])
@pytest.mark.parametrize("name", ["bigbird", "performer"])
@torch.no_grad()
def test_an_encoder_reads_as_in_the_harness(kind, name, tmp_path):
    family = kind.tiny(built(name, SMALL.get(name, {})))
    ids, sequence = prompts()
    ids, valid = ids.flip(1), sequence.valid.flip(1)  # padding on the right
    ids = ids.masked_fill(~valid, family.model.config.pad_token_id or 0)
    expected = family.encode(ids, SequenceInfo(valid=valid))
    model = loaded(family, tmp_path, f"longctx:{name}", transformers.AutoModel)
    encoder = model.get_encoder() if model.config.is_encoder_decoder else model
    close(encoder(ids, attention_mask=valid.long()).last_hidden_state[valid], expected[valid])


@torch.no_grad()
def test_a_decoder_beside_an_encoder_is_exact(tmp_path):
    family = BartFamily.tiny(built("bigbird", SMALL["bigbird"]))
    ids, sequence = prompts()
    ids, valid = ids.flip(1), sequence.valid.flip(1)
    expected = family.generate_ids(ids, SequenceInfo(valid=valid), NEW)
    model = loaded(family, tmp_path, "longctx:bigbird", transformers.AutoModelForSeq2SeqLM)
    mask = valid.long()
    assert torch.equal(
        model.generate(ids, attention_mask=mask, max_new_tokens=NEW, num_beams=1), expected
    )


def reason(model, **given):
    ids, _ = prompts()
    with pytest.raises(Unsupported) as raised, torch.no_grad():
        model(ids, **given)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_what_cannot_be_used_says_why(usable):
    family = tiny("llama", Vanilla())

    def of(name, **given):
        family.model.set_attn_implementation(f"longctx:{name}")
        return reason(family.model, **given)

    assert {"longctx:bigbird", "longctx:iceformer", "longctx:vanilla"} <= set(usable)
    for name, why in {
        "vcc": "it runs the stack of layers itself",
        "fnet": "it needs the hidden states",
        "linformer": "it has parameters in each layer",
        "snapkv": "longctx_bench.cache('snapkv', model)",
        "kvpress": "another package already offers",
        "hf": "another package already offers",
    }.items():
        assert why in of(name) and f"longctx:{name}" not in usable
    assert of("bigbird").startswith("longctx:bigbird: BigBird is for encoders")
    assert "no mask of another shape" in of("vanilla", attention_mask=torch.ones(2, 1, N, N))
    packed = torch.arange(N).expand(2, N) % 7
    assert "more than causal" in of("vanilla", position_ids=packed, use_cache=False)
    static = transformers.StaticCache(config=family.model.config, max_cache_len=64)
    assert "DynamicCache" in of("vanilla", past_key_values=static)


def test_other_models_say_why():
    sizes = {"dim": 16, "n_heads": 4, "n_layers": 1, "hidden_dim": 16, "vocab_size": 64}
    config = transformers.DistilBertConfig(**sizes)
    one = transformers.AutoModel.from_config(config, attn_implementation="longctx:bigbird")
    assert "have no layer number" in reason(one)
    config = transformers.T5Config(d_model=16, d_kv=4, num_heads=4, num_layers=1)
    t5 = transformers.AutoModel.from_config(config)
    t5.set_attn_implementation("longctx:bigbird")
    assert "position_bias" in reason(t5, decoder_input_ids=torch.ones(2, 1, dtype=torch.long))


def test_a_wrong_name_says_the_nearest():
    with pytest.raises(RequestError, match="Did you mean bigbird"):
        longctx_bench.register(bigbrd={"window": 3})
    with pytest.raises(RequestError, match="Did you mean window"):
        longctx_bench.register(bigbird={"windows": 3})
    with pytest.raises(RequestError, match="1, 3, 5"):
        longctx_bench.register(bigbird={"window": 0})
    with pytest.raises(Unsupported, match="longctx:vcc: it runs the stack of layers itself"):
        longctx_bench.register(vcc={})


def test_to_import_it_loads_no_torch():
    program = "import sys, longctx_bench; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "set()", done.stderr


@torch.no_grad()
def test_a_method_that_ignores_windows_runs_in_the_other_layers():
    longctx_bench.register(a_shape=SMALL["a_shape"])
    ids, _ = prompts()
    family = tiny("gemma3_text", built("a_shape", SMALL["a_shape"]))
    expected = family.logits(ids, SequenceInfo(), ids[:, :1])[:, 0]
    family.model.set_attn_implementation("longctx:a_shape")
    close(family.model(ids).logits[:, -1], expected)
    mistral = tiny("mistral", Vanilla()).model
    mistral.set_attn_implementation("longctx:a_shape")
    with pytest.raises(Unsupported, match="sliding windows"):
        mistral(ids)
