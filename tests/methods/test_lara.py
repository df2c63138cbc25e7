"""LARA by hand, against its formula in plain sums, and with weights that sum to one."""

import torch

from methods.base import SequenceInfo
from methods.lara import LARA
from tests.methods.input_a import A, call, close, inputs


def twin(q, k, v, c, scale):
    """The formula for one row and head [n, d], with n a multiple of c."""
    mean_q, mean_k = (x.view(c, -1, x.shape[1]).mean(1) for x in (q, k))
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


def test_weights_sum_to_one_with_fewer_tokens_than_proposals():
    q, k, v = inputs(5)
    counts = torch.arange(1.0, 11).view(2, 5)
    sequence = SequenceInfo(log_multiplicity=counts.log())
    output = LARA(c=8).attend(q, k, torch.ones_like(v), call(sequence=sequence))
    torch.testing.assert_close(output, torch.ones_like(v))
