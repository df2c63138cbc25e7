"""Vertical-slash attention against dense attention under its mask, and by hand."""

from dataclasses import replace

import pytest
import torch

from methods.parts.lines import run_words
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


def runs(diagonals, n):
    """[n, n]: the keys on diagonals and around them, as the official kernel takes them for each
    block of queries: by the end of the run of a diagonal, the farthest first."""
    mask = torch.zeros(n, n + 64, dtype=torch.bool)
    for start in range(0, n, 64):
        end = None
        for offset in sorted((x for x in diagonals if x < start + 64), reverse=True):
            own = max(start + 64 - offset, 64)
            if end is not None and own <= end:
                continue
            end = own if end is None or own > end + 64 else end + 64
            mask[start : start + 64, end - 64 : end] = True
    return mask[:, :n]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("granularity", ["token", "block"])
def test_equals_its_twin(granularity, first):
    method = replace(SMALL, granularity=granularity, first_columns=first)

    def seen(query, key, scale):
        columns, diagonals = lines(method, query, key, scale)
        i, j = torch.arange(len(key))[:, None], torch.arange(len(key))
        mask = (i == j) | torch.isin(j, torch.tensor([*columns]))
        if granularity == "token":
            mask |= torch.isin(i - j, torch.tensor([*diagonals]))
        else:
            mask |= runs({0, *diagonals}, len(key))
        return mask & (j <= i)

    check_twin(method, seen, lengths=(1, 53, 131, 400))


def test_runs_by_hand():
    """The third block of queries, 128 to 191. Its diagonal 150 is partly before the first key: the
    run is 0 to 63. That of diagonal 120, 8 to 71, would touch it, so the next run is 64 to 127, in
    which diagonal 70 is. Diagonal 0 has the block's own keys."""
    offsets = torch.zeros(1, 192, dtype=torch.bool)
    offsets[0, [150, 120, 70, 0]] = True
    assert (run_words(offsets) != 0)[0].tolist() == [
        [True, False, False], [True, True, False], [True, True, True],
    ]  # fmt: skip
    offsets[0, [150, 120]] = False  # keys 58 to 121, and the block's own, which don't touch these
    assert run_words(offsets)[0, 2].tolist() == [-1 << 58, (1 << 58) - 1, -1]
    offsets[0, 20] = True  # its run is 122 to 185, and the last one follows that
    assert run_words(offsets)[0, 2].tolist() == [-1 << 58, -1, -1]


def test_a_block_of_64_is_read_whole():
    few = VerticalSlash(1, 2, first_columns=0, near_diagonals=0)
    assert few.is_dense(64) and not few.is_dense(65)
    assert not replace(few, granularity="token").is_dense(64)


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
