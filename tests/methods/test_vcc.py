"""VCC against its formula written out, against vanilla where it must be exact, and by hand."""

import math

import pytest
import torch
from torch.nn.functional import layer_norm

from methods.base import SequenceInfo, Unsupported, Workload
from methods.vcc.tree import Tree
from methods.vcc.vcc import VCC
from tests.methods.vcc_twin import D, Identity, by_twin, close, rows, toys

METHODS = [
    VCC(k=4, h=3, segment=10),
    VCC(k=4, h=0, plain_layers=0),
    VCC(k=3, h=5, plain_layers=2, segment=7),
    VCC(k=1, h=4, plain_layers=0),
    VCC(k=5, h=2, plain_layers=0, selection="unnormalised"),
    VCC(k=4, h=2, plain_layers=0, multiplicity="k"),
    VCC(k=4, h=2, plain_layers=0, rounding="even"),
    VCC(k=4, h=2, plain_layers=0, n_p=16, filled_seats=True),
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 17, 61])
def test_equals_its_formula(method, n):
    hidden, sequence = rows(n)
    layers = toys()
    close(method.encode(layers, hidden, sequence), by_twin(method, layers, hidden, sequence))


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_batch_of_lengths_equals_its_formula_row_by_row(method, padding):
    hidden, sequence = rows(53, [53, 30, 1, 0, 41], padding=padding)
    layers = toys()
    before = hidden.clone()
    expected = by_twin(method, layers, hidden, sequence)
    with torch.no_grad():
        output = method.encode(layers, hidden, sequence)
    close(output, expected)
    assert torch.equal(hidden, before)
    assert (output[~sequence.valid] == 0).all()


@pytest.mark.parametrize(
    ("others", "h", "counted", "expected"),
    [
        ([0, 0, 2, 2], 0, True, 1.655409),
        ([0, 0, 2, 2], 0, False, 1.575210),
        ([0, 2], 0, True, 1.0),
        ([0, 2], 1, True, 1.575210),
    ],
)
def test_by_hand(others, h, counted, expected):
    """P = [1], C = [0, 0 | 2, 2], k = 2, h = 0, identity projections: P reads
    (1·e + 2·2e²) / (e + 2 + 2e²), and without log k (e + 2e²) / (e + 1 + e²). Of C = [0, 2], the
    mean 1, read twice, gives 1, and exact attention the latter."""
    hidden = torch.tensor([1.0, *others], dtype=torch.float64).view(1, -1, 1)
    vip = torch.tensor([[True, *[False] * len(others)]])
    method = VCC(k=2, h=h, plain_layers=0)
    output = method.encode([Identity(counted)], hidden, SequenceInfo(vip=vip))
    assert output[0, 0, 0].item() == pytest.approx(expected, abs=1e-6)


def test_layers_read_r_tokens():
    """r = n_p + h·k + (blocks - h) (§4)."""
    hidden, sequence = rows(200)
    n_p = int(sequence.vip.sum())
    blocks = math.ceil((200 - n_p) / 8)
    layers = toys()
    VCC(k=8, h=5, segment=64).encode(layers, hidden, sequence)
    assert layers[0].seen == [64, 64]  # all whole segments at once, then the short one
    assert layers[1].seen == layers[2].seen == [n_p + 5 * 8 + blocks - 5]


@pytest.mark.parametrize(("count", "plain"), [(2, 0), (3, 1), (6, 2), (12, 4), (18, 4), (24, 6)])
def test_plain_layers_are_the_papers(count, plain):
    layers = toys(count)
    with torch.no_grad():
        VCC(k=4, h=1, segment=8).encode(layers, *rows(24))
    whole = [layer.seen == [8] for layer in layers]  # three segments of 8 at once
    assert whole == [True] * plain + [False] * (count - plain)


