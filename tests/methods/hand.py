"""Inputs of methods without own parameters, and dense attention for comparison."""

import torch

from methods.base import AttentionCall, SequenceInfo
from tests.methods import input_a


def heads(*numbers):
    """One head: [1, 1, n, d] float64 of n numbers, or of n rows of d."""
    x = torch.tensor(numbers, dtype=torch.float64)
    return x.view(1, 1, len(numbers), -1)


A = [x.double() for x in input_a.A]


def read(method, query, key, value, causal=False, scale=1.0, **sequence):
    """The outputs of one head, flat."""
    call = AttentionCall(SequenceInfo(causal=causal, **sequence), scale, 0)
    return method.attend(query, key, value, call).flatten().tolist()


def inputs(n, batch=1, heads=2, d=6, seed=0):
    """Query, key and value [batch, heads, n, d] float64."""
    make = torch.Generator().manual_seed(seed)
    size = (batch, heads, n, d)
    return [torch.randn(size, generator=make, dtype=torch.float64) for _ in range(3)]


def call_of(layer=0, bias=None, **sequence):
    return AttentionCall(SequenceInfo(**sequence), 0.4, layer, bias)


def padded(n):
    """[3, n]: rows with n, n - 9 and 1 valid tokens, on the right, the left and in the middle."""
    place = torch.arange(n)
    return torch.stack((place >= 0, place >= 9, place == n // 2))


def row_by_row(twin, query, key, value, call):
    """The output of `twin`, which has no padding, for each row's valid tokens; zeros elsewhere."""
    sequence, output = call.sequence, torch.zeros_like(query)
    everything = torch.ones(len(query), query.shape[2], dtype=torch.bool)
    for row, valid in enumerate(everything if sequence.valid is None else sequence.valid):
        counts = sequence.log_multiplicity
        own = SequenceInfo(
            positions=valid.nonzero()[:, 0][None],
            log_multiplicity=None if counts is None else counts[row : row + 1, valid],
            causal=sequence.causal,
        )
        one = AttentionCall(own, call.scale, call.layer, call.bias)
        parts = (x[row : row + 1, :, valid] for x in (query, key, value))
        output[row, :, valid] = twin(*parts, one)[0]
    return output


def check_rows(method, twin, n, rows=3, counted=True, layer=1, bias=None, zeros=True, **sequence):
    """Checks that rows of several lengths, whose tokens have different multiplicities, equal the
    output of `twin` for each alone. `zeros`: padding gives zeros; otherwise it isn't compared."""
    counts = torch.arange(1.0, rows * n + 1, dtype=torch.float64).view(rows, n).sqrt().log()
    valid, parts = padded(n)[:rows], inputs(n, rows)
    call = call_of(
        layer, bias, valid=valid, log_multiplicity=counts if counted else None, **sequence
    )
    output = method.attend(*parts, call)
    if not zeros:
        output = output * valid[:, None, :, None]
    torch.testing.assert_close(output, row_by_row(twin, *parts, call))


class Slope:
    """A bias that grows with distance, differently on each side, with one trainable slope a head;
    it counts the numbers that it returns."""

    def __init__(self, slopes):
        self.slopes = slopes
        self.largest = 0

    def __call__(self, query_positions, key_positions):
        distance = key_positions[:, None, None, :] - query_positions[:, None, :, None]
        self.largest = max(self.largest, distance[0, 0].numel())
        return self.of(distance, self.slopes[:, None, None])

    def diagonals(self, n):
        return self.of(torch.arange(1 - n, n), self.slopes[:, None])

    def of(self, distance, slopes):
        return -slopes * torch.where(distance > 0, 2 * distance, -distance)


def slope():
    """A position bias of two heads."""
    return Slope(torch.tensor([0.1, 0.3], dtype=torch.float64))


def masked(query, key, value, call, seen):
    """Dense attention to the pairs `seen` [n, n], or to each as often as it says, with the call's
    bias and multiplicities."""
    scores = query @ key.mT * call.scale
    if call.bias is not None:
        positions = call.sequence.positions
        if positions is None:
            positions = torch.arange(query.shape[2])[None]
        scores = scores + call.bias(positions, positions)
    if call.sequence.log_multiplicity is not None:
        scores = scores + call.sequence.log_multiplicity[:, None, None]
    return (scores + seen.to(scores.dtype).log()).softmax(-1) @ value
