"""The embeddings of IceFormer by hand, and its DCI against the algorithm as printed."""

import heapq
from typing import get_args

import pytest
import torch

from methods.iceformer import dci
from tests.methods.ice import SIZE, inputs

pytestmark = pytest.mark.usefixtures("poison")


def embed_keys(key, c):
    """T_K (eq. 3): [..., n, d] → unit vectors [..., n, d+1]; c is at least every key's norm."""
    scaled = key / c
    rest = (1 - scaled.square().sum(-1, keepdim=True)).clamp(min=0).sqrt()
    return torch.cat((scaled, rest), -1)


def test_dci_lists_hold_keys_and_queries_under_the_embeddings():
    """With d+1 orthogonal lists only the rounding to 8 bits is lost: distances between lists are
    those of T_Q and T_K, by hand and for any keys."""

    def distances(query, key):
        d = key.shape[-1]
        index = dci.Dci(d, m=1, L=d + 1, k0=1, k1=None, seed=0, kind="orthogonal")
        index.add(key[None, None])
        c = index.bounds(torch.tensor([len(key)]))[..., 0]
        step = dci.REACH / (d + 1) ** 0.5 / 127
        keys = index.key_lists(c, len(key))[0, 0].mT * step
        return torch.cdist(index.query_lists(query[None, None])[0, 0] * step, keys), float(c)

    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    found, c = distances(query, key)
    assert c == pytest.approx(4.0)
    torch.testing.assert_close(found.square(), torch.tensor([[0.5, 2.0]]), rtol=0.05, atol=0.05)
    query, key, _ = (x[0, 0] for x in inputs(50))
    found, c = distances(query, key)
    expected = torch.cdist(dci.embed_queries(query), embed_keys(key, c))
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def printed_query(keys, query, k0, k1):
    """Algorithm 3 for one composite index, as printed: keys [n, m] and query [m], projected."""
    n, m = keys.shape
    order = [sorted(range(n), key=lambda i, j=j: abs(keys[i, j] - query[j])) for j in range(m)]
    queue = [(abs(keys[order[j][0], j] - query[j]), j, 0) for j in range(m)]
    heapq.heapify(queue)
    count, found = [0] * n, []
    for _ in range(min(k1, n * m)):
        if len(found) >= k0:
            break
        _, j, i = heapq.heappop(queue)
        if i + 1 < n:
            heapq.heappush(queue, (abs(keys[order[j][i + 1], j] - query[j]), j, i + 1))
        count[order[j][i]] += 1
        if count[order[j][i]] == m:
            found.append(order[j][i])
    return found


@pytest.mark.parametrize("kind", get_args(dci.Directions))
@pytest.mark.parametrize("k0, k1", [(5, None), (12, None), (40, 60), (8, 100), (1, 1)])
def test_dci_is_the_algorithm_as_printed(k0, k1, kind):
    query, key, _ = inputs(60, heads=1, key_heads=1)
    index = dci.Dci(SIZE, m=3, L=2, k0=k0, k1=k1, seed=0, kind=kind)
    index.add(key)
    seen = torch.full((60,), 60)
    chosen = index.candidates(query, seen, k=1)[0, 0]
    keys = index.key_lists(index.bounds(seen)[:, :, 0], 60)[0, 0].mT.int()
    queries = index.query_lists(query)[0, 0].int()
    ties = 0
    for i in range(60):
        union = set()
        for part in (slice(0, 3), slice(3, 6)):
            found = printed_query(keys[:, part].numpy(), queries[i, part].numpy(), k0, k1 or 10**6)
            union |= set(found)
        mine = set(chosen[i].nonzero()[:, 0].tolist())
        assert union <= mine
        ties += len(mine - union)
    assert ties <= 60 * 2 * 1.5  # equal 8-bit differences: all of them belong, or none


def test_dci_bounds_hold_every_norm():
    _, key, _ = inputs(100)
    key = key * torch.linspace(0.1, 5, 100)[:, None]
    index = dci.Dci(SIZE, 2, 1, 0.5, None, 0, "independent")
    index.add(key[:, :, :30])
    index.add(key[:, :, 30:])
    c = index.bounds(torch.arange(1, 101))
    highest = key.norm(dim=-1).cummax(-1).values
    assert (c >= highest * 0.99999).all() and (c <= highest * 1.4143).all()
    assert len(c[0, 0].unique()) < 15


def test_directions_are_independent_or_at_right_angles():
    """Unit vectors, the same for the same seed. The cosines between independent ones (algorithm 2)
    have a variance of 1 / size."""
    drawn = {
        kind: dci.draw_directions(65, 130, kind, seed=3).double()
        for kind in get_args(dci.Directions)
    }
    for kind, directions in drawn.items():
        torch.testing.assert_close(directions.norm(dim=0), torch.ones(130).double())
        assert torch.equal(directions, dci.draw_directions(65, 130, kind, seed=3).double())
    cosines = drawn["independent"].T @ drawn["independent"]
    others = cosines[~torch.eye(130, dtype=torch.bool)]
    assert float(others.square().mean()) == pytest.approx(1 / 65, rel=0.1)
    square = drawn["orthogonal"][:, :65]
    torch.testing.assert_close(square.T @ square, torch.eye(65).double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("k1, least, most", [(None, 0.8, 1.0), (0.5, 0.03, 0.15)])
def test_share_of_keys_that_the_defaults_score(k1, least, most):
    """k0=0.8 retrieves that share in each composite index. Officially the visits of both indices
    count together: with half of them few keys are returned by all four lists."""
    query, key, _ = inputs(600)
    index = dci.Dci(SIZE, m=4, L=2, k0=0.8, k1=k1, seed=0, kind="independent")
    index.add(key)
    share = float(index.candidates(query, torch.full((600,), 600), k=20).float().mean())
    assert least <= share <= most


def test_the_search_follows_neither_the_scale_of_keys_nor_a_bias():
    """Keys are divided by c, which the official code omits; a bias isn't part of the search."""
    query, key, _ = inputs(300)
    seen, chosen = torch.full((300,), 300), []
    bias = 100 * torch.randn(1, 1, 300, 300, generator=torch.Generator().manual_seed(1))
    for scale, added in ((1, None), (64, None), (1, bias)):
        index = dci.Dci(SIZE, m=4, L=2, k0=0.1, k1=None, seed=0, kind="independent")
        index.add(scale * key)
        chosen.append(index.candidates(query, seen, k=5, bias=added))
    assert torch.equal(chosen[0], chosen[1]) and torch.equal(chosen[0], chosen[2])