def test_tree_gives_back_what_it_was_given():
    tokens = torch.randn(2, 12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    facts = torch.stack((torch.arange(12).expand(2, 12), torch.ones(2, 12).long()), -1)
    facts[1, 7:] = 0
    tree = Tree(tokens.clone(), facts, 4, "valid")
    assert torch.equal(tree.leaf_facts(tree.blocks), facts)
    assert tree.mean_facts(tree.blocks).tolist() == [
        [[2, 4], [6, 4], [10, 4]],
        [[2, 4], [5, 3], [0, 0]],
    ]
    close(tree.leaves(tree.blocks), tokens)
    close(tree.means(tree.blocks)[1, 1], tokens[1, 4:7].mean(0))
    counted = Tree(tokens.clone(), facts, 4, "k")
    assert counted.mean_facts(tree.blocks)[1, :, 1].tolist() == [4, 4, 0]

    fine, coarse = tree.blocks[:, [2]], tree.blocks[:, [0, 1]]
    tree.update(fine, tokens[:, 8:] * 3, coarse, tree.means(coarse) + 1)
    updated = torch.cat((tokens[:, :8] + 1, tokens[:, 8:] * 3), 1)
    close(tree.leaves(tree.blocks), updated)
    close(tree.into_tokens(), updated)


@pytest.mark.parametrize("rounding", ["up", "even"])
def test_mean_positions_rounded_to_even_let_a_shift_matter(rounding):
    hidden, sequence = rows(61)
    method = VCC(k=4, h=3, plain_layers=0, rounding=rounding)
    outputs = [
        method.encode(toys(), hidden, sequence.replace(positions=sequence.positions + shift))
        for shift in (0, 1)
    ]
    assert torch.allclose(*outputs) == (rounding == "up")


def learning(method, layer, hidden, sequence):
    """The loss of one row and layer in which weights follow the shares of importance: 1 where they
    are, so that its gradient is the straight-through estimator's. hidden [n, D]."""
    vips, blocks = sequence.vip[0].nonzero()[:, 0], (~sequence.vip[0]).nonzero()[:, 0]
    blocks = blocks.split(method.k)
    means = torch.stack([hidden[block].mean(0) for block in blocks])
    scores = layer.scores(hidden[None, vips], None, means[None], None)[0]
    if method.selection == "attention":
        share = scores.softmax(-1).mean((0, 1))
    else:
        share = scores.logsumexp((0, 1)).softmax(0)
    fine = share.topk(method.h).indices.tolist()
    pull = share - share.detach()
    pieces = [(vips[i : i + 1], pull[0] * 0) for i in range(len(vips))]
    for i, block in enumerate(blocks):
        whole = [block] if i not in fine else [block[j : j + 1] for j in range(len(block))]
        pieces += [(one, pull[i] if i in fine else -pull[i]) for one in whole]
    weight = 1 + torch.stack([more for _, more in pieces])
    read = torch.stack([hidden[support].mean(0) for support, _ in pieces])[None]
    times = torch.tensor([float(len(support)) for support, _ in pieces], dtype=torch.float64)
    reads = layer.scores(read, None, read, None) + times.log() + weight.log()
    after = layer.rest(read, reads.softmax(-1) @ layer.heads(read, layer.weights[2]))
    change = ((after - read) * weight[:, None])[0]
    for at, (support, _) in enumerate(pieces):
        hidden = hidden.index_add(0, support, change[at].expand(len(support), -1))
    return hidden.square().sum()


@pytest.mark.parametrize("selection", ["attention", "unnormalised"])
def test_importance_learns_where_it_is_let_through(selection):
    def gradients(loss, **more):
        method = VCC(k=4, h=2, plain_layers=0, selection=selection, **more)
        (layer,), (hidden, sequence) = toys(1, biased=False), rows(41)
        hidden.requires_grad_()
        value = loss(method, layer, hidden, sequence)
        value.backward()
        return value, [hidden.grad, *(weight.grad for weight in layer.weights)]

    def ours(method, layer, hidden, sequence):
        return method.encode([layer], hidden, sequence).square().sum()

    value, let_through = gradients(ours, straight_through=True)
    same, apart = gradients(ours)
    told, expected = gradients(lambda m, layer, x, s: learning(m, layer, x[0], s))
    close(value, same)
    close(value, told)
    for one, other in zip(let_through, expected, strict=True):
        close(one, other, 1e-5)
    assert not torch.allclose(let_through[1], apart[1], rtol=1e-3)


def post_norm(hidden, sequence):
    """A layer whose output has a root mean square of 1; it attends to all tokens evenly."""
    counts = torch.where(sequence.valid, sequence.log_multiplicity.exp(), 0)[..., None]
    mean = (hidden * counts).sum(1, keepdim=True) / counts.sum(1, keepdim=True)
    return layer_norm(hidden + 0.3 * mean.roll(1, -1) + hidden.sin(), (D,))


post_norm.scores = lambda queries, _, keys, __: (queries @ keys.mT)[:, None]


@pytest.mark.parametrize("renormalise", [False, True])
def test_norms_drift_after_a_norm_unless_restored(renormalise):
    hidden, sequence = rows(203)
    hidden = layer_norm(hidden, (D,))
    method = VCC(k=8, h=3, plain_layers=0, renormalise=renormalise)
    output = method.encode([post_norm] * 4, hidden, sequence)
    vip = sequence.vip[0]
    close(output[0, vip].square().mean(1), torch.ones(int(vip.sum()), dtype=torch.float64), 1e-4)
    rms = output[0].square().mean().sqrt().item()
    assert abs(rms - 1) < 1e-4 if renormalise else rms > 1.05


def test_exploration_draws_blocks_in_training():
    hidden, sequence = rows(61)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = VCC(k=4, h=3, plain_layers=0, explore=1.0)
        one, other = (method.encode(toys(), hidden, sequence) for _ in range(2))
    assert not torch.allclose(one, other)


def test_what_cannot_be_done_is_said():
    hidden, sequence = rows(30, [30, 20])
    most = int(sequence.vip.logical_and(sequence.valid).sum(1).max())
    with pytest.raises(ValueError, match=f"{most} VIP tokens; n_p allows {most - 1}"):
        VCC(n_p=most - 1).encode(toys(), hidden, sequence)
    VCC(n_p=most).encode(toys(), hidden, sequence)
    with pytest.raises(ValueError, match="row 0 has no VIP"):
        VCC().encode(toys(), hidden, sequence.replace(vip=None))
    with pytest.raises(Unsupported, match="future"):
        VCC().encode(toys(), hidden, sequence.replace(causal=True))


def test_theory():
    shape = Workload(length=16384, batch=1, heads=12, head_size=64, layers=12, hidden_size=768)
    # 16 384 differences, 1 024 means, and 4 times r = 90·16 + 1024 - 90 + 48 of n_p = 48
    theory = VCC(n_p=48, plain_layers=0).state_bytes(shape)
    assert theory == 4 * 768 * (16384 + 1024 + 4 * 2422)
