"""KNorm against sorted norms, and by hand."""

import torch

from methods.knorm import KNorm
from tests.methods.decoder import check_reads, decoded, inputs, tokens, workload


def test_by_hand():
    """Keys have the lengths 5 1 3 2, and two are kept: 1 and 3."""
    key = torch.tensor([5.0, -1, 3, 2]).view(1, 1, 4, 1)
    cache, _ = decoded(KNorm(2), key, key, key, 4)
    assert tokens(cache) == [[[1, 3]]]


def test_equals_its_twin():
    query, key, value = inputs(34)
    cache, outputs = decoded(KNorm(0.5), query, key, value, 30)
    for head in range(2):
        kept = sorted(range(30), key=lambda i: key[0, head, i].norm())[:15]
        kept = [*sorted(kept), 30, 31, 32, 33]
        assert tokens(cache)[0][head] == kept
        check_reads(outputs, query, key, value, 33, head, kept)


def test_layers_may_stay_whole():
    method, work = KNorm(0.25, "0-1"), workload(layers=3)
    assert [method.capacity(work, 40, layer) for layer in range(3)] == [40, 40, 10]
