"""MRA-2 against the n × n weights written out block by block, and by hand."""

import pytest
import torch

from methods.mra import MRA
from methods.parts.attention import exact_attention
from tests.methods.hand import A, call_of, check_rows, inputs, read


def twin(method):
    def attend(query, key, value, call):
        n, output = query.shape[2], torch.zeros_like(query)
        counts = torch.ones(n, dtype=torch.float64)
        if call.sequence.log_multiplicity is not None:
            counts = call.sequence.log_multiplicity[0].exp()
        blocks = [slice(i, min(i + method.b, n)) for i in range(0, n, method.b)]
        size, m = len(blocks), min(round(method.per_row * len(blocks)), len(blocks) ** 2)
        for head in range(query.shape[1]):
            q, k, v = (x[0, head] for x in (query, key, value))

            def mean(x, block):
                return counts[block] @ x[block] / counts[block].sum()

            coarse = torch.tensor([[mean(q, i) @ mean(k, j) for j in blocks] for i in blocks])
            coarse, ranks = coarse * call.scale, coarse * call.scale
            if method.ranking == "rows":
                ranks = ranks - ranks.amax(1, keepdim=True)
            first = [i * size + j for i in range(size) for j in range(size)]
            near = method.diagonal // 2 if method.diagonal else -1
            prior = [
                (p // size < method.first)
                + (p % size < method.first)
                + (abs(p // size - p % size) <= near)
                for p in first
            ]
            first.sort(key=lambda p: (prior[p], ranks.flatten()[p].item()), reverse=True)
            weights = coarse.exp()[:, :, None, None] * torch.ones(method.b, method.b)
            weights = weights.transpose(1, 2).flatten(0, 1).flatten(1)[:n, :n].clone()
            exact, chosen = (q @ k.T * call.scale).exp(), first[:m]
            if method.sparse:
                for row in {p // size for p in chosen}:
                    weights[blocks[row]] = 0
            for p in chosen:
                pair = blocks[p // size], blocks[p % size]
                weights[pair] = exact[pair]
            weights = weights * counts
            output[0, head] = weights @ v / weights.sum(1, keepdim=True)
        return output

    return attend


@pytest.mark.parametrize(
    "method",
    [
        MRA(4, 2.5), MRA(4, 0.5, sparse=True), MRA(4, 2, sparse=True),
        MRA(4, 4, first=1, diagonal=3), MRA(4, 3.3, ranking="rows"), MRA(4, 2, first=1, diagonal=5),
        MRA(4, 6, first=2),
    ],
    ids=str,
)  # fmt: skip
def test_equals_its_twin(method):
    for counted in (False, True):
        check_rows(method, twin(method), 53, counted=counted)


def test_the_first_block_of_queries_is_exact():
    """As in the official configuration for 4,096 tokens, here with blocks of 4: the pairs of its 16
    blocks come before any other."""
    parts, call = inputs(64), call_of()
    output = MRA(4, 8, first=1, diagonal=5).attend(*parts, call)
    exact = exact_attention(*parts, call)
    torch.testing.assert_close(output[:, :, :4], exact[:, :, :4], rtol=0, atol=1e-14)
    assert (output[:, :, 4:] - exact[:, :, 4:]).norm() > 0.05 * exact[:, :, 4:].norm()


def test_by_hand():
    assert read(MRA(2, 0.5), *A) == pytest.approx([2.5, 2.5, 2.255081, 1.911876], abs=1e-6)
    three = [1.969464, 3.030536, 2.255081, 1.911876]
    assert read(MRA(2, 1.5), *A) == pytest.approx(three, abs=1e-6)
    front = [2.023268, 3.051496, 2.255081, 1.911876]  # block 0 with itself, and block 1 with it
    assert read(MRA(2, 1, first=1), *A) == pytest.approx(front, abs=1e-6)
