"""Every family but T5 (test_t5.py), LongT5 and LED (test_model_attention.py): with vanilla it is
Hugging Face's own model, padded or not."""

import json
from dataclasses import dataclass

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoTokenizer

from bench.errors import RequestError
from bench.models.auto import AUTO, FAMILIES, AutoFamily, resolve
from bench.models.bart import BartFamily
from bench.models.base import Spec
from bench.models.bert import BertFamily, RobertaFamily
from bench.models.checkpoints import cast
from bench.models.decoder import DecoderFamily
from bench.models.led import LEDFamily
from bench.models.longt5 import LongT5Family
from bench.models.lra import LRAConfig, LRAFamily, LRAModel
from bench.models.t5 import T5Family
from bench.request import plugins
from methods import kernels
from methods.base import Method, SequenceInfo, Unsupported
from methods.parts.attention import per_head
from methods.vanilla import Vanilla, VanillaEager
from methods.vcc.vcc import VCC

ALL = [
    BartFamily,
    BertFamily,
    LEDFamily,
    DecoderFamily,
    LongT5Family,
    LRAFamily,
    RobertaFamily,
    T5Family,
]
PAD = {BartFamily: 1, LEDFamily: 1, RobertaFamily: 1}


def request(kind, padding, n=13):
    make = torch.Generator().manual_seed(n)
    ids = torch.randint(3, 64, (2, n), generator=make)
    valid = torch.ones(2, n, dtype=torch.bool)
    if padding is not None:
        valid[1, n // 2 + 1 :] = False
        valid = valid.flip(1) if padding == "left" else valid
        ids[~valid] = PAD.get(kind, 0)
    return ids, SequenceInfo(valid=None if padding is None else valid), valid.long()


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("method", [Vanilla(), VanillaEager()], ids=["vanilla", "eager"])
@pytest.mark.parametrize("padding", [None, "right"])
@torch.no_grad()
def test_bert_and_roberta_are_hugging_faces(method, padding):
    for kind in (BertFamily, RobertaFamily):
        family = kind.tiny(method)
        ids, sequence, mask = request(kind, padding)
        theirs = family.model(ids, attention_mask=mask, labels=torch.tensor([0, 1]))
        hidden = family.model.base_model(ids, attention_mask=mask).last_hidden_state
        close(family.encode(ids, sequence)[mask.bool()], hidden[mask.bool()])
        target = torch.tensor([[0], [1]])
        close(family.logits(ids, sequence, target)[:, 0], theirs.logits)
        close(family.loss(ids, sequence, target), theirs.loss)
        answers = [f"LABEL_{label}" for label in theirs.logits.argmax(-1).tolist()]
        assert family.generate(ids, sequence, 5) == answers


@pytest.mark.parametrize("padding", [None, "right"])
@torch.no_grad()
def test_bart_is_hugging_faces(padding):
    family = BartFamily.tiny(Vanilla())
    ids, sequence, mask = request(BartFamily, padding)
    target = torch.tensor([[5, 6, 7], [8, 9, -100]])
    theirs = family.model(input_ids=ids, attention_mask=mask, labels=target)
    close(family.logits(ids, sequence, target), theirs.logits)
    close(family.loss(ids, sequence, target), theirs.loss)
    tokens = family.model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False, num_beams=1
    )
    family.calls = 0
    assert torch.equal(family.generate_ids(ids, sequence, 6), tokens)
    assert family.calls == 3  # the decoder's attention isn't the method's


@torch.no_grad()
def test_llama_stops_at_the_end_token():
    family = DecoderFamily.tiny(Vanilla())
    ids, sequence, _ = request(DecoderFamily, "left")
    family.model.generation_config.eos_token_id = None
    free = family.generate_ids(ids, sequence, 6)
    family.model.generation_config.eos_token_id = end = int(free[0, 2])
    stopped = family.generate_ids(ids, sequence, 6)
    first = (free == end).long().argmax(1)
    for row, at in enumerate(first.tolist()):
        if bool((free[row] == end).any()):
            assert torch.equal(stopped[row, : at + 1], free[row, : at + 1])
            assert bool((stopped[row, at:] == end).all())


