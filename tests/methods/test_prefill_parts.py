"""A cache whose prompt another method reads: both methods do their part."""

from dataclasses import replace

import pytest
import torch

import bench
from bench.conformance import check
from bench.execution import arms
from bench.models.decoder import DecoderFamily
from bench.request import code_hash, plugins
from bench.request.cell import Cell
from methods.base import refusal
from methods.kivi import KIVI
from methods.quest import Quest
from methods.snapkv import SnapKV
from methods.vcc.vcc import VCC
from methods.vertical_slash import VerticalSlash
from tests.methods.decoder import decoded, inputs, tokens, workload

SPARSE = VerticalSlash().scaled_down()
SNAPKV = ("method=snapkv", "model=embedded-llama", "task=longeval_lines", "length=512", "n=1")


@pytest.mark.parametrize("method", [SnapKV(budget=12, window=4), KIVI(), Quest(budget=48)])
def test_the_prompt_is_read_by_one_and_kept_by_the_other(method):
    query, key, value = inputs(64)
    both = replace(method, prefill=SPARSE)
    cache, output = decoded(both, query, key, value, 60)
    own, exact = decoded(method, query, key, value, 60)
    _, sparse = decoded(SPARSE, query, key, value, 60)
    assert torch.equal(output[:, :, :60], sparse[:, :, :60])
    assert not torch.allclose(output[:, :, :60], exact[:, :, :60])
    assert torch.equal(output[:, :, 60:], exact[:, :, 60:])
    if isinstance(method, SnapKV):
        assert tokens(cache) == tokens(own)


def test_a_composed_method_keeps_the_contract():
    both = SnapKV(budget=12, window=4, prefill=SPARSE)
    assert check(both, DecoderFamily.tiny(both)) == []
    assert both.chooses_ahead and not SnapKV().chooses_ahead


def test_what_can_read_no_prompt_for_another_is_refused():

    for part in (VCC(k=8), KIVI()):
        reason = refusal(SnapKV(budget=33, prefill=part), workload())
        assert reason and "can't read the prompt" in reason


def test_a_request_names_the_part_and_its_parameters():
    plain = bench.compose(*SNAPKV)
    assert "prefill" not in plain.method
    cell = bench.compose(*SNAPKV, "method.prefill={name:vertical_slash,vertical:200}")
    method = arms.method_of(cell)
    assert method.prefill == VerticalSlash(vertical=200)
    assert plugins.method_label("snapkv", cell.method) == "vertical_slash+snapkv·0.25"
    assert len({plain.key, cell.key, bench.compose(*SNAPKV, "method.prefill=xattention").key}) == 3
    assert cell.code_sha256 != plain.code_sha256
    moved = {**cell.method["prefill"], "target": "elsewhere:VerticalSlash"}
    assert replace(cell, method={**cell.method, "prefill": moved}).key == cell.key
    assert Cell.from_json(cell.to_json()) == cell
    assert code_hash.code_sha256(*plugins.targets(cell.method))
