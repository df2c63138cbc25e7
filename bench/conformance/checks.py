"""The checks: each yields one line for each failure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from bench.conformance import cache_checks
from bench.conformance.subject import (
    CLOSE,
    LONG,
    MIXED,
    LayerRecorder,
    Subject,
    alone,
    error,
    moved,
    nan_in_new_memory,
    rows,
    vanilla,
)  # fmt: skip
from methods.base import AttentionCall, Method, SequenceInfo, Unsupported, refusal

LENGTHS = (1, 2, 3, 13, 61, 97)
STEP = 1e-4
"""Step of finite differences: large enough for methods that compute partly in float32."""
ALLOWED = {torch.float32: CLOSE, torch.bfloat16: 0.01, torch.float16: 0.002}
"""Relative error of exact attention in each dtype, added to three times vanilla's."""

Check = Callable[[Subject], Iterator[str]]


def called(subject: Subject) -> Iterator[str]:
    """The method computes the attention of every layer."""
    recorder = LayerRecorder(subject.method)
    subject.family.calls = 0
    subject.encode(*subject.batch([61]), method=recorder)
    every = set(range(subject.family.workload(61, 1).layers))
    if recorder.layers != every or not subject.family.calls:
        yield f"attention ran in layers {sorted(recorder.layers)} of {sorted(every)}"


def any_length(subject: Subject) -> Iterator[str]:
    """Odd, prime and tiny inputs give one finite output per token, in the model's dtype."""
    for n in LENGTHS:
        ids, sequence = subject.batch([n, n])
        output = subject.encode(ids, sequence)
        size = (2, n, subject.family.workload(n, 2).hidden_size)
        if output.shape != size or output.dtype != subject.dtype:
            yield f"{n} tokens give {tuple(output.shape)} of {output.dtype}, not {size}"
        elif not bool(output.isfinite().all()):
            yield f"{n} tokens give numbers that aren't finite"


def long_input(subject: Subject) -> Iterator[str]:
    """With its own parameters, outputs are finite, and tokens still mix."""
    yield from _mixing(subject, LONG)


def mixing(subject: Subject) -> Iterator[str]:
    """Every output depends on its own token, and on another that is visible to it."""
    yield from _mixing(subject, 61)


def _mixing(subject: Subject, n: int) -> Iterator[str]:
    ids, sequence = subject.batch([n])
    before = subject.encode(ids, sequence)
    if not bool(before.isfinite().all()):
        yield f"{n} tokens give numbers that aren't finite"
        return
    for parity in (0, 1):
        changed = ids.clone()
        changed[:, parity::2] = (ids[:, parity::2] - 2) % 61 + 3
        change = moved(subject.encode(changed, sequence), before)[0]
        own, others = change[parity::2], change[1 - parity :: 2]
        if parity == 1 and subject.causal:
            others = others[1:]  # the first token sees only itself
        if not bool(own.all()):
            yield f"{int((~own).sum())} of {n} outputs ignore their own token"
        if not bool(others.all()):
            yield f"{int((~others).sum())} of {n} outputs ignore every token beside them"


def no_future(subject: Subject) -> Iterator[str]:
    """In a causal stack a token's output depends on no later token; where later tokens may choose
    the keys to read, it depends on none of their values."""
    if not subject.causal:
        return
    if subject.method.chooses_ahead:
        yield from _no_later_value(subject)
        return
    ids, sequence = subject.batch([61])
    before = subject.encode(ids, sequence)
    for j in (1, 30, 60):
        changed = ids.clone()
        changed[:, j] = (ids[:, j] - 2) % 61 + 3
        earlier = moved(subject.encode(changed, sequence), before)[0, :j]
        if bool(earlier.any()):
            yield f"token {j} changes {int(earlier.sum())} outputs before it"


def _no_later_value(subject: Subject) -> Iterator[str]:
    workload = subject.family.workload(61, 1)
    generator = torch.Generator().manual_seed(0)
    size = (1, workload.heads, 61, workload.head_size)
    query, key, value = (
        torch.randn(size, generator=generator).to(subject.device) for _ in range(3)
    )
    call = AttentionCall(SequenceInfo(causal=True), workload.head_size**-0.5, 0)
    before = subject.method.attend(query, key, value, call)
    for j in (1, 30, 60):
        changed = value.clone()
        changed[:, :, j:] += 1
        output = subject.method.attend(query, key, changed, call)
        if not torch.equal(output[:, :, :j], before[:, :, :j]):
            yield f"the values of tokens from {j} on change outputs before it"


