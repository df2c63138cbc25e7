"""The LRA encoder under a method that leaves fewer states than tokens, and its dropouts."""

import pytest
import torch

from bench.measure import integrity
from bench.measure.latency import fidelity
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.lra import LRAConfig, LRAFamily, LRAModel
from methods.base import SequenceInfo
from methods.fourier.fourier import Fourier
from methods.vanilla import Vanilla


@pytest.mark.parametrize("residual", ["raw", "normed"])
def test_a_method_that_shortens_passes_the_gate_and_is_pooled(residual, monkeypatch):
    for name in ("check_python_threads", "check_processes"):  # the runner of the tests has such
        monkeypatch.setattr(integrity, name, lambda: None)
    family = LRAFamily.tiny(Fourier(upsample=False, residual=residual))
    ids = torch.randint(1, 64, (2, 40))
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[1, 25:] = False
    sequence = SequenceInfo(valid=valid)
    with torch.inference_mode():
        assert family.encode(ids, sequence).shape[:2] == (2, 8)
        assert family.classify(ids, sequence).shape == (2, 10)
        integrity.check_method(family, PerturbedInputs([(ids, sequence)]))
        told = fidelity(family, Vanilla(), (ids, sequence))
    assert told == {"fid_reason": "the method's output has another length than its input"}


def test_attention_may_have_a_dropout_of_its_own():
    seen = []

    def attend(query, key, value, scale, dropout):
        seen.append(dropout)
        return value

    hidden = torch.randn(1, 4, 64)
    for given in (None, 0.0, 0.3):
        model = LRAModel(LRAConfig(dropout=0.1, attention_dropout=given, num_labels=2))
        model.train().layers[0](hidden, attend)
        model.eval().layers[0](hidden, attend)
    assert seen == [0.1, 0.0, 0.0, 0.0, 0.3, 0.0]
