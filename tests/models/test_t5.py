"""T5Family: with vanilla it is Hugging Face's T5, padded or not; a method gets every call."""

import shutil

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config
from transformers import T5ForConditionalGeneration as T5

from bench.models.base import Spec
from bench.models.t5 import RelativeBias, T5Family
from methods.base import SequenceInfo
from methods.vanilla import Vanilla, VanillaEager
from methods.vcc.vcc import VCC


@pytest.fixture(scope="module")
def folder(tiny_t5, tmp_path_factory):
    """A T5 v1.1 of the sizes of `tiny_t5` whose relative bias matters."""
    path = tmp_path_factory.mktemp("t5")
    AutoTokenizer.from_pretrained(tiny_t5).save_pretrained(path)
    config = T5Config.from_pretrained(tiny_t5, feed_forward_proj="gated-gelu")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = T5(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(path)
    return path


@pytest.fixture
def family(folder):
    return T5Family.load(Spec("tiny", folder), Vanilla(), "float32", "cpu")


@pytest.fixture
def reference(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="eager").eval()


def request(n, padding):
    make = torch.Generator().manual_seed(n)
    ids = torch.randint(3, 64, (2, n), generator=make)
    target = torch.randint(3, 64, (2, 5), generator=make)
    valid = None
    if padding is not None:
        valid = torch.ones(2, n, dtype=torch.bool)
        valid[1, n // 2 + 1 :] = False
        valid = valid.flip(1) if padding == "left" else valid
        ids[~valid] = 0
    return ids, SequenceInfo(valid=valid), target


@pytest.mark.parametrize("method", [Vanilla(), VanillaEager()], ids=["vanilla", "eager"])
@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("n", [1, 13, 600])
@torch.no_grad()
def test_equals_hugging_face(folder, reference, method, padding, n):
    """In float64: rounding in float32 depends on the processor's vectors."""
    family = T5Family.load(Spec("tiny", folder), method, "float64", "cpu")
    reference.double()
    ids, sequence, target = request(n, padding)
    mask = torch.ones_like(ids) if sequence.valid is None else sequence.valid.long()
    theirs = reference(input_ids=ids, attention_mask=mask, labels=target)
    logits = family.logits(ids, sequence, target)
    torch.testing.assert_close(
        logits, theirs.logits, rtol=0, atol=1e-12 * theirs.logits.abs().max()
    )
    torch.testing.assert_close(family.loss(ids, sequence, target), theirs.loss)
    tokens = reference.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False
    )
    assert torch.equal(family.generate_ids(ids, sequence, 6), tokens)
    answers = family.tokenizer.batch_decode(tokens, skip_special_tokens=True)
    assert family.generate(ids, sequence, 6) == answers


@pytest.mark.parametrize("first", [0, 40, 170])
def test_a_bias_out_of_reach_is_looked_up_like_any_other(family, first):
    """Keys before all queries' reach, behind it, in another order, and in two rows apart."""
    bias = family.layers[0].bias
    make = torch.Generator().manual_seed(first)
    for order in (lambda x: x.sort().values, lambda x: x):
        keys = torch.stack([order(torch.randperm(2000, generator=make)[:200]) for _ in range(2)])
        queries = keys[:, first : first + 30]
        distance = (keys[:, None] - queries[..., None]).clamp(-128, 128) + 128
        expected = bias.table[:, distance].transpose(0, 1)
        assert torch.equal(bias(queries, keys), expected)
        weight = torch.randn(expected.shape, generator=make)
        gradients = [
            torch.autograd.grad((x * weight).sum(), bias.table, retain_graph=True)[0]
            for x in (bias(queries, keys), expected)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-3)  # sums of thousands


def test_trains_like_hugging_face(family, reference):
    ids, sequence, target = request(13, "right")
    family.loss(ids, sequence, target).backward()
    reference(input_ids=ids, attention_mask=sequence.valid.long(), labels=target).loss.backward()
    for ours, theirs in zip(family.model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5)


def test_relative_bias_is_hugging_faces(family, reference):
    theirs = reference.encoder.block[0].layer[0].SelfAttention
    full = theirs.compute_bias(600, 600)
    bias = RelativeBias.of(family.model.encoder.block[0].layer[0].SelfAttention)
    positions = torch.arange(600)[None]
    assert torch.equal(bias(positions, positions), full)
    assert torch.equal(bias(positions[:, 50:70], positions[:, :300]), full[:, :, 50:70, :300])
    assert torch.equal(bias.diagonals(600)[:, :600], full[0, :, 599])
    assert torch.equal(bias.diagonals(600)[:, 599:], full[0, :, 0])


@torch.no_grad()
def test_vcc_splits_blocks_that_are_far_from_every_vip_token(family):
    sequence = SequenceInfo(vip=(torch.arange(2000) < 10)[None])
    family.method = VCC(k=256, h=1)
    assert family.encode(torch.ones(1, 2000, dtype=torch.long), sequence).isfinite().all()


def test_random_weights_come_from_the_seed(folder):
    def weights(seed):
        state = torch.get_rng_state()
        spec = Spec("random", folder, config={"d_model": 16, "num_layers": 1}, seed=seed)
        family = T5Family.load(spec, Vanilla(), "bfloat16", "cpu")
        assert torch.equal(torch.get_rng_state(), state)
        return family.model.shared.weight

    assert weights(1).shape[1] == 16 and weights(1).dtype == torch.bfloat16
    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize(
    ("file", "words"),
    [("config.json", "no config.json"), ("model.safetensors", "weights"),
     ("tokenizer", "no tokenizer")],
)  # fmt: skip
def test_what_is_no_checkpoint_is_refused_in_one_line(folder, tmp_path, file, words):
    path = shutil.copytree(folder, tmp_path / "model")
    for found in path.glob(f"{file}*"):
        found.unlink()
    with pytest.raises(ValueError, match=words) as caught:
        T5Family.load(Spec("broken", path), Vanilla(), "float32", "cpu")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
