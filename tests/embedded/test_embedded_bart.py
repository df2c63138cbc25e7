"""The embedded BART: its initial weights, the measurements on its card, its training and use."""

import math

import pytest
import torch
from omegaconf import OmegaConf

import bench
from bench.models.bart import BartFamily
from bench.models.t5 import T5Family
from methods.base import AttentionCall, SequenceInfo
from methods.fourier.fourier import Fourier
from methods.vanilla import Vanilla
from tools.embedded import score
from tools.embedded.entropy import Entropy
from tools.embedded.models.either import Either


@pytest.fixture(scope="module")
def objective(new_model):
    return new_model("bart")[1]


def test_a_new_model_looks_at_neighbours_with_half_of_its_heads(objective):
    ids = torch.randint(300, 800, (1, 400), generator=torch.Generator().manual_seed(0))

    class Near(Vanilla):
        def attend(self, query, key, value, call):
            shares = (query @ key.transpose(-1, -2) * call.scale).softmax(-1)
            near = (torch.arange(400)[:, None] - torch.arange(400)).abs() <= 12
            nearby[call.layer] = (shares * near).sum(-1).mean((0, 2))
            return shares @ value

    nearby: dict[int, torch.Tensor] = {}
    objective.family.method = Near()
    objective.family.encode(ids, SequenceInfo())
    assert all((heads[:4] > 0.6).all() and (heads[4:] < 0.2).all() for heads in nearby.values())


def test_its_batches_say_every_place_of_a_word(objective):
    stage = OmegaConf.create({"pair": {"tokens": 256}, "batch_tokens": 512, "single": 0})
    _, batch = next(objective.batches(stage, 0))
    row, token, asked, source = batch.copies.unbind(1)
    assert (asked == source).all(), "no question: guidance looks at the source alone"
    assert (batch.ids[row, source] == batch.target[row, token]).all()
    assert batch.ids.shape[0] == 2 and not batch.vip.all()


@pytest.mark.parametrize("family", [BartFamily, T5Family])
def test_entropy_reads_as_vanilla_does(family):
    model = family.tiny(Vanilla())
    ids = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        right = model.encode(ids, SequenceInfo())
        model.method = entropy = Entropy()
        torch.testing.assert_close(model.encode(ids, SequenceInfo()), right, atol=1e-4, rtol=1e-3)
    nats = entropy.nats
    assert sorted(nats) == [0, 1, 2] and all(len(heads) == 4 for heads in nats.values())
    assert all(0 <= head <= math.log(20) + 0.01 for heads in nats.values() for head in heads)


@pytest.mark.parametrize("last", [False, True])
def test_entropy_of_even_attention(last):
    entropy = Entropy(last=last)
    flat = torch.zeros(1, 2, 8, 4)
    entropy.attend(flat, flat, flat, AttentionCall(SequenceInfo(), 1.0, 0))
    assert entropy.nats[0].tolist() == pytest.approx([math.log(8)] * 2)


def test_either_walks_in_one_of_its_settings_at_a_time():
    model = BartFamily.tiny(Vanilla())
    ids = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(0))
    settings = [{"target": "methods.fourier.fourier:Fourier", "r": r} for r in (0.2, 0.5)]
    walks = []
    with torch.inference_mode():
        for model.method in [Fourier(r=0.2), Fourier(r=0.5), *[Either(settings)] * 12]:
            walks.append(model.encode(ids, SequenceInfo()))
    drawn = {next(i for i, walk in enumerate(walks[:2]) if walk.equal(seen)) for seen in walks[2:]}
    assert drawn == {0, 1}


def test_weights_adapted_to_fourier_are_found_with_their_parameters():
    words = ("model=embedded-bart", "task=gist", "length=512", "n=2")
    made = bench.compose(*words, "method=fourier")
    assert (made.method["layers"], made.method["r"]) == (2, 0.5)
    assert made.protocol == "finetune"
    assert made.model["weights_sha256"] != made.baseline().model["weights_sha256"]
    assert bench.compose(*words, "method=bigbird").protocol == "swap"


@pytest.mark.parametrize("name", ["vanilla", "fourier"])
def test_the_shipped_weights_sum_up_better_than_any_constant(name, tmp_path):
    words = f"model=embedded-bart task=gist length=512 n=4 method={name} threads=1"
    figures = score.figures(bench.compose(*words.split()), tmp_path)
    assert figures["rouge_stemmed"] > 60 and figures["rows"] == 4
