"""Inputs small enough to check attention by hand, and random ones."""

import torch

from methods.base import AttentionCall, SequenceInfo


def heads(*numbers):
    """One head: [1, 1, n, d] float64 of n numbers, or of n rows of d."""
    x = torch.tensor(numbers, dtype=torch.float64)
    return x.view(1, 1, len(numbers), -1)


A = heads(1, -1, 0, 2), heads(1, 2, -1, 0), heads(1, 2, 3, 4)
"""Query, key and value of four tokens, d = 1."""


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
