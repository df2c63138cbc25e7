"""NaN in a method or a model is an error with its layer, and never a score."""

import gc
import weakref
from dataclasses import dataclass

import pytest
import torch

import bench
from bench.measure import integrity
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.bert import BertFamily
from bench.models.decoder import DecoderFamily
from bench.models.t5 import T5Family
from bench.request import plugins
from methods.base import Method, SequenceInfo
from methods.knorm import KNorm
from methods.kvzip import KVzip
from methods.vanilla import Vanilla
from tests.conftest import ROOT
from tests.methods.decoder import workload
from tests.rogues.rogues import NotANumber

IDS = torch.arange(4, 44)[None] % 60 + 3


@dataclass(frozen=True)
class Walks(Method):
    def encode(self, layers, hidden, sequence):
        return super().encode(layers, hidden, sequence) / 0


def encode(family, sequence=None):
    with torch.inference_mode(), integrity.watched(family):
        family.encode(IDS, sequence or SequenceInfo())


def test_a_watched_cache_is_freed_with_its_last_reference():
    """Caches of answers that have ended would otherwise fill the memory: garbage collection counts
    objects and not their bytes."""
    gc.disable()
    try:
        cache = weakref.ref(integrity.FiniteWatcher(KNorm(), 1).kv_cache(workload()))
        assert cache() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("family", [BertFamily, T5Family, DecoderFamily])
def test_the_layer_whose_attention_gives_nan_is_named(family):
    model = family.tiny(NotANumber())
    n = len(model.layers)
    with pytest.raises(integrity.NotFiniteError) as raised:
        encode(model)
    assert str(raised.value) == f"method NotANumber gave NaN in the attention of layer 2 of {n}"
    assert model.method == NotANumber(), "the method is itself again"


def test_a_walk_that_gives_infinity_is_named():
    with pytest.raises(integrity.NotFiniteError, match=r"Walks gave (NaN|infinity) in its walk"):
        encode(BertFamily.tiny(Walks()))


def test_weights_of_the_model_are_not_the_methods_fault():
    family = T5Family.tiny(Vanilla())
    family.model.encoder.block[0].layer[0].SelfAttention.q.weight.data[0] = torch.nan
    with pytest.raises(integrity.NotFiniteError, match="the model gave method Vanilla NaN in the"):
        encode(family)


def test_a_decoder_that_gives_nan_is_named():
    family = T5Family.tiny(Vanilla())
    family.model.decoder.block[0].layer[0].SelfAttention.v.weight.data[0] = torch.nan
    with (
        integrity.watched(family),
        pytest.raises(integrity.NotFiniteError, match="NaN as logits of"),
    ):
        family.generate_ids(IDS, SequenceInfo(), 2)
    family.generate_ids(IDS, SequenceInfo(), 2)  # no longer watched


@torch.inference_mode()
def test_a_watched_cache_is_still_read_again():
    answers = []
    for method in (KVzip(budget=12, chunk=16, sinks=2), Vanilla()):
        family = DecoderFamily.tiny(method)
        plain = family.prefill(IDS, SequenceInfo()).step(IDS[:, :1])
        with integrity.watched(family):
            watched = family.prefill(IDS, SequenceInfo()).step(IDS[:, :1])
        assert torch.equal(plain, watched)
        answers.append(watched)
    assert not torch.allclose(*answers)


def test_what_padding_holds_does_not_count():
    x, valid = torch.ones(1, 4, 2), torch.tensor([[True, True, True, False]])
    x[:, 3] = torch.nan
    assert integrity.not_finite(x, valid) is None
    assert integrity.not_finite(x, ~valid) == integrity.not_finite(x) == "NaN"


def test_large_finite_numbers_are_finite():
    x = torch.full((1, 2), torch.finfo(torch.float32).max)
    assert integrity.not_finite(x) is None
    assert integrity.not_finite(x * 2) == "infinity"
    assert integrity.not_finite(torch.full((1, 9), 60000, dtype=torch.float16)) is None


def test_it_is_checked_before_anything_is_timed():
    family = BertFamily.tiny(NotANumber())
    with torch.inference_mode(), pytest.raises(integrity.NotFiniteError, match="layer 2 of"):
        integrity.check_method(family, PerturbedInputs([(IDS, SequenceInfo())]))


def test_a_cell_ends_with_one_line_and_no_score(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_CONF_PATH", str(ROOT / "tests/rogues/conf"))
    plugins.conf_dirs.cache_clear()
    cell = bench.compose("method=not_a_number", "length=256", "n=1", "threads=1", "measure=quality")
    row = bench.run(cell, tmp_path)
    plugins.conf_dirs.cache_clear()
    assert (row["status"], row["status_stage"]) == ("error", "quality")
    assert row["status_detail"] == "method NotANumber gave NaN in the attention of layer 2 of 3"
    assert row.get("value") is None
