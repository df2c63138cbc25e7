"""IceFormer while a model decodes: its cache reads what one causal call would, and its indices are
never rebuilt."""

from typing import get_args

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo, Unsupported, Workload
from methods.iceformer import scans
from methods.iceformer.iceformer import IceFormer, Search
from methods.parts.attention import exact_attention, per_head
from tests.methods.ice import SIZE, call, inputs, slope, ways

pytestmark = pytest.mark.usefixtures("poison")
WORKLOAD = Workload(200, 2, 4, SIZE, 2, 4 * SIZE, causal=True)


def cache_of(**fields):
    return IceFormer(**fields, k=6, decoding="method").kv_cache(WORKLOAD)


@pytest.mark.parametrize("search", get_args(Search))
@pytest.mark.parametrize("pieces", [[1] * 40, [100, 1, 63, 1, 1, 70], [1, 130, 5]])
def test_the_cache_reads_as_one_causal_call_would(pieces, search):
    n = sum(pieces)
    query, key, value = inputs(n, heads=4, key_heads=2)
    key = key * torch.linspace(0.5, 3, n)[:, None]  # so that c grows on the way
    fields = {"search": search, "layers": "0", "kernel": "torch"}
    whole = [
        IceFormer(k=6, **fields).attend(query, key, value, call(causal=True)),
        exact_attention(query, *per_head(query, key, value), call(causal=True)),
    ]
    cache, outputs = cache_of(**fields), ([], [])
    for end, size in zip(torch.tensor(pieces).cumsum(0).tolist(), pieces, strict=True):
        new = [x[:, :, end - size : end] for x in (query, key, value)]
        for layer in (0, 1):
            one = AttentionCall(SequenceInfo(causal=True), SIZE**-0.5, layer)
            outputs[layer].append((cache.prefill if end == size else cache.decode)(*new, one))
    for layer in (0, 1):
        torch.testing.assert_close(torch.cat(outputs[layer], 2), whole[layer], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("search", get_args(Search))
@pytest.mark.parametrize("side", ["left", "holes"])
def test_the_cache_leaves_padding_out(side, search):
    n, start = 170, 150
    query, key, value = inputs(n, batch=2, heads=4, key_heads=2)
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, slice(0, 90) if side == "left" else slice(1, 100, 3)] = False
    method = IceFormer(k=6, search=search, kernel="torch")
    whole = method.attend(query, key, value, call(causal=True, valid=valid))
    cache = cache_of(search=search, kernel="torch")
    prompt = [x[:, :, :start] for x in (query, key, value)]
    cache.prefill(*prompt, call(causal=True, valid=valid[:, :start]))
    for end in range(start + 1, n + 1):
        new = [x[:, :, end - 1 : end] for x in (query, key, value)]
        output = cache.decode(*new, call(causal=True, valid=valid[:, :end]))
        expected = whole[:, :, end - 1 : end]
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)


def test_keys_are_inserted_and_never_indexed_anew(monkeypatch):
    added, blocks = [], []
    add = scans.Quantized.add
    monkeypatch.setattr(
        scans.Quantized, "add", lambda self, key: (added.append(key.shape[2]), add(self, key))
    )
    query, key, value = inputs(300)
    cache = cache_of(search="quantized", kernel="torch")
    monkeypatch.setattr(IceFormer, "attend", lambda *_: None)  # it has indices of its own
    cache.prefill(query[:, :, :199], key[:, :, :199], value[:, :, :199], call(causal=True))
    for end in range(200, 301):
        new = [x[:, :, end - 1 : end] for x in (query, key, value)]
        cache.decode(*new, call(causal=True))
        ((index,),) = cache.indices.values()
        blocks.append(index.mean.shape[2])
    assert added == [199] + [1] * 101
    assert blocks == [end // 64 for end in range(200, 301)]
    held = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in cache.held()}
    of_index = sum(x.nbytes for x in index.held())
    assert sum(held.values()) == of_index + 2 * 320 * (2 * SIZE * 4 + 8)  # in blocks of 64


def test_a_bias_on_scores_is_refused():
    biased = AttentionCall(SequenceInfo(causal=True), SIZE**-0.5, 0, slope())
    weighted = call(causal=True, log_multiplicity=torch.zeros(1, 60))
    for one in (biased, weighted):
        with pytest.raises(Unsupported, match="no bias"):
            cache_of().prefill(*inputs(60), one)


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
