"""The result for each type of decoder, as a readable table whose every line is checked.

All types decode as transformers' `generate`. A method that ignores sliding windows runs in the
layers without one, where a model has such, and is refused where all layers have a shorter window.
"""

import json

import pytest
import torch
from transformers import CONFIG_MAPPING, GenerationConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

import longctx_bench
from bench.models import hf
from bench.models.auto import DECODERS, AutoFamily
from bench.models.base import Spec
from bench.models.decoder import DecoderFamily
from methods.base import SequenceInfo, Unsupported, refusal
from methods.h2o import H2O
from methods.parts.kv_cache import Entries
from methods.snapkv import SnapKV
from methods.sparq import SparQ
from methods.streaming_llm import StreamingLLM
from methods.vanilla import Vanilla
from tests.models.decoders import CONFIGS, LAYERS, SIZES, tiny

NONE, MIXED, ALL = "no windows", "window layers exact", "refused: windows in all layers"
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 3.0, 4.0],
    },
    "original_max_position_embeddings": 32,
    "sliding_window": None,
}  # fmt: skip
DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "max_position_embeddings": 32,
}
TYPES = {
    "cohere2": MIXED, "gemma": NONE, "gemma2": MIXED, "gemma3_text": MIXED, "glm": NONE,
    "gpt2": NONE, "gpt_neox": NONE, "gpt_oss": MIXED, "granite": NONE, "llama": NONE,
    "mistral": ALL, "nemotron": NONE, "olmo2": NONE, "opt": NONE, "phi": NONE, "phi3": ALL,
    "qwen2": MIXED, "qwen3": NONE, "smollm3": NONE, "stablelm": NONE, "starcoder2": ALL,
}  # fmt: skip
CHANGING = {  # type, configuration, "read anew" or "kept": the cache, where the frequencies change
    "phi3 with longrope": ("phi3", LONGROPE, "read anew"),
    "llama with longrope": ("llama", LONGROPE, "kept"),
    "llama with dynamic NTK": ("llama", DYNAMIC, "kept"),
    "qwen3 with dynamic NTK": ("qwen3", DYNAMIC, "kept"),
}
CONTAINERS = {  # multimodal model → the type as which its text model is read, or why it isn't
    "gemma3": "gemma3_text", "mistral3": "mistral", "llava": "llama", "llava_next": "llama",
    "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen3_vl": "qwen3", "internvl": "qwen2",
    "smolvlm": "llama", "idefics3": "llama",
    "paligemma": "a model of type 'gemma' can't be entered: it isn't causal",
}  # fmt: skip
N, NEW = 28, 12
GREEDY = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0)


