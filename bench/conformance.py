"""What every method keeps in every family, checked on tiny models in seconds.

    for line in check(method, family): print(line)      # one line a failure

The method runs as it is on 331 tokens and with `Method.small()` on fewer. What a method must equal
is itself: alone and in a batch, before and after other inputs, in clean and dirty memory; and
vanilla at the parameters that `Method.exact()` names. docs/methods.md says what else to test.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.utils import deterministic

from bench import plugins
from bench.cell import BASELINE
from bench.models.auto import AUTO, FAMILIES
from bench.models.base import Family
from bench.models.hf import cast
from methods.base import Call, Layer, Method, Sequence, Unsupported

LENGTHS = (1, 2, 3, 13, 61, 97)
MIXED = (61, 30, 1, 17)
LONG = 331
CLOSE = 1e-4
"""Of the largest output: float32 rounding through a few layers stays far below."""
CHANGED = 1e-5


@dataclass(frozen=True)
class Subject:
    """A method, and a family to put it in."""

    method: Method
    family: Family

    def encode(self, ids: Tensor, sequence: Sequence, method: Method | None = None) -> Tensor:
        self.family.method = method or self.method
        with torch.no_grad():
            return self.family.encode(ids, sequence)

    def recast(self, dtype: torch.dtype) -> Subject:
        """The same weights in another dtype."""
        family = copy.copy(self.family)
        family.model = cast(copy.deepcopy(self.family.model), dtype)
        return replace(self, family=family)

    @property
    def causal(self) -> bool:
        return self.family.shape(LONG, 1).causal


Check = Callable[[Subject], Iterator[str]]


def check(method: Method, family: Family) -> list[str]:
    """One line for each thing that `method` doesn't keep in `family` (a `Family.tiny`); none where
    it says itself that it doesn't support the family. Global random state stays as it is."""
    if method.unsupported(family.shape(LONG, len(MIXED))):
        return []
    failures: list[str] = []
    for one in CHECKS:
        subject = Subject(method if one is long_input else method.small(), family)
        family.model.eval()
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                failures += [f"{one.__name__}: {line}" for line in one(subject)]
            except Exception as error:
                line = next(iter(str(error).splitlines()), "")
                failures.append(f"{one.__name__}: {type(error).__name__}: {line}")
    return failures


def families() -> dict[str, type[Family]]:
    """Name → class of every family that a model of the configuration, a plugin's too, is of."""
    configured = (plugins.conf("model", name)["family"] for name in plugins.available("model"))
    targets = sorted({*FAMILIES.values(), *configured} - {AUTO})
    named = {target.rpartition(":")[2].removesuffix("Family").lower(): target for target in targets}
    return {name: plugins.load(target) for name, target in sorted(named.items())}


def vanilla() -> Method:
    method: Method = plugins.build(plugins.conf("method", BASELINE))
    return method


# --- inputs and comparisons --------------------------------------------------------------------


def batch(lengths: Items[int], side: str = "right", seed: int = 0) -> tuple[Tensor, Sequence]:
    """Rows that depend on the seed and their own length alone: ids [B, n], noise at padding, and
    every seventh token VIP."""
    n = max(lengths)
    noise = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(3, 64, (len(lengths), n), generator=noise)
    valid = torch.zeros(len(lengths), n, dtype=torch.bool)
    vip = torch.zeros_like(valid)
    for row, length in enumerate(lengths):
        make = torch.Generator().manual_seed(1000 * seed + length)
        first = n - length if side == "left" else 0
        ids[row, first : first + length] = torch.randint(3, 64, (length,), generator=make)
        valid[row, first : first + length] = True
        vip[row, first : first + length : 7] = True
    return ids, Sequence(valid=None if bool(valid.all()) else valid, vip=vip)


def rows(output: Tensor, sequence: Sequence) -> list[Tensor]:
    """The valid outputs [length, D] of each row."""
    if sequence.valid is None:
        return list(output)
    return [row[valid] for row, valid in zip(output, sequence.valid, strict=True)]


def error(output: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest expected number; inf where one isn't finite."""
    if output.shape != expected.shape or not bool(output.isfinite().all()):
        return float("inf")
    most = expected.double().abs().max().clamp(min=1e-30)
    return float((output.double() - expected.double()).abs().max() / most)


def moved(output: Tensor, before: Tensor) -> Tensor:
    """[B, n]: whether each token's output changed."""
    change = (output.double() - before.double()).abs().amax(-1)
    return change > CHANGED * before.double().abs().max()


@dataclass(frozen=True)
class Noted(Method):
    """A method, with the layers noted whose attention it read."""

    method: Method
    layers: set[int] = field(default_factory=set)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: Call) -> Tensor:
        self.layers.add(call.layer)
        return self.method.attend(query, key, value, call)

    def encode(self, layers: Items[Layer], hidden: Tensor, sequence: Sequence) -> Tensor:
        return self.method.encode(layers, hidden, sequence)


