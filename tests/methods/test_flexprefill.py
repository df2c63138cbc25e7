"""FlexPrefill against dense attention under its mask, and by hand."""

from dataclasses import replace

import pytest
import torch

from methods.flexprefill import FlexPrefill, distance
from methods.parts.sparse_prefill import fewest_covering
from tests.methods.native import native
from tests.methods.prefill import by_token, check_kernels, check_twin

SMALL = FlexPrefill(gamma=0.6, tau=0.18, block=8, min_budget=16)


def blocks_of(method, query, key, scale):
    """[blocks, blocks]: the blocks that one head reads, and whether it is query-aware."""
    n, b = len(key), method.block
    count, least = -(-n // b), -(-method.min_budget // b)
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    last = (query @ key.T * scale).masked_fill(future, -torch.inf).softmax(-1)[-b:]
    columns = last.mean(0)
    diagonals = torch.stack([last.diagonal(n - b - o).sum() for o in range(n)]) / b
    means = [torch.stack([part.mean(0) for part in x.split(b)]) for x in (query, key)]
    estimate = (query[-b:].mean(0) * scale @ means[1].T).softmax(-1)
    sums = [torch.stack([part.sum() for part in x.split(b)]) for x in (columns, diagonals.flip(0))]
    sums[1] = sums[1].flip(0)  # the farthest diagonals fill the last block
    middle = (estimate + sums[0]) / 2
    divergence = sum(float((p * (p / middle).log()).sum()) / 2 for p in (estimate, sums[0]))
    aware, kept = divergence**0.5 < method.tau, []
    for tokens, blocks in zip((columns, diagonals), sums, strict=True):
        ranked, covered, size = tokens.sort(descending=True).values.tolist(), 0.0, 0
        while covered < method.gamma * float(tokens.sum()):
            covered, size = covered + ranked[size], size + 1
        number = least if aware else max(least, size // b + 1)
        order = sorted(range(count), key=lambda block: (block > 0, -float(blocks[block])))
        kept.append(set(order[:number]))
    result = torch.zeros(count, count, dtype=torch.bool)
    for i in range(count):
        for j in range(i + 1):
            result[i, j] = j in kept[0] or i - j in kept[1]
    if aware:
        later = torch.ones(count, count, dtype=torch.bool).triu(1)
        scores = (means[0] @ means[1].T * scale).masked_fill(later, -torch.inf)
        pooled = scores.softmax(-1).flatten()
        order, covered = pooled.argsort(descending=True).tolist(), 0.0
        while covered < method.gamma * count:
            place = order.pop(0)
            covered += float(pooled[place])
            result[place // count, place % count] = True
    return result, aware


@pytest.mark.parametrize("tau", [0.0, 0.18, 1.0])
def test_equals_its_twin(tau):
    method, kinds = replace(SMALL, tau=tau), set()

    def seen(query, key, scale):
        if len(key) <= 16:
            return torch.ones(len(key), len(key)).tril() > 0
        blocks, aware = blocks_of(method, query, key, scale)
        kinds.add(aware)
        return by_token(blocks, len(key))

    check_twin(method, seen, lengths=(1, 16, 53, 96))
    assert kinds == {0.0: {False}, 0.18: {False, True}, 1.0: {True}}[tau]


@native
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_native_kernel_agrees(tau):
    check_kernels(FlexPrefill(gamma=0.3, tau=tau, block=64, min_budget=64), n=500)


def test_blocks_of_diagonals_begin_at_the_farthest():
    """Ten offsets in blocks of 4: the nearest two are a block with .2, the next four have .2 and
    the last four .6. Seven offsets hold .9, so two blocks are read. From offset 0 on, sums would be
    .4, .3 and .3."""
    method = FlexPrefill(gamma=0.9, tau=0, block=4, min_budget=4)
    diagonals = torch.tensor([[*[0.1] * 4, 0.0, 0.0, *[0.15] * 4]])
    sums = method._sums(diagonals.flip(1)).flip(1)
    torch.testing.assert_close(sums, torch.tensor([[0.2, 0.2, 0.6]]))
    assert method._largest(diagonals, sums, torch.tensor([False])).tolist() == [[True, False, True]]


def test_by_hand():
    weights = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05])
    assert fewest_covering(weights, 0.9).tolist() == [True, True, True, True, False]
    even, uneven = torch.tensor([0.5, 0.5]), torch.tensor([0.9, 0.1])
    assert float(distance(even, uneven)) == pytest.approx(0.319, abs=1e-3)
    assert float(distance(even, even)) == 0
