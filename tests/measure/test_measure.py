"""Memory, fidelity and GPU timing, on kernels without clear_refs and with a stand-in for CUDA."""

import pytest
import torch

from bench.measure import latency, memory
from bench.measure.latency import fidelity, stage_times
from bench.measure.perturbed_inputs import PerturbedInputs
from bench.models.bert import BertFamily
from bench.request import plugins
from methods.base import SequenceInfo
from methods.iceformer.iceformer import IceFormer
from methods.vanilla import Vanilla


def test_a_peak_is_measured_until_at_most_half_a_percent_stays_hidden():
    batches = memory.BATCH * memory.PAGE * torch.get_num_threads()
    for peak_bytes in (1, batches, 20 * batches, 199 * batches, 200 * batches, 1 << 40):
        measured = 1 + len(memory.batch_starts(peak_bytes))
        assert measured == memory.MOST_PHASES or batches / measured <= 0.005 * peak_bytes
    assert not memory.batch_starts(200 * batches)
    assert set(memory.batch_starts(1)) < set(range(memory.BATCH))


def test_without_clear_refs_the_peak_is_sampled(monkeypatch):
    monkeypatch.setattr(memory, "can_reset", lambda: False)
    tensors = []

    def forward():
        tensors.append(torch.empty(64 << 20, dtype=torch.uint8).fill_(1))
        memory.threading.Event().wait(0.1)

    figures = memory.host_peak(forward)
    assert figures["mem_method"] == "VmRSS, sampled" and "clear_refs" in figures["mem_reason"]
    assert figures["rss_peak_delta_bytes"] == pytest.approx(64 << 20, rel=0.1)


def test_fidelity_includes_the_recall_of_the_chosen_keys():
    family = BertFamily.tiny(IceFormer(k=5))
    ids = torch.randint(5, 60, (1, 40))
    with torch.inference_mode():
        figures = fidelity(family, Vanilla(), (ids, SequenceInfo()))
        assert 0.9 < figures["fid_recall"] <= 1
        assert 0 < figures["fid_mass"] <= figures["fid_mass_best"] + 1e-6 < 1
        family.method = plugins.build(plugins.conf("method", "bigbird"))
        assert "fid_recall" not in fidelity(family, Vanilla(), (ids, SequenceInfo()))


@pytest.mark.parametrize(("budget_s", "walks"), [(0.0, 1), (3600.0, latency.WALKS)])
def test_a_long_cell_has_time_for_several_walks(monkeypatch, budget_s, walks):
    monkeypatch.setattr(latency, "ENOUGH_WALKS_NS", 1)
    with torch.inference_mode():
        inputs = torch.randint(5, 60, (1, 40)), SequenceInfo()
        row = stage_times(BertFamily.tiny(Vanilla()), inputs, budget_s)
    assert len(row["attend_samples_ns"]) == len(row["encode_samples_ns"]) == walks


def test_the_warm_up_tokens_have_a_query_even_where_the_row_has_it_later():
    vip = torch.zeros(2, 100, dtype=torch.bool)
    vip[0, 3:5] = vip[1, 95:] = True
    ids, sequence = memory.first_tokens(torch.arange(200).view(2, 100), SequenceInfo(vip=vip))
    assert ids.shape == sequence.vip.shape == (2, memory.WARM_UP_TOKENS)
    assert sequence.vip[0].nonzero().flatten().tolist() == [3, 4]
    assert sequence.vip[1].nonzero().flatten().tolist() == [0]
    assert not vip[1, 0], "the row's own mask is unchanged"


@pytest.mark.parametrize(("equal", "fewest"), [(True, 1), (False, 10)])
def test_no_input_is_like_the_last(equal, fewest):
    """Even where nearly all tokens are equal; of unlike ones half are elsewhere."""
    ids = torch.arange(20)[None].clone()  # a rotation by none is one in 19
    if equal:
        ids[0] = ids[0] == 5
    inputs, last = PerturbedInputs([(ids, SequenceInfo())]), ids.clone()
    for _ in range(200):
        new, _ = inputs.perturbed(0)
        assert (new != last).sum() >= fewest
        last = new.clone()