# --- the checks --------------------------------------------------------------------------------


def called(subject: Subject) -> Iterator[str]:
    """Every layer's attention is the method's."""
    noted = Noted(subject.method)
    subject.family.calls = 0
    subject.encode(*batch([61]), method=noted)
    every = set(range(subject.family.shape(61, 1).layers))
    if noted.layers != every or not subject.family.calls:
        yield f"attention ran in layers {sorted(noted.layers)} of {sorted(every)}"


def any_length(subject: Subject) -> Iterator[str]:
    """Odd, prime and tiny inputs give one finite output a token, in the model's dtype."""
    for n in LENGTHS:
        ids, sequence = batch([n, n])
        output = subject.encode(ids, sequence)
        size = (2, n, subject.family.shape(n, 2).hidden_size)
        if output.shape != size or output.dtype != torch.float32:
            yield f"{n} tokens give {tuple(output.shape)} of {output.dtype}, not {size}"
        elif not bool(output.isfinite().all()):
            yield f"{n} tokens give numbers that aren't finite"


def long_input(subject: Subject) -> Iterator[str]:
    """With its own parameters: finite, and still reading."""
    yield from _mixing(subject, LONG)


def mixing(subject: Subject) -> Iterator[str]:
    """Every output depends on its own token, and on another that it may see."""
    yield from _mixing(subject, 61)


def _mixing(subject: Subject, n: int) -> Iterator[str]:
    ids, sequence = batch([n])
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
            others = others[1:]  # the first token sees nothing else
        if not bool(own.all()):
            yield f"{int((~own).sum())} of {n} outputs ignore their own token"
        if not bool(others.all()):
            yield f"{int((~others).sum())} of {n} outputs ignore every token beside them"


def no_future(subject: Subject) -> Iterator[str]:
    """In a causal stack a token's output depends on no later one."""
    if not subject.causal:
        return
    ids, sequence = batch([61])
    before = subject.encode(ids, sequence)
    for j in (1, 30, 60):
        changed = ids.clone()
        changed[:, j] = (ids[:, j] - 2) % 61 + 3
        seen = moved(subject.encode(changed, sequence), before)[0, :j]
        if bool(seen.any()):
            yield f"token {j} changes {int(seen.sum())} outputs before it"


def padding(subject: Subject) -> Iterator[str]:
    """Rows of other lengths and their padding, on either side, change nothing."""
    alone = [subject.encode(*batch([length]))[0] for length in MIXED]
    for side in ("right", "left"):
        ids, sequence = batch(MIXED, side)
        for length, row, own in zip(
            MIXED, rows(subject.encode(ids, sequence), sequence), alone, strict=True
        ):
            if (far := error(row, own)) > CLOSE:
                yield f"{length} tokens padded on the {side} are {far:.1e} from the same alone"


def exact_limit(subject: Subject) -> Iterator[str]:
    """At the parameters of `exact()` it is vanilla."""
    exact = subject.method.exact()
    if exact is None:
        return
    for lengths, side in (([1], "right"), ([2], "right"), (MIXED, "right"), (MIXED, "left")):
        ids, sequence = batch(lengths, side)
        expected = rows(subject.encode(ids, sequence, vanilla()), sequence)
        output = rows(subject.encode(ids, sequence, exact), sequence)
        far = error(torch.cat(output), torch.cat(expected))
        if far > CLOSE:
            yield f"{exact} is {far:.1e} from vanilla on {lengths} tokens padded on the {side}"


def seeded(subject: Subject) -> Iterator[str]:
    """The same input gives the same bits, whatever the global random state, which isn't touched."""
    ids, sequence = batch(MIXED)
    state, python = torch.get_rng_state(), random.getstate()
    first = subject.encode(ids, sequence)
    if not torch.equal(torch.get_rng_state(), state) or random.getstate() != python:
        yield "touches the global random state"
    torch.manual_seed(12345)
    if not torch.equal(subject.encode(ids, sequence), first):
        yield "gives another output on the same input"


