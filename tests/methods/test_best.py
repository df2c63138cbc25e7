"""methods.iceformer.knn.best_of: the k largest of each row, without a search among all numbers."""

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.iceformer import iceformer, inputs
from methods.iceformer.iceformer import IceFormer
from methods.iceformer.knn import best_of


@pytest.mark.parametrize("n", [3, 40, 161, 1000, 4099])
@pytest.mark.parametrize("equal", [False, True], ids=["distinct", "equal"])
def test_the_k_largest(n, equal):
    scores = torch.randn(2, 3, n, generator=torch.Generator().manual_seed(n))
    scores = scores.round() if equal else scores
    scores[0, 0, 2:] = -torch.inf  # fewer than k are there
    values, places = best_of(scores, k := min(n, 20))
    assert torch.equal(values.sort(-1).values, scores.topk(k).values.sort(-1).values)
    assert torch.equal(scores.gather(-1, places), values)
    assert (places.sort(-1).values.diff(dim=-1) > 0).all()


def test_no_chunk_has_more_scores_than_it_may(monkeypatch):
    """For any number of heads, since the memory of a chunk doesn't grow with it."""
    largest, bmm = [], torch.bmm
    monkeypatch.setattr(
        torch, "bmm", lambda *given, out=None: largest.append(out.numel()) or bmm(*given, out=out)
    )
    query, key, value = torch.randn(3, 1, 12, 1100, 16).unbind(0)
    IceFormer(kernel="torch").attend(query, key, value, AttentionCall(SequenceInfo(), 0.25, 0))
    assert max(largest) <= inputs.SCORES


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_auto_is_quantized_or_blocks_or_exact(kernel, long, monkeypatch):
    fewest = dict.fromkeys(iceformer.BLOCKS_FROM, 300 if long else 301)
    monkeypatch.setattr(iceformer, "BLOCKS_FROM", {**fewest, "neon": 300 if long else 301})
    query, key, value = torch.randn(3, 1, 2, 300, 16).unbind(0)
    call = AttentionCall(SequenceInfo(), 0.25, 0)
    auto = IceFormer(kernel=kernel)
    output = auto.attend(query, key, value, call)
    native = "blocks" if long else "quantized"
    search = native if auto.kernel_used.startswith("native") else "exact"
    expected = IceFormer(search=search, kernel=kernel).attend(query, key, value, call)
    assert torch.equal(output, expected)
