"""Decoders of every type: with vanilla they are transformers' own eager models, padded or not."""

import json

import pytest
import torch
from transformers import GenerationConfig

from bench.models import auto
from bench.models.auto import AutoFamily, resolve
from bench.models.base import Spec
from bench.models.decoder import LLAMA_BLOCKS
from bench.models.wrappers import Wrapped
from methods.base import Feature, Method, SequenceInfo, Unsupported, refusal
from methods.bigbird.bigbird import BigBird
from methods.fnet import FNet
from methods.parts.kv_cache import FullCache
from methods.sparq import SparQ
from methods.vanilla import Vanilla, VanillaEager
from tests.models.decoders import CONFIGS, tiny

N, NEW = 21, 6
WINDOWED = {"cohere2", "gemma2", "gemma3_text", "gpt_oss", "mistral", "phi3", "qwen2", "starcoder2"}


def prompts():
    """Two rows [2, 21], the second with 9 tokens of padding on the left."""
    ids = torch.randint(3, 64, (2, N), generator=torch.Generator().manual_seed(1))
    valid = torch.ones(2, N, dtype=torch.bool)
    valid[1, :9] = False
    return ids * valid, SequenceInfo(valid=valid)


@torch.no_grad()
def eager(family, ids):
    """transformers' own greedy tokens [1, NEW] after ids [1, n], and the logits of each."""
    model = family.model
    model.set_attn_implementation("eager")
    greedy = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0)
    output = model.generate(
        ids, generation_config=greedy, output_logits=True, return_dict_in_generate=True
    )
    model.set_attn_implementation("bench")
    return output.sequences[:, ids.shape[1] :], torch.cat(output.logits)


def close(ours, theirs, tolerance=2e-5):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * float(theirs.abs().max()))


@pytest.mark.parametrize("kind", CONFIGS)
@torch.no_grad()
def test_vanilla_is_transformers_own_eager_model(kind):
    family = tiny(kind, Vanilla())
    family.model.generation_config.eos_token_id = None
    ids, sequence = prompts()
    tokens = family.generate_ids(ids, sequence, NEW)
    for method in (Vanilla(), VanillaEager(), Vanilla(kernel="native")):
        family.method = method
        logits = family.logits(ids, sequence, tokens)
        for row in range(2):
            own = ids[row : row + 1, sequence.valid[row]]
            expected, of_each = eager(family, own)
            assert torch.equal(tokens[row : row + 1], expected)
            close(logits[row], of_each)
            close(family.logits(own, SequenceInfo(), expected)[0], of_each)
    decoding = family.prefill(ids, sequence)
    close(decoding.logits, logits[:, 0])
    close(decoding.step(tokens[:, :3]), logits[:, 3])  # three at once
    assert decoding.sequence.positions[:, -1].tolist() == [N + 2, N - 7]
    workload = family.workload(N, 2)
    assert (Feature.WINDOW in workload.features) == (kind in WINDOWED)
    assert (Feature.SOFTCAP in workload.features) == (kind == "gemma2")
    assert (Feature.SINKS in workload.features) == (kind == "gpt_oss")
    assert workload.rotatable == (kind not in ("gpt2", "opt"))


@pytest.mark.parametrize("kind", CONFIGS)
@torch.no_grad()
def test_keys_can_be_turned_to_other_positions(kind):
    seen = []

    class Spy(FullCache):
        def prefill(self, query, key, value, call):
            seen.append((query, key, call.rotate))
            return torch.zeros_like(query)  # so that no layer sees positions in what it reads

    class Spied(Vanilla):
        def kv_cache(self, workload):
            return Spy()

    family = tiny(kind, Spied())
    ids, _ = prompts()
    shifts = torch.tensor([[3, 3, 5, 0, 100] + [7] * (N - 5)]).expand(2, N)
    for shift in (0, shifts):
        family.prefill(ids, SequenceInfo(positions=torch.arange(N).expand(2, N) + shift))
    if not family.workload(N, 2).rotatable:
        assert {rotate for *_, rotate in seen} == {None}
        return
    before, after = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    for (query, key, rotate), (other_query, other_key, _) in zip(before, after, strict=True):
        close(rotate(query, shifts), other_query)
        close(rotate(key, shifts[:, None].expand(key.shape[:3])), other_key)


@pytest.mark.parametrize("kind", LLAMA_BLOCKS)
@torch.no_grad()
def test_llamas_blocks_walked_are_the_models_own_forward(kind):
    family = tiny(kind, Vanilla())
    ids, sequence = prompts()
    walked = family.encode(ids, sequence)
    own = family._run(family.model.base_model, ids, sequence.replace(causal=True))
    close(walked, own.last_hidden_state)