def prompt(seed=1):
    return torch.randint(3, 64, (1, N), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def generated(model, ids, **more):
    """transformers' own greedy tokens."""
    implementation = model.config._attn_implementation
    if not more:
        model.set_attn_implementation("eager")
    model.generation_config.eos_token_id = None
    tokens = model.generate(ids, generation_config=GREEDY, **more)[:, ids.shape[1] :]
    model.set_attn_implementation(implementation)
    return tokens


def test_every_listed_type_is_tested():
    assert set(TYPES) == set(CONFIGS) == set(DECODERS)


@pytest.mark.parametrize("kind", TYPES)
@torch.no_grad()
def test_methods_that_ignore_windows(kind):
    """They run in the layers without a window, and the other layers are exact."""
    method, kept = SparQ(budget=4, r=4), N + NEW
    if kind in ("gemma2", "gpt_oss"):  # SparQ ignores soft caps and sinks, too
        method, kept = StreamingLLM(budget=8), 8
    family = tiny(kind, method)
    reason = refusal(method, family.workload(N, 1))
    if TYPES[kind] == ALL:
        assert reason == "this model's attention has sliding windows, which the method ignores"
        return
    assert reason is None
    assert family.exact_layers == (frozenset({0}) if TYPES[kind] == MIXED else frozenset())
    decoding = family.prefill(prompt(), SequenceInfo())
    for token in prompt(2)[:, :NEW].split(1, 1):
        decoding.step(token)
    assert {type(decoding.cache.layers[i]) for i in family.exact_layers} <= {Entries}
    assert decoding.cache.layers[1].size == kept
    family.method = Vanilla()
    exact = family.prefill(prompt(), SequenceInfo())
    for token in prompt(2)[:, :NEW].split(1, 1):
        exact.step(token)
    assert not torch.equal(exact.logits, decoding.logits)


@pytest.mark.parametrize("name", CHANGING)
@torch.no_grad()
def test_frequencies_that_depend_on_the_length(name):
    """Own decoding is `generate`, also after longer inputs, and in `logits`."""
    kind, config, _ = CHANGING[name]
    family = tiny(kind, Vanilla(), **config)
    family.model.generation_config.eos_token_id = None
    expected = generated(tiny(kind, Vanilla(), **config).model, prompt())
    family.generate_ids(prompt().repeat(1, 3), SequenceInfo(), NEW)  # a longer one before
    assert torch.equal(family.generate_ids(prompt(), SequenceInfo(), NEW), expected)
    decoding = family.prefill(prompt(), SequenceInfo())
    for token in expected[:, :-1].split(1, 1):
        decoding.step(token)
    torch.testing.assert_close(
        family.logits(prompt(), SequenceInfo(), expected)[:, -1], decoding.logits
    )


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("method", [SnapKV(budget=0.5, window=4), H2O(budget=0.5)], ids=str)
@torch.no_grad()
def test_a_cache_where_frequencies_change(name, method):
    """It is rebuilt from all tokens if the model reads them again, in `generate` too."""
    kind, config, change = CHANGING[name]
    family = tiny(kind, method, **config)
    family.model.generation_config.eos_token_id = None
    expected = family.generate_ids(prompt(), SequenceInfo(), NEW)
    decoding = family.prefill(prompt(), SequenceInfo())
    first, sizes = decoding.cache, []
    for token in expected[:, :-1].split(1, 1):
        decoding.step(token)
        sizes.append(decoding.cache.layers[0].size)
    assert (decoding.cache is first) == (change == "kept")
    if change == "read anew":
        assert sizes[32 - N] == round(0.5 * 33)
    parameters = {"snapkv": {"window": 4}, "h2o": {}}[type(method).__name__.lower()]
    cache = longctx_bench.cache(
        type(method).__name__.lower(), family.model, budget=0.5, **parameters
    )
    assert torch.equal(generated(family.model, prompt(), cache=cache), expected)
    assert cache.get_seq_length() == N + NEW - 1
    assert cache.kv.layers[0].size == decoding.cache.layers[0].size


@torch.no_grad()
def test_a_question_isnt_compressed_with_the_text_unsaid():
    family = tiny("phi3", SnapKV(budget=0.5, window=4), **LONGROPE)
    family.question_after = True
    vip = torch.arange(N)[None] >= N - 3
    decoding = family.prefill(prompt(), SequenceInfo(vip=vip))
    with pytest.raises(Unsupported, match="past 32 tokens this model reads text and question anew"):
        for token in prompt(2).split(1, 1):
            decoding.step(token)


def container(kind, folder):
    """A tiny random multimodal model of this type, saved; and the model."""
    configuration = CONFIG_MAPPING[kind]
    default = configuration()
    text = SIZES | {"head_dim": 8, "model_type": default.text_config.model_type}
    if text["model_type"] == "gemma3_text":
        text |= LAYERS | {"query_pre_attn_scalar": 8}
    if text["model_type"].endswith("vl_text"):
        text["rope_parameters"] = {"rope_type": "default", "mrope_section": [1, 1, 2],
                                   "rope_theta": 1e4}  # fmt: skip
    vision = {
        "model_type": default.vision_config.model_type, "hidden_size": 32, "num_hidden_layers": 1,
        "intermediate_size": 32, "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
        "depth": 1, "num_heads": 2, "out_hidden_size": 32, "embed_dim": 32,
    }  # fmt: skip
    torch.manual_seed(0)
    config = configuration(text_config=text, vision_config=vision)
    model = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[configuration](config).eval()
    for weight in model.parameters():
        weight.data.mul_(5 if weight.ndim == 2 else 1)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", CONTAINERS)
@torch.no_grad()
def test_the_text_model_of_a_multimodal_checkpoint(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "load_tokenizer", lambda folder: None)
    model = container(kind, tmp_path)
    try:
        family = AutoFamily.load(Spec(kind, tmp_path), Vanilla(), "float32", "cpu")
    except ValueError as error:
        assert str(error) == CONTAINERS[kind]
        return
    assert isinstance(family, DecoderFamily)
    assert family.model.config.model_type == CONTAINERS[kind]
    expected = generated(model, prompt())
    family.model.generation_config.eos_token_id = None
    assert torch.equal(family.generate_ids(prompt(), SequenceInfo(), NEW), expected)


def test_a_container_without_a_text_model_of_its_own_is_one_line(tmp_path):
    config = {"model_type": "glm4v", "architectures": ["Glm4vForConditionalGeneration"],
              "text_config": {}, "vision_config": {}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="'glm4v_text', which is no decoder of transformers"):
        AutoFamily.load(Spec("x", tmp_path), Vanilla(), "float32", "cpu")
