"""Reformer against its sets of keys written out token by token, and by hand."""

import pytest
import torch

from methods.reformer import reformer
from methods.reformer.reformer import Reformer
from tests.methods.hand import check_rows, heads, inputs, read, slope

CIRCLE = heads((1, 0), (0.8, 0.6), (-1, 0), (0.6, 0.8), (-0.6, -0.8), (-0.8, 0.6))


def shown(method, buckets):
    """[n, n]: which keys one round's buckets [n] show each query."""
    n = len(buckets)
    order = sorted(range(n), key=lambda i: (buckets[i], i))
    chunk = {i: place // method.chunk for place, i in enumerate(order)}
    count = -(-n // method.chunk)
    seen = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            near = chunk[j] in (chunk[i], (chunk[i] - 1) % count)
            seen[i, j] = near and (not method.own_bucket or buckets[i] == buckets[j])
    return seen


def previous(method, rounds):
    """`shown` of all rounds [rounds, n] in a chain: a first chunk reads the last one before it."""
    n, chunk, seen = len(rounds[0]), method.chunk, []
    orders = [sorted(range(n), key=lambda i: (r[i], i)) for r in rounds]
    for number, order in enumerate(orders):
        pairs = torch.zeros(n, n, dtype=torch.float64)
        before = orders[number - 1][(n - 1) // chunk * chunk :]
        for start in range(0, n, chunk):
            own = order[start : start + chunk]
            for i in own:
                for j in before + own:
                    pairs[i, j] += 1
            before = own
        seen.append(pairs)
    return seen


def twin(method):
    def attend(query, key, value, call):
        x, n = (query + key) / 2, query.shape[2]
        scores = x @ (x / x.norm(dim=-1, keepdim=True)).mT
        if call.bias is not None:
            scores = scores + call.bias(call.sequence.positions, call.sequence.positions)
        if call.sequence.log_multiplicity is not None:
            scores = scores + call.sequence.log_multiplicity[:, None, None]
        scores = scores.masked_fill(torch.eye(n, dtype=torch.bool), reformer.SELF)
        rounds = method.hashes(x, call.layer)[:, 0].transpose(0, 1)
        if method.before_first == "previous":
            times = torch.stack([sum(previous(method, head.tolist())) for head in rounds])
        else:
            times = torch.stack(
                [sum(shown(method, row.tolist()) for row in head) for head in rounds]
            )
        if method.multiplicity == "once":
            times = times.clamp(max=1)
        return (scores + times.log()).softmax(-1) @ value

    return attend


@pytest.mark.parametrize(
    "method",
    [
        Reformer(8), Reformer(8, 3), Reformer(8, 3, 4, False), Reformer(8, 3, 4, True, "counted"),
        Reformer(99, 2, own_bucket=False), Reformer(8, 3, 4, False, "counted", "previous"),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
def test_equals_its_twin(method, biased):
    check_rows(method, twin(method), 53, counted=biased, bias=slope() if biased else None)


@pytest.mark.parametrize(
    "chunk, own, expected",
    [
        (6, False, [3.377227, 3.185791, 4.788910, 2.603154, 3.457909, 3.247771]),
        (2, False, [3.068266, 2.578522, 2.534212, 1.744451, 4.055762, 3.709968]),
        (2, True, [2.0, 1.0, 3.0, 1.589040, 4.063031, 3.620051]),
    ],
)
def test_by_hand(chunk, own, expected, monkeypatch):
    direction = torch.tensor([1.0, 0]).view(1, 1, 2, 1)
    monkeypatch.setattr(reformer, "rotations", lambda size, seed: direction)
    method = Reformer(chunk, buckets=2, own_bucket=own)
    output = read(method, CIRCLE, CIRCLE, heads(1, 2, 3, 4, 5, 6))
    assert output == pytest.approx(expected, abs=1e-6)


def test_hashes_follow_seed_layer_head_and_round():
    x = inputs(64)[0][:, :1].expand(-1, 2, -1, -1)
    one = Reformer(4, 2).hashes(x, 0)
    assert one.equal(Reformer(4, 2).hashes(x, 0)) and one.unique().numel() > 8
    others = Reformer(4, 2).hashes(x, 1), Reformer(4, 2, seed=1).hashes(x, 0), one.flip(0)
    assert not any(one.equal(other) for other in (*others, one.flip(2)))