def test_what_a_method_cant_honour_is_said_in_words():
    def reason(method, kind, length=N):
        return refusal(method, tiny(kind, Vanilla()).workload(length, 1))

    assert reason(Method(), "llama") is None
    assert "attention has sliding windows, which" in reason(Method(), "mistral")
    assert reason(Method(), "mistral", length=8) is None
    assert "sink logits and sliding windows" in reason(Method(), "gpt_oss")
    assert "soft caps on scores" in reason(BigBird(), "gemma2")

    class Mixes(Method):
        def mix(self, hidden, sublayer, call):
            return super().mix(hidden, sublayer, call)

    assert reason(Mixes(), "llama") is None
    assert "only their attention" in reason(Mixes(), "gpt2")
    assert "only their attention" in reason(FNet(), "gpt2")


def test_a_closed_block_says_so():
    family = tiny("gpt2", Vanilla())
    assert len(family.layers) == 2
    with pytest.raises(Unsupported, match="only their attention"):
        family.layers[0](torch.zeros(1, 2, 32), SequenceInfo())


def test_a_table_of_positions_ends():
    family = tiny("gpt2", Vanilla())
    with pytest.raises(Unsupported, match="gpt2 has learned positions for 128 tokens alone"):
        family.prefill(torch.ones(1, 129, dtype=torch.long), SequenceInfo())


@torch.no_grad()
def test_an_answer_that_leaves_the_window_is_refused_where_it_is_ignored():
    ids = torch.ones(1, 7, dtype=torch.long)
    decoding = tiny("mistral", Wrapped(SparQ(budget=4))).prefill(ids, SequenceInfo())
    decoding.step(ids[:, :1])
    with pytest.raises(Unsupported, match="window of 8 tokens, which ends here"):
        decoding.step(ids[:, :1])


SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "n_layer": 2,
    "n_head": 4,
    "num_attention_heads": 4,
}
REFUSED = {
    "falcon": (SMALL, "0 of its 2 layers"),
    "mamba": (SMALL | {"state_size": 4}, "a state that isn't keys and values"),
    "lfm2": (SMALL | {"layer_types": ["conv", "full_attention"]}, "1 of its 2 layers"),
    "llama4_text": ({"layer_types": ["chunked_attention"] * 2}, "within chunks"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_architecture_that_cant_be_entered_is_one_line(kind):
    config, reason = REFUSED[kind]
    with pytest.raises(ValueError, match=reason) as raised:
        tiny(kind, Vanilla(), **config)
    assert str(raised.value).startswith(f"a model of type '{kind}' can't be entered: ")
    assert "\n" not in str(raised.value)


def test_a_checkpoint_finds_the_family_by_its_class(tmp_path):
    config = {"model_type": "arcee", "architectures": ["ArceeForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve("bench.models.auto:AutoFamily", tmp_path).endswith(":DecoderFamily")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5gemma"}))
    with pytest.raises(ValueError, match="decoders"):
        AutoFamily.load(Spec("x", tmp_path), Vanilla(), "float32", "cpu")


def test_what_a_checkpoint_asks_for_and_is_not_applied_is_named(tmp_path):
    """Answers are greedy; a decoder's penalties and minimum lengths are not applied."""
    settings = {"do_sample": True, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3,
                "num_beams": 1, "min_length": 0, "temperature": 0.7}  # fmt: skip
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    decoder = auto.ignored_generation(tmp_path, auto.DECODER)
    assert decoder == "do_sample=True, repetition_penalty=1.1, no_repeat_ngram_size=3"
    # transformers' own generation, which encoder-decoders answer by, applies the penalties.
    assert auto.ignored_generation(tmp_path, auto.FAMILIES["bart"]) == "do_sample=True"
    for text in ("{}", "[]", "not JSON"):
        (tmp_path / "generation_config.json").write_text(text)
        assert auto.ignored_generation(tmp_path, auto.DECODER) is None


def test_positions_beyond_a_rotary_models_configuration_are_known(tmp_path):
    for config, expected in (
        ({"model_type": "llama", "max_position_embeddings": 2048}, 2048),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text",
                                                  "max_position_embeddings": 32768}}, 32768),
        ({"model_type": "bart", "max_position_embeddings": 1024}, None),
        ({"model_type": "t5"}, None),
    ):  # fmt: skip
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert auto.rotary_positions(tmp_path) == expected
