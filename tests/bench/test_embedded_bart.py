"""The embedded BART: how it begins, what its card measures, and how it is trained and used."""

import math
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

import bench
from bench import plugins
from bench.children import pairs
from bench.children.check_pairs import Entropy, answer
from bench.models.bart import BartFamily
from bench.models.base import Spec
from bench.models.embedded.either import Either
from bench.models.embedded.new_bart import start, waves
from bench.models.t5 import T5Family
from methods.base import Call, Sequence
from methods.fourier import Fourier
from methods.vanilla import Vanilla
from tasks.gist import held_out, rouge_lsum, training_pair
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def recipe():
    return OmegaConf.load(ROOT / "conf/embedded/bart.yaml")


@pytest.fixture(scope="module")
def new(recipe, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bart")
    start(recipe.new, 0, folder)
    return BartFamily.load(Spec("bart", folder), Vanilla(), "float32", "cpu")


def test_a_new_model_looks_at_neighbours_with_half_of_its_heads(new):
    ids = torch.randint(300, 800, (1, 400), generator=torch.Generator().manual_seed(0))

    class Near(Vanilla):
        def attend(self, query, key, value, call):
            shares = (query @ key.transpose(-1, -2) * call.scale).softmax(-1)
            near = (torch.arange(400)[:, None] - torch.arange(400)).abs() <= 12
            found[call.layer] = (shares * near).sum(-1).mean((0, 2))
            return shares @ value

    found: dict[int, torch.Tensor] = {}
    new.method = Near()
    new.encode(ids, Sequence())
    assert all((heads[:4] > 0.6).all() and (heads[4:] < 0.2).all() for heads in found.values())


def test_waves_repeat_after_their_length():
    table = waves(25, 4, 6, 12)
    assert table.shape == (25, 4)
    torch.testing.assert_close(table[0], table[12])
    assert not torch.allclose(table[0, 1::2], table[6, 1::2])


def test_its_batches_say_every_place_of_a_word(new):
    stage = OmegaConf.create({"pair": {"tokens": 256}, "batch_tokens": 512, "single": 0})
    batch = next(pairs.batches(stage, new.tokenizer, training_pair, 0, 0))
    row, token, asked, source = batch.copies.unbind(1)
    assert (asked == source).all(), "no question: guidance looks at the source alone"
    assert (batch.ids[row, source] == batch.target[row, token]).all()
    assert batch.ids.shape[0] == 2 and not batch.vip.all()


@pytest.mark.parametrize("family", [BartFamily, T5Family])
def test_entropy_reads_as_vanilla_does(family):
    model = family.tiny(Vanilla())
    ids = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        right = model.encode(ids, Sequence())
        model.method = entropy = Entropy()
        torch.testing.assert_close(model.encode(ids, Sequence()), right, atol=1e-4, rtol=1e-3)
    means = entropy.means()
    assert sorted(means) == [0, 1, 2] and all(len(heads) == 4 for heads in means.values())
    assert all(0 <= head <= math.log(20) + 0.01 for heads in means.values() for head in heads)


def test_entropy_of_even_attention():
    entropy = Entropy()
    flat = torch.zeros(1, 2, 8, 4)
    entropy.attend(flat, flat, flat, Call(Sequence(), 1.0, 0))
    assert entropy.means() == {0: [round(math.log(8), 2)] * 2}


def test_either_walks_in_one_of_its_settings_at_a_time():
    model = BartFamily.tiny(Vanilla())
    ids = torch.randint(3, 64, (1, 20), generator=torch.Generator().manual_seed(0))
    settings = [{"target": "methods.fourier:Fourier", "r": r} for r in (0.2, 0.5)]
    walks = []
    with torch.inference_mode():
        for model.method in [Fourier(r=0.2), Fourier(r=0.5), *[Either(settings)] * 12]:
            walks.append(model.encode(ids, Sequence()))
    drawn = {next(i for i, walk in enumerate(walks[:2]) if walk.equal(seen)) for seen in walks[2:]}
    assert drawn == {0, 1}


def test_weights_adapted_to_fourier_are_found_with_their_parameters():
    words = ("model=embedded-bart", "task=gist", "length=512", "n=2")
    made = bench.compose(*words, "method=fourier")
    assert (made.method["layers"], made.method["r"], made.method["norm"]) == (2, 0.5, "layer")
    assert made.protocol == "finetune"
    assert made.model["weights_sha256"] != made.baseline().model["weights_sha256"]
    assert bench.compose(*words, "method=bigbird").protocol == "swap"


@pytest.mark.parametrize("name", ["vanilla", "fourier"])
def test_the_shipped_weights_sum_up_better_than_any_constant(name):
    """The best constant answer scores 0.37."""
    cell = bench.compose("model=embedded-bart", "task=gist", "length=512", "n=4", f"method={name}")
    model = BartFamily.load(
        Spec("bart", Path(cell.model["path"])), plugins.build(cell.method), "float32", "cpu"
    )
    scores = []
    for index in range(4):
        ((query, text, right),) = held_out(index, 512)
        scores.append(rouge_lsum(answer(model, query, text, 512, 64), right))
    assert sum(scores) / len(scores) > 0.6
