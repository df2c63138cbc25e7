"""IceFormer while a model decodes: its memory reads what one causal call would, and is never
rebuilt."""

import dataclasses
from typing import get_args

import pytest
import torch

from methods.attention import exact_attention, per_head
from methods.base import AttentionCall, SequenceInfo, Unsupported
from methods.iceformer import scans
from methods.iceformer.iceformer import IceFormer, Search
from tests.methods.ice import SIZE, Slope, call, inputs, ways

pytestmark = pytest.mark.usefixtures("poison")


@pytest.mark.parametrize("search", get_args(Search))
@pytest.mark.parametrize("pieces", [[1] * 40, [100, 1, 63, 1, 1, 70], [1, 130, 5]])
def test_memory_reads_as_one_causal_call_would(pieces, search):
    n = sum(pieces)
    query, key, value = inputs(n, heads=4, key_heads=2)
    key = key * torch.linspace(0.5, 3, n)[:, None]  # so that c grows on the way
    method = IceFormer(k=6, search=search, layers="0", kernel="torch")
    whole = [
        method.attend(query, key, value, dataclasses.replace(call(causal=True), layer=i))
        for i in (0,)
    ]
    whole.append(exact_attention(query, *per_head(query, key, value), call(causal=True)))
    memory, outputs = method.decoding_state(), ([], [])
    for end, size in zip(torch.tensor(pieces).cumsum(0).tolist(), pieces, strict=True):
        new = slice(end - size, end)
        for layer in (0, 1):
            so_far = key[:, :, :end], value[:, :, :end]
            one = AttentionCall(SequenceInfo(), SIZE**-0.5, layer)
            outputs[layer].append(memory.attend(query[:, :, new], *so_far, one))
    for layer in (0, 1):
        torch.testing.assert_close(torch.cat(outputs[layer], 2), whole[layer], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("search", get_args(Search))
@pytest.mark.parametrize("side", ["left", "holes"])
def test_memory_leaves_padding_out(side, search):
    n, start = 170, 150
    query, key, value = inputs(n, batch=2, heads=4, key_heads=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, slice(0, 90) if side == "left" else slice(1, 100, 3)] = False
    method = IceFormer(k=6, search=search, kernel="torch")
    whole = method.attend(query, key, value, call(causal=True, valid=valid))
    memory = method.decoding_state()
    for end in range(start, n + 1):
        so_far = query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end]
        output = memory.attend(*so_far, call(valid=valid[:, :end]))
        expected = whole[:, :, end - 1 : end]
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_memory_inserts_and_never_rebuilds(monkeypatch):
    added, blocks = [], []
    add = scans.Quantized.add
    monkeypatch.setattr(
        scans.Quantized, "add", lambda self, key: (added.append(key.shape[2]), add(self, key))
    )
    query, key, value = inputs(300)
    memory = IceFormer(k=6, search="quantized").decoding_state()
    for end in range(200, 301):
        memory.attend(query[:, :, end - 1 : end], key[:, :, :end], value[:, :, :end], call())
        ((index,),) = memory.indices.values()
        blocks.append(index.mean.shape[2])
    assert added == [200] + [1] * 100
    assert blocks == [end // 64 for end in range(200, 301)]


def test_memory_reads_biased_scores_anew():
    query, key, value = inputs(60)
    biased = AttentionCall(SequenceInfo(), SIZE**-0.5, 0, Slope())
    method = IceFormer(k=200)
    counted_ = call(log_multiplicity=torch.arange(1.0, 61).log()[None])
    output = method.decoding_state().attend(query[:, :, -1:], key, value, counted_)
    expected = exact_attention(query[:, :, -1:], key, value, counted_)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(Unsupported, match="one token at a time"):
        method.decoding_state().attend(query, key, value, biased)


@ways
@pytest.mark.parametrize("padded", [False, True])
def test_one_query_reads_all_keys_as_the_last_of_many_would(padded, search, kernel):
    n = 120
    query, key, value = inputs(n, batch=2, heads=4, key_heads=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, :50] = not padded
    method = IceFormer(k=6, search=search, kernel=kernel)
    whole = method.attend(query, key, value, call(causal=True, valid=valid))[:, :, -1:]
    output = method.attend(query[:, :, -1:], key, value, call(valid=valid))
    torch.testing.assert_close(output, whole, rtol=1e-5, atol=1e-6)