def stateless(subject: Subject) -> Iterator[str]:
    """Earlier inputs leave nothing behind, and inputs stay as they are."""
    ids, sequence = batch(MIXED)
    told = [x for x in (ids, sequence.valid, sequence.vip) if x is not None]
    kept = [x.clone() for x in told]
    first = subject.encode(ids, sequence)
    copied = first.clone()
    if not all(map(torch.equal, told, kept)):
        yield "changes its input in place"
    subject.encode(*batch([3]))
    other = subject.encode(*batch(MIXED, seed=5))
    if not torch.equal(first, copied):
        yield "a later call changes what an earlier one returned"
    if other.shape == first.shape and torch.equal(other, first):
        yield "another input of the same shape gives the same output"
    if not torch.equal(subject.encode(ids, sequence), copied):
        yield "gives another output after a short input"


def dirty_memory(subject: Subject) -> Iterator[str]:
    """Fresh memory full of NaN changes nothing."""
    ids, sequence = batch(MIXED)
    clean = rows(subject.encode(ids, sequence), sequence)
    with nan_in_new_memory():
        output = subject.encode(ids, sequence)
    if (far := error(torch.cat(rows(output, sequence)), torch.cat(clean))) > CLOSE:
        yield f"reads memory that it never wrote ({far:.1e})"


def bfloat16(subject: Subject) -> Iterator[str]:
    """At its exact limit as close as vanilla; elsewhere finite and alike."""
    half = subject.recast(torch.bfloat16)
    ids, sequence = batch(MIXED)

    def both(method: Method) -> tuple[Tensor, Tensor]:
        pair = (one.encode(ids, sequence, method) for one in (half, subject))
        output, expected = (torch.cat(rows(x, sequence)) for x in pair)
        return output, expected

    output, expected = both(subject.method)
    far = float((output.double() - expected).norm() / expected.norm())
    if output.dtype != torch.bfloat16 or not far < 0.5:
        yield f"{output.dtype} output is {far:.0%} from float32's"
    exact = subject.method.exact()
    if exact is not None:
        allowed = 3 * error(*both(vanilla())) + 0.01
        if (far := error(*both(exact))) > allowed:
            yield f"{exact} is {far:.1e} from float32; {allowed:.1e} is allowed"


def training(subject: Subject) -> Iterator[str]:
    """Gradients are those of its own formula, by finite differences in float64, and reach what
    vanilla's reach; or it refuses in words."""
    family = subject.family
    ids, sequence = batch([13, 13])
    target = torch.zeros(2, 1, dtype=torch.long)
    family.method = subject.method
    family.model.train()
    if subject.method.unsupported(family.shape(13, 2)):
        try:
            family.loss(ids, sequence, target).backward()
        except Unsupported:
            return
        yield "says that it can't train, and trains"
        return
    double = subject.recast(torch.float64)
    layers = double.family.layers
    double.family.method = subject.method
    width = family.shape(13, 2).hidden_size
    hidden = torch.randn(1, 13, width, dtype=torch.float64, requires_grad=True)
    told = batch([13])[1].replace(causal=subject.causal)
    double.family.model.eval()
    torch.autograd.gradcheck(
        lambda x: subject.method.encode(layers, x, told), hidden, fast_mode=True, atol=1e-4
    )
    reached = []
    for method in (vanilla(), subject.method):
        family.model.zero_grad(set_to_none=True)
        family.method = method
        family.loss(ids, sequence, target).backward()
        weights = dict(family.model.named_parameters())
        reached.append({name for name, weight in weights.items() if weight.grad is not None})
        for name, weight in weights.items():
            if weight.grad is not None and not bool(weight.grad.isfinite().all()):
                yield f"the gradient of {name} isn't finite"
    family.model.zero_grad(set_to_none=True)
    if lost := sorted(reached[0] - reached[1]):
        yield f"no gradient reaches {len(lost)} weights, first {lost[0]}"


def answering(subject: Subject) -> Iterator[str]:
    """The whole model answers, and asks the method when it does."""
    family = subject.family
    family.method, family.calls = subject.method, 0
    ids, sequence = batch([17, 9])
    with torch.no_grad():
        tokens = family.generate_ids(ids, sequence, 3)
        logits = family.logits(ids, sequence, torch.zeros(2, 1, dtype=torch.long))
    if tokens.shape[0] != 2 or not 1 <= tokens.shape[1] <= 4:
        yield f"two rows and 3 new tokens give answers of shape {tuple(tokens.shape)}"
    if not bool(logits.isfinite().all()) or not family.calls:
        yield f"logits aren't finite, or the method was never asked ({family.calls} calls)"


CHECKS: tuple[Check, ...] = (
    called, any_length, long_input, mixing, no_future, padding, exact_limit, seeded, stateless,
    dirty_memory, bfloat16, training, answering,
)  # fmt: skip


@contextmanager
def nan_in_new_memory() -> Iterator[None]:
    """Memory that torch hands out without writing to it is full of NaN."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
