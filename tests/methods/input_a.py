"""One head of four tokens with examples worked out by hand, and a sub-layer without projections."""

import torch

from methods.base import AttentionCall, SequenceInfo, Workload

A = [torch.tensor(x).view(1, 1, 4, 1) for x in ([1.0, -1, 0, 2], [1.0, 2, -1, 0], [1.0, 2, 3, 4])]
"""query, key, value [1, 1, 4, 1]"""


def call(parameters=None, sequence=None, scale=1.0, **more):
    return AttentionCall(sequence or SequenceInfo(), scale, 0, parameters=parameters or {}, **more)


def drawn(method, heads, head_size, hidden=8, layer=0, seed=0):
    """The method's own parameters of one layer, in float64."""
    draw = torch.Generator().manual_seed(seed)
    workload = Workload(64, 1, heads, head_size, 2, hidden)
    return {
        name: torch.randn(one.shape, generator=draw, dtype=torch.float64)
        for name, one in method.own_parameters(workload, layer).items()
    }


def inputs(n, batch=2, heads=2, size=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(3, batch, heads, n, size, generator=draw, dtype=torch.float64)


class Identity:
    """A sub-layer of one head whose projections are the identity."""

    attended = False

    def query(self, hidden):
        return hidden[:, None]

    key = value = query

    def output(self, read):
        return read[:, 0]


def close(output, *expected):
    torch.testing.assert_close(output.flatten().float(), torch.tensor(expected), rtol=0, atol=2e-6)
