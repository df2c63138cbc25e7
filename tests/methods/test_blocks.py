"""IceFormer's search in blocks of similar keys: nearly all of the best keys, at any shape."""

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.iceformer.blocks import main_points
from methods.iceformer.iceformer import IceFormer
from tests.methods.native import Buckets, native, select

pytestmark = pytest.mark.usefixtures("poison")
PLAIN = AttentionCall(SequenceInfo(), 0.2, 0)


def clustered(n, d=32, heads=2, spread=0.5):
    """Queries and keys around the same n/128 centres, and values."""
    make = torch.Generator().manual_seed(0)
    centres = torch.randn(1, heads, n // 128 + 1, d, generator=make)

    def pick():
        chosen = torch.randint(centres.shape[2], (n,), generator=make)
        return centres[:, :, chosen] + spread * torch.randn(1, heads, n, d, generator=make)

    return pick(), pick(), torch.randn(1, heads, n, d, generator=make)


def check_softmax(query, key, value, k=20):
    """The output is the softmax over the keys selected, and none of them is selected twice."""
    output, ids = select("blocks", "native", query, key, value, PLAIN, k=k)
    ordered = ids.sort(-1).values
    assert (ordered[..., 1:] > ordered[..., :-1]).all() and (ids >= 0).all()
    scores = (query.double() @ key.double().mT * PLAIN.scale).gather(-1, ids)
    weights = query.new_zeros(*query.shape[:3], key.shape[2]).double()
    expected = weights.scatter_(-1, ids, scores.softmax(-1)) @ value.double()
    torch.testing.assert_close(output.double(), expected, rtol=1e-4, atol=1e-5)


def recall(query, key, **fields):
    return IceFormer(search="blocks", **fields).diagnose(query, key, PLAIN)["recall"]


@native
@pytest.mark.parametrize("n, d, k", [(64, 16, 20), (700, 24, 5), (1031, 64, 120), (2500, 128, 20)])
def test_nearly_all_of_the_best_keys(n, d, k):
    query, key, value = clustered(n, d)
    check_softmax(query, key, value, k)
    assert recall(query, key, k=k) >= 0.95


@native
def test_keys_without_blocks_of_similar_ones():
    query, key, _ = clustered(2000, 16, spread=20.0)
    assert main_points(query, key) is not None
    assert recall(query, key) >= 0.95
    query, key, _ = clustered(2000, 64, spread=20.0)
    assert main_points(query, key) is None
    assert recall(query, key) >= 0.99


@native
@pytest.mark.parametrize("far", [50.0, 5000.0])
def test_a_key_far_above_the_others_hides_few_of_them(far):
    query, key, value = clustered(2000)
    key[:, :, 3] = far
    check_softmax(query + 1, key, value)
    assert recall(query + 1, key) >= 0.95


@native
def test_a_number_that_all_keys_share_changes_nothing():
    query, key, _ = clustered(2000)
    key[..., 5] += 300
    assert recall(query, key) >= 0.95


@native
def test_equal_keys_and_queries_of_zeros():
    query, key, value = clustered(1000)
    check_softmax(query, key[:, :, :1].expand_as(key), value)
    query[:, 0] = 0
    check_softmax(query, key, value)


@native
@pytest.mark.parametrize("call", [
    AttentionCall(SequenceInfo(causal=True), 0.2, 0),
    AttentionCall(SequenceInfo(), 0.2, 0, Buckets(2, 3)),
], ids=["causal", "bias"])  # fmt: skip
def test_where_blocks_can_t_be_ranked_all_are_scanned(call):
    inputs = clustered(300)
    blocks, scan = (select(s, "native", *inputs, call) for s in ("blocks", "quantized"))
    assert torch.equal(blocks[1], scan[1])


def test_points_have_the_scores_of_keys():
    """With all coordinates of the keys, and with fewer, which leave out the reported share."""
    for d in (8, 32):
        query, key, _ = clustered(500, d)
        points = main_points(query, key)
        scores = query @ key.mT
        shown = points.queries @ points.keys.mT + points.shared[..., None]
        rest = (scores - shown).square().mean(-1)
        torch.testing.assert_close(rest, points.variance, rtol=0.02, atol=1e-2)
    assert main_points(query * float("nan"), key) is None