def padding(subject: Subject) -> Iterator[str]:
    """Other rows of the batch and padding on any side change nothing."""
    for side in ("right", "left", "scattered"):
        ids, sequence = subject.batch(MIXED, side)
        together = rows(subject.encode(ids, sequence), sequence)
        for row, (length, output) in enumerate(zip(MIXED, together, strict=True)):
            own = subject.encode(*alone(ids, sequence, row))[0]
            if (far := error(output, own)) > CLOSE:
                yield f"{length} tokens padded {side} are {far:.1e} from the same alone"


def mixed_lengths(subject: Subject) -> Iterator[str]:
    """With its own parameters, a short row padded to the length of a long one gives the same output
    as alone. Most queries are then padding, far from every key."""
    lengths = (LONG, LONG // 16)
    ids, sequence = subject.batch(lengths)
    for row, output in enumerate(rows(subject.encode(ids, sequence), sequence)):
        own = subject.encode(*alone(ids, sequence, row))[0]
        if (far := error(output, own)) > CLOSE:
            yield f"{lengths[row]} tokens beside others are {far:.1e} from the same alone"


def exact_limit(subject: Subject) -> Iterator[str]:
    """At the parameters of `exact_limit()` the method equals vanilla."""
    exact = subject.method.exact_limit()
    if exact is None:
        return
    for lengths, side in (([1], "right"), ([2], "right"), (MIXED, "right"), (MIXED, "left")):
        ids, sequence = subject.batch(lengths, side)
        expected = rows(subject.encode(ids, sequence, vanilla()), sequence)
        output = rows(subject.encode(ids, sequence, exact), sequence)
        far = error(torch.cat(output), torch.cat(expected))
        if far > CLOSE:
            yield f"{exact} is {far:.1e} from vanilla on {lengths} tokens padded on the {side}"


def seeded(subject: Subject) -> Iterator[str]:
    """The same input gives the same bits for any global random state, which stays untouched."""
    ids, sequence = subject.batch(MIXED)
    states, python = subject.random_states(), random.getstate()
    first = subject.encode(ids, sequence)
    same = all(map(torch.equal, subject.random_states(), states))
    if not same or random.getstate() != python:
        yield "touches the global random state"
    torch.manual_seed(12345)
    if not torch.equal(subject.encode(ids, sequence), first):
        yield "gives another output on the same input"


def stateless(subject: Subject) -> Iterator[str]:
    """Earlier inputs change nothing, and inputs are not modified."""
    ids, sequence = subject.batch(MIXED)
    inputs = [x for x in (ids, sequence.valid, sequence.vip) if x is not None]
    copies = [x.clone() for x in inputs]
    first = subject.encode(ids, sequence)
    copied = first.clone()
    if not all(map(torch.equal, inputs, copies)):
        yield "changes its input in place"
    subject.encode(*subject.batch([3]))
    other = subject.encode(*subject.batch(MIXED, seed=5))
    if not torch.equal(first, copied):
        yield "a later call changes what an earlier one returned"
    if other.shape == first.shape and torch.equal(other, first):
        yield "another input of the same shape gives the same output"
    if not torch.equal(subject.encode(ids, sequence), copied):
        yield "gives another output after a short input"


def dirty_memory(subject: Subject) -> Iterator[str]:
    """NaN in uninitialized memory changes nothing."""
    ids, sequence = subject.batch(MIXED)
    clean = rows(subject.encode(ids, sequence), sequence)
    with nan_in_new_memory():
        output = subject.encode(ids, sequence)
    if (far := error(torch.cat(rows(output, sequence)), torch.cat(clean))) > CLOSE:
        yield f"reads memory that it never wrote ({far:.1e})"


def bfloat16(subject: Subject) -> Iterator[str]:
    """In bfloat16, at its exact limit the method is as close to float32 as vanilla; elsewhere its
    output is finite and similar."""
    yield from recast_like(subject, torch.bfloat16)


def recast_like(subject: Subject, dtype: torch.dtype, device: str | None = None) -> Iterator[str]:
    """In another dtype, and on another device (None: the same), at its exact limit the method is as
    close to the output of `subject` as vanilla; elsewhere its output is finite and similar."""
    other = subject.recast(dtype, device)

    def both(method: Method) -> tuple[Tensor, Tensor]:
        pair = ((one, *one.batch(MIXED)) for one in (other, subject))
        output, expected = (
            torch.cat(rows(one.encode(ids, sequence, method), sequence))
            for one, ids, sequence in pair
        )
        return output.to(expected.device), expected

    output, expected = both(subject.method)
    far = float((output.double() - expected.double()).norm() / expected.double().norm())
    if output.dtype != dtype or not far < 0.5:
        yield f"{output.dtype} output is {far:.0%} from {subject.dtype}'s"
    exact = subject.method.exact_limit()
    if exact is not None:
        allowed = 3 * error(*both(vanilla())) + ALLOWED[dtype]
        if (far := error(*both(exact))) > allowed:
            yield f"{exact} is {far:.1e} from {subject.dtype}; {allowed:.1e} is allowed"


def training(subject: Subject) -> Iterator[str]:
    """Gradients agree with finite differences in float64, and reach the method's own weights and
    those that vanilla's reach, except `Method.unused`; or training is refused with a reason."""
    family = subject.family
    ids, sequence = subject.batch([13, 13])
    target = torch.zeros(2, 1, dtype=torch.long, device=subject.device)
    family.method = subject.method
    family.model.train()
    if refusal(subject.method, family.workload(13, 2)):
        try:
            torch.autograd.backward(family.loss(ids, sequence, target))
        except Unsupported:
            return
        yield "reports that it can't train, and trains"
        return
    yield from _slopes(subject.recast(torch.float64))
    reached = []
    for method in (vanilla(), subject.method):
        family.model.zero_grad(set_to_none=True)
        family.method = method
        torch.autograd.backward(family.loss(ids, sequence, target))
        weights = dict(family.model.named_parameters())
        reached.append({name for name, weight in weights.items() if weight.grad is not None})
        for name, weight in weights.items():
            if weight.grad is not None and not bool(weight.grad.isfinite().all()):
                yield f"the gradient of {name} isn't finite"
    family.model.zero_grad(set_to_none=True)
    if lost := sorted((reached[0] | subject.own_weights()) - subject.unused_weights() - reached[1]):
        yield f"no gradient reaches {len(lost)} weights, first {lost[0]}"


def _slopes(double: Subject) -> Iterator[str]:
    """Gradients against finite differences along random directions of the hidden states."""
    family, layers = double.family, double.family.layers
    family.method = double.method
    family.model.eval()
    sequence = double.batch([13])[1].replace(causal=double.causal)
    generator = torch.Generator().manual_seed(0)
    size = (1, 13, family.workload(13, 1).hidden_size)
    hidden, weight, *directions = (
        torch.randn(size, generator=generator, dtype=torch.float64).to(double.device)
        for _ in range(5)
    )

    def value(x: Tensor) -> Tensor:
        return (double.method.encode(layers, x, sequence) * weight).sum()

    (gradient,) = torch.autograd.grad(value(hidden.requires_grad_()), hidden)
    for direction in directions:
        with torch.no_grad():
            ends = [float(value(hidden + step * direction)) for step in (STEP, -STEP)]
        slope, expected = float((gradient * direction).sum()), (ends[0] - ends[1]) / (2 * STEP)
        if not abs(slope - expected) <= 0.01 * float(gradient.norm()):
            yield f"the gradient gives a slope of {slope:.4g}; it is {expected:.4g}"


def answering(subject: Subject) -> Iterator[str]:
    """The whole model generates answers, and the method is called for them."""
    family = subject.family
    family.method, family.calls = subject.method, 0
    ids, sequence = subject.batch([17, 9])
    with torch.no_grad():
        tokens = family.generate_ids(ids, sequence, 3)
        target = torch.zeros(2, 1, dtype=torch.long, device=subject.device)
        logits = family.logits(ids, sequence, target)
    if tokens.shape[0] != 2 or not 1 <= tokens.shape[1] <= 4:
        yield f"two rows and 3 new tokens give answers of shape {tuple(tokens.shape)}"
    if not bool(logits.isfinite().all()) or not family.calls:
        yield f"logits aren't finite, or the method was never called ({family.calls} calls)"


CHECKS: tuple[Check, ...] = (
    stateless, called, any_length, long_input, mixing, no_future, padding, mixed_lengths,
    exact_limit, seeded, dirty_memory, bfloat16, training, answering, *cache_checks.CHECKS,
)  # fmt: skip
OWN_PARAMETERS = (long_input, mixed_lengths)
"""The other checks run the method as `Method.scaled_down()`."""
"""`stateless` comes first: it must see a method before any short input could change it for good."""