def test_a_prompt_that_is_not_read_whole_cannot_be_decoded_from():
    class Half(Method):
        def encode(self, layers, hidden, sequence):
            half = hidden[:, : hidden.shape[1] // 2]
            return torch.cat((super().encode(layers, half, sequence), hidden), 1)

    ids, sequence, _ = request(DecoderFamily, None)
    with pytest.raises(Unsupported, match="every layer's keys"):
        DecoderFamily.tiny(Half()).generate_ids(ids, sequence, 3)


@pytest.mark.parametrize("kind", ALL)
@torch.no_grad()
def test_scores_are_the_layers_own(kind):
    """softmax(scores) of a layer, at scattered positions, is what its attention reads with."""
    seen = []

    @dataclass(frozen=True)
    class Spy(Method):
        def attend(self, query, key, value, call):
            bias = 0 if call.bias is None else call.bias(positions, positions)
            seen.append(query @ per_head(query, key)[0].transpose(-1, -2) * call.scale + bias)
            return super().attend(query, key, value, call)

    family = kind.tiny(Spy())
    hidden = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([[0, 5, 900, 7, 1, 300, 301, 40, 41], [8, 7, 6, 5, 4, 3, 2, 1, 0]])
    sequence = SequenceInfo(positions=positions)
    for layer in family.layers:
        layer(hidden, sequence)
        torch.testing.assert_close(layer.scores(hidden, sequence, hidden, sequence), seen[-1])


@pytest.mark.parametrize("kind", [BertFamily, RobertaFamily, BartFamily])
@torch.no_grad()
def test_positions_past_the_table_are_its_tiles(kind):
    short, long = kind.tiny(Vanilla()), kind.tiny(Vanilla())
    encoder = long.model.get_encoder() if kind is BartFamily else None
    table = encoder.embed_positions if encoder else long.model.base_model.embeddings
    table = table if encoder else table.position_embeddings
    first = table.num_embeddings - 128
    weight = table.weight.data
    table.weight.data = torch.cat((weight[:first], *[weight[first:]] * 3))
    table.num_embeddings = first + 3 * 128
    long.model.config.max_position_embeddings = 3 * 128 + (0 if encoder else first)
    if not encoder:
        embeddings = long.model.base_model.embeddings
        embeddings.token_type_ids = torch.zeros(1, 3 * 128 + first, dtype=torch.long)
    ids, sequence, _ = request(kind, None, n=301)
    close(short.encode(ids, sequence), long.encode(ids, sequence))


@torch.no_grad()
def test_lra_pools_valid_tokens_and_reads_pairs():
    ids, _, mask = request(LRAFamily, "right")
    sequence = SequenceInfo(valid=mask.bool())
    family = LRAFamily.tiny(Vanilla())
    hidden = family.model(ids, mask)
    close(family.encode(ids, sequence)[mask.bool()], hidden[mask.bool()])
    mean = torch.stack([row[valid].mean(0) for row, valid in zip(hidden, mask.bool(), strict=True)])
    close(family.classify(ids, sequence), family.model.head(mean))
    family.model.config.mean_of_all = True
    close(family.classify(ids, sequence), family.model.head(mean * mask.sum(1)[:, None] / 13))
    assert family.generate(ids, sequence, 1)[0] in "0123456789"


@pytest.mark.parametrize("taken", [False, True])
@torch.no_grad()
def test_lra_with_cls_and_two_texts(taken):
    config = LRAConfig(vocab_size=64, pooling="cls", dual=True, cls_takes_id=taken, num_labels=2)
    family = LRAFamily(LRAModel(config), None, Vanilla())
    ids, sequence, mask = request(LRAFamily, "right")
    number = 63 if taken else 64
    assert family.model.tokens.num_embeddings == number + 1
    texts = torch.nn.functional.pad(ids[:, : 12 if taken else 13], (1, 0), value=number)
    mask = torch.nn.functional.pad(mask[:, : 12 if taken else 13], (1, 0), value=1)
    one, other = family.model(texts, mask)[:, 0]
    both = torch.cat((one, other, one * other, one - other))[None]
    close(family.classify(ids, sequence), family.model.head(both))


def test_lra_says_what_it_cannot_take():
    with pytest.raises(ValueError, match="'mean' or 'cls'"):
        LRAConfig(pooling="max")
    family = LRAFamily.tiny(Vanilla())
    with pytest.raises(ValueError, match="5000 tokens; the model has 4096"):
        family.encode(torch.ones(1, 5000, dtype=torch.long), SequenceInfo())


# --- loading -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_a_checkpoint_finds_its_family(kind, tiny_t5, tmp_path):
    kind.tiny(Vanilla()).model.save_pretrained(tmp_path)
    if kind is not LRAFamily:  # whose tasks have ids of their own
        AutoTokenizer.from_pretrained(tiny_t5).save_pretrained(tmp_path)
    family = AutoFamily.load(Spec("own", tmp_path), Vanilla(), "float32", "cpu")
    assert type(family) is kind and not family.lacks
    ids, sequence, _ = request(kind, "right")
    with torch.no_grad():
        close(family.encode(ids, sequence), kind.tiny(Vanilla()).encode(ids, sequence))


RANDOM = [name for name in sorted(plugins.available("model")) if name.startswith("random-")]


@pytest.mark.parametrize("name", RANDOM)
def test_random_models_are_of_the_family_they_name(name, tiny_t5):
    conf = plugins.conf("model", name)
    assert conf["weights"] == "random" and conf["name"] == name
    assert resolve(AUTO, tiny_t5, conf["config"]) == conf["family"]
    kind = conf["config"].get("model_type", "t5")
    made = CONFIG_MAPPING[kind](**{k: v for k, v in conf["config"].items() if k != "model_type"})
    for key, value in conf["config"].items():
        assert getattr(made, key) == value, key


def test_rotary_frequencies_stay_in_float32():
    family = DecoderFamily.tiny(Vanilla())
    cast(family.model, torch.bfloat16)
    assert family.model.model.rotary_emb.inv_freq.dtype == torch.float32
    assert {weight.dtype for weight in family.model.parameters()} == {torch.bfloat16}


def test_what_is_of_no_family_is_refused_in_one_line(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(ValueError, match=r"'mamba'.*llama") as caught:
        AutoFamily.load(Spec("x", tmp_path), Vanilla(), "float32", "cpu")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="no checkpoint"):
        resolve(AUTO, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="takes 'bert'"):
        BertFamily.load(Spec("x", tmp_path), Vanilla(), "float32", "cpu")
    assert resolve("mine:Family", tmp_path) == "mine:Family" and set(FAMILIES) >= {"t5", "lra"}


def test_an_encoder_decodes_nothing():
    ids, sequence, _ = request(BertFamily, None)
    with pytest.raises(RequestError, match="Bert is no decoder"):
        BertFamily.tiny(Vanilla()).prefill(ids, sequence)


@torch.no_grad()
def test_vcc_in_bert_is_the_same_with_the_native_kernel():
    ids, sequence, _ = request(BertFamily, "right", n=60)
    vip = torch.zeros_like(ids, dtype=torch.bool)
    vip[:, 5:9] = True
    sequence = sequence.replace(vip=vip)
    outputs = []
    for kernel in ("torch", "native"):
        method = VCC(kernel=kernel).scaled_down()
        outputs.append(BertFamily.tiny(method).encode(ids, sequence))
        used = getattr(method, "kernel_used", "torch")
        assert used.startswith("native") == (kernel == "native" and kernels.available() is None)
    close(*outputs)
