"""Quest against loops over pages and heads, and by hand."""

from dataclasses import replace

import pytest
import torch

from methods.quest import Quest
from tests.methods.decoder import decoded, inputs, weights
from tests.methods.hand import heads

SMALL = Quest(budget=13, page=4, dense_layers=1)


def pages_of(method, query, key, n):
    """The pages that these queries [g, d] of one key head read together of its first n keys."""
    size, bounds = method.page, []
    for start in range(0, n, size):
        page = key[start : min(start + size, n)]
        ends = torch.stack((query[:, None] * page.amax(0), query[:, None] * page.amin(0)))
        bounds.append(float(ends.amax(0).sum(-1).mean()))
        assert all(bounds[-1] > float((query @ one).mean()) - 1e-9 for one in page)
    if method.newest == "read":
        bounds[-1] = torch.inf
    wanted = max(3, -(-method.budget // size))
    return sorted(range(len(bounds)), key=lambda page: -bounds[page])[:wanted]


@pytest.mark.parametrize("newest", ["ranked", "read"])
@pytest.mark.parametrize("share", ["group", "head"])
def test_equals_its_twin(share, newest):
    n, prompt = 47, 30
    query, key, value = inputs(n)
    method = replace(SMALL, share=share, newest=newest)
    _, outputs = decoded(method, query, key, value, prompt, layer=1)
    for at in range(prompt, n):
        for one in range(4):
            k, v = key[0, one // 2, : at + 1], value[0, one // 2, : at + 1]
            group = range(one // 2 * 2, one // 2 * 2 + 2) if share == "group" else [one]
            pages = pages_of(method, query[0, list(group), at], k, at + 1)
            read = [t for page in pages for t in range(4 * page, 4 * page + 4) if t <= at]
            weight = weights(query[0, one, at], k, read)
            torch.testing.assert_close(outputs[0, one, at], weight @ v[read])


def test_first_layers_are_exact():
    qkv = inputs(40)
    cache, outputs = decoded(SMALL, *qkv, 30)
    _, exact = decoded(SMALL.exact_limit(), *qkv, 30, layer=1)
    torch.testing.assert_close(outputs, exact)
    assert cache.read_bytes == sum(2 * 2 * 8 * n * 8 for n in range(31, 41))


@pytest.mark.parametrize(
    ("newest", "read"), [("ranked", [0, 1, 2, 3, 6, 7]), ("read", [2, 3, 6, 7, 8])]
)
def test_by_hand(newest, read):
    """Keys (1, -2) and (3, -1) bound the scores of query (2, -1) by 6 + 2 = 8, over 4 and 7: their
    page is read, and not the one whose keys have 7.5. The page of the new token, whose score is 0,
    is ranked away, or read in place of theirs."""
    page = [(1.0, -2.0), (3.0, -1.0)]
    key = heads(*page, (4.5, 0), (4.5, 0), (3.75, 0), (3.75, 0), (4.0, 0), (4.25, 0), (0.0, 0))
    query, value = heads(*[(2.0, -1.0)] * 9), heads(*range(9)).expand(-1, -1, -1, 2)
    method = Quest(budget=6, page=2, dense_layers=0, newest=newest)
    cache, outputs = decoded(method, query, key, value, 8, scale=0.1)
    scores = torch.tensor([4, 7, 9, 9, 7.5, 7.5, 8, 8.5, 0], dtype=torch.float64)[read]
    expected = (0.1 * scores).softmax(0) @ torch.tensor(read).double()
    torch.testing.assert_close(outputs[0, 0, -1, 0], expected)
    assert cache.read_bytes == 8 * (5 * 4 + len(read) * 4)
