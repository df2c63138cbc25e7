"""H-Transformer-1D against the n × n weights written out pair by pair, and by hand."""

import pytest
import torch

from methods.h_transformer_1d.h_transformer_1d import HTransformer1D
from tests.methods.hand import A, check_rows, read


def level_of(i, j, rank):
    """The first level at which the blocks of tokens i and j are neighbours, or one block."""
    level = 0
    while abs(i // (rank << level) - j // (rank << level)) > 1:
        level += 1
    return level


def twin(method):
    def attend(query, key, value, call):
        n, causal = query.shape[2], call.sequence.causal
        counts = torch.ones(n, dtype=torch.float64)
        if call.sequence.log_multiplicity is not None:
            counts = call.sequence.log_multiplicity[0].exp()

        def mean(x, i, level):
            own = slice(i >> level << level, min(((i >> level) + 1) << level, n))
            return counts[own] @ x[:, own] / counts[own].sum()

        weights = torch.zeros(query.shape[1], n, n, dtype=torch.float64)
        for i in range(n):
            for j in range(i + 1 if causal else n):
                level = level_of(i, j, method.rank)
                fine = causal or method.queries == "fine"
                q = mean(query[0], i, 0 if fine else level)
                score = (q * mean(key[0], j, level)).sum(-1) * call.scale
                weights[:, i, j] = score.exp() * counts[j]
        return (weights @ value[0] / weights.sum(-1, keepdim=True))[None]

    return attend


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "causal"])
@pytest.mark.parametrize("rank, queries", [(1, "coarse"), (2, "coarse"), (4, "fine")])
def test_equals_its_twin(rank, queries, causal):
    method = HTransformer1D(rank, queries)
    check_rows(method, twin(method), 37, rows=2, counted=not causal, causal=causal)


def test_by_hand():
    paper = [2.023268, 3.030536, 1.801958, 1.767658]
    assert read(HTransformer1D(1), *A) == pytest.approx(paper, abs=1e-6)
    causal = [1.0, 1.268941, 2.0, 1.565438]
    assert read(HTransformer1D(1), *A, causal=True) == pytest.approx(causal, abs=1e-6)
