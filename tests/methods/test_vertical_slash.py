"""Vertical-slash attention against dense attention under its mask, and by hand."""

from dataclasses import replace

import pytest
import torch

from methods.parts.sparse_prefill import last_weights, offset_sums
from methods.vertical_slash import VerticalSlash
from tests.methods.native import native
from tests.methods.prefill import check_kernels, check_twin

SMALL = VerticalSlash(
    vertical=5, slash=7, last_queries=9, first_columns=2, near_diagonals=3, kernel="torch"
)


def lines(method, query, key, scale):
    """The columns and diagonals that one head reads, from its whole attention matrix."""
    n = len(key)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    last = (query @ key.T * scale).masked_fill(future, -torch.inf).softmax(-1)
    last[: -method.last_queries] = 0
    columns = {j: float(last[:, j].sum()) for j in range(n)}
    diagonals = {o: float(last.diagonal(-o).sum()) for o in range(n)}
    chosen = []
    for sums, count, first in (
        (columns, method.vertical, method.first_columns),
        (diagonals, method.slash, method.near_diagonals),
    ):
        ranked = sorted(sums, key=lambda place: (place >= first, -sums[place]))
        chosen.append(set(ranked[: max(count, first)]))
    return chosen


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("granularity", ["token", "block"])
def test_equals_its_twin(granularity, first):
    method = replace(SMALL, granularity=granularity, first_columns=first)

    def seen(query, key, scale):
        columns, diagonals = lines(method, query, key, scale)
        i, j = torch.arange(len(key))[:, None], torch.arange(len(key))
        mask = (i == j) | torch.isin(j, torch.tensor([*columns]))
        for offset in diagonals:
            if granularity == "token":
                mask |= i - j == offset
            else:  # some query of the block of 64 reads its diagonal within 64 keys
                near = i // 64 * 64 - j
                mask |= (near <= offset) & (offset < near + 64)
        return mask & (j <= i)

    check_twin(method, seen, lengths=(1, 53, 131))


@native
@pytest.mark.parametrize("granularity", ["token", "block"])
def test_native_kernel_agrees(granularity):
    check_kernels(replace(SMALL, vertical=90, granularity=granularity))


def test_by_hand():
    """Two last rows of six: column 0 has .9 in all; offsets 0 to 5 .3 .2 .3 .2 .6 .4."""
    weights = torch.tensor([[0.5, 0.1, 0.1, 0.1, 0.2, 0.0], [0.4, 0.1, 0.1, 0.2, 0.1, 0.1]])[None]
    assert weights.sum(1)[0].tolist() == pytest.approx([0.9, 0.2, 0.2, 0.3, 0.3, 0.1])
    assert offset_sums(weights)[0].tolist() == pytest.approx([0.3, 0.2, 0.3, 0.2, 0.6, 0.4])
    method = VerticalSlash(1, 2, last_queries=2, first_columns=0, near_diagonals=0)
    # One-hot keys with the logarithms as queries give these weights.
    query = torch.zeros(1, 6, 6)
    query[0, -2:] = weights[0].clamp(min=1e-9).log()
    key = torch.eye(6)
    torch.testing.assert_close(last_weights(query, key, 1.0, 2), weights, atol=1e-6, rtol=1e-6)
    columns, diagonals = method.choose(query, key, 1.0)
    assert (columns.tolist(), diagonals.tolist()) == ([[0]], [[4, 5]])
