"""LARA by hand, against its formula in plain sums, and with weights that sum to one."""

import torch

from methods.base import SequenceInfo, Workload
from methods.lara import LARA, PARTS
from tests.methods.input_a import A, call, close, drawn, inputs


def twin(q, k, v, c, scale, layer=lambda x, name: x):
    """The formula for one row and head [n, d], with n a multiple of c."""
    mean_q, mean_k = (
        layer(x, name).view(c, -1, x.shape[1]).mean(1) for x, name in ((q, "query"), (k, "key"))
    )
    mu = mean_q + mean_k

    def xi(x, omega):
        return (scale * (omega * x - x * x / 2).sum(-1)).exp()

    t = (mean_q @ q.T * scale).softmax(-1)
    output = torch.zeros_like(q)
    for i in range(len(q)):
        weights, reads = [], []
        for each in range(c):
            of_keys = xi(k, mu[each])
            share = xi(mu[each], mu[each]) / xi(mu, mu[each]).sum()
            alpha = (share + t[each, i] - t[:, i].mean()).clamp(min=1e-8)
            weights.append(alpha * xi(q[i], mu[each]) * of_keys.sum() / xi(mu[each], mu[each]))
            reads.append((of_keys / of_keys.sum()) @ v)
        output[i] = sum(w * r for w, r in zip(weights, reads, strict=True)) / sum(weights)
    return output


def test_two_proposals_by_hand():
    close(LARA(c=2).attend(*A, call()), 2.081768, 2.313666, 2.185146, 2.045373)


def test_equals_its_formula():
    q, k, v = inputs(12)
    output = LARA(c=3).attend(q, k, v, call(scale=0.4))
    for row in range(2):
        for head in range(2):
            one = (x[row, head] for x in (q, k, v))
            torch.testing.assert_close(output[row, head], twin(*one, 3, 0.4))


def test_layers_before_the_means_equal_their_formula():
    method, (q, k, v) = LARA(c=3, pooling="layers"), inputs(12)
    own = drawn(method, 2, 4)

    def layer(x, name):
        weight, bias, gain, shift = (own[f"{name}_{part}"] for part in PARTS)
        y = x @ weight.T + bias
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return y * gain + shift

    output = method.attend(q, k, v, call(own, scale=0.4))
    for row in range(2):
        for head in range(2):
            one = (x[row, head] for x in (q, k, v))
            torch.testing.assert_close(output[row, head], twin(*one, 3, 0.4, layer))


def test_layers_by_hand():
    """The norm of one feature is its shift: the proposals are all 0 + 0, and equal."""
    own = {f"{name}_{part}": torch.zeros(1) for name in ("query", "key") for part in PARTS}
    own |= {f"{name}_weight": torch.ones(1, 1) for name in ("query", "key")}
    # Of each key exp(-k²/2): .606531 .135335 .606531 1.
    expected = [2.851645] * 4
    close(LARA(c=2, pooling="layers").attend(*A, call(own)), *expected)


def test_the_layers_are_drawn_as_officially():
    drawn = {
        name: (one.shape, one.std, one.mean)
        for name, one in LARA(pooling="layers")
        .own_parameters(Workload(64, 1, 2, 4, 2, 8), 0)
        .items()
    }
    assert drawn["key_weight"] == ((4, 4), 0.02, 0.0) and drawn["query_gain"] == ((4,), 0.0, 1.0)
    assert len(drawn) == 8 and not LARA().own_parameters(Workload(64, 1, 2, 4, 2, 8), 0)


def test_weights_sum_to_one_with_fewer_tokens_than_proposals():
    q, k, v = inputs(5)
    counts = torch.arange(1.0, 11).view(2, 5)
    sequence = SequenceInfo(log_multiplicity=counts.log())
    output = LARA(c=8).attend(q, k, torch.ones_like(v), call(sequence=sequence))
    torch.testing.assert_close(output, torch.ones_like(v))
