"""Methods that break the contract, each in its own way: `bench check` names it."""

import re
from dataclasses import dataclass, field, replace

import pytest
import torch

from bench.conformance import cache_checks, check, families, run
from bench.conformance.checks import CHECKS
from bench.models.lra import LRAFamily
from methods.base import Method, Unsupported
from methods.parts.kv_cache import FullCache
from methods.vanilla import Vanilla
from tests.models.decoders import tiny

FAMILIES = families()


class Identity(Method):
    """Mixes nothing."""

    def attend(self, query, key, value, call):
        return value


class FirstLayerOnly(Method):
    def encode(self, layers, hidden, sequence):
        return layers[0](hidden, sequence)


class Blind(Method):
    """Padding is read like any token."""

    def attend(self, query, key, value, call):
        unpadded = call.sequence.replace(valid=None)
        return super().attend(query, key, value, replace(call, sequence=unpadded))


class Skips(Method):
    """From 300 tokens on a fast path that reads nothing."""

    def attend(self, query, key, value, call):
        return value if query.shape[2] > 300 else super().attend(query, key, value, call)


class Pads(Method):
    """From 300 tokens on padding is read like any token."""

    def attend(self, query, key, value, call):
        valid = None if query.shape[2] > 300 else call.sequence.valid
        unpadded = call.sequence.replace(valid=valid)
        return super().attend(query, key, value, replace(call, sequence=unpadded))


class Unseeded(Method):
    def attend(self, query, key, value, call):
        return super().attend(query, key, value, call) * (1 + 0.01 * torch.rand(1))


class Overwrites(Method):
    """Writes to a tensor that the model still needs."""

    def encode(self, layers, hidden, sequence):
        if sequence.vip is not None:
            sequence.vip.zero_()
        return super().encode(layers, hidden, sequence)


class Dirty(Method):
    """Adds memory that was never written."""

    def attend(self, query, key, value, call):
        return super().attend(query, key, value, call) + 0 * torch.empty_like(query)


class NoGradient(Method):
    def attend(self, query, key, value, call):
        return super().attend(query.detach(), key, value, call)


class Overlong(Method):
    """Reports that it can't train, but doesn't stop."""

    def unsupported(self, shape):
        return "not yet" if shape.training else None


class NotExact(Method):
    def attend(self, query, key, value, call):
        return super().attend(query, key, value, call) * 1.01

    def exact_limit(self):
        return self


@dataclass(frozen=True)
class Remembers(Method):
    """Switches its behaviour permanently after one short input."""

    short: list[int] = field(default_factory=list)

    def attend(self, query, key, value, call):
        if query.shape[2] < 10:
            self.short.append(1)
        return super().attend(query, key, value, call) * (0.9 if self.short else 1)


@dataclass(frozen=True)
class Cached(Method):
    """One answer for each shape."""

    known: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict)

    def encode(self, layers, hidden, sequence):
        if hidden.shape not in self.known:
            self.known[hidden.shape] = super().encode(layers, hidden, sequence)
        return self.known[hidden.shape]


class NotOne(Method):
    """Divides by 0 if there is only one token."""

    def attend(self, query, key, value, call):
        others = query.new_tensor(query.shape[2] - 1.0)
        return super().attend(query, key, value, call) * (others / others)


class Runs(Method):
    """Treats only the padding before the first and after the last token as padding."""

    def attend(self, query, key, value, call):
        valid = call.sequence.valid
        if valid is not None:
            valid = (valid.cumsum(1) > 0) & (valid.flip(1).cumsum(1) > 0).flip(1)
        run = replace(call, sequence=call.sequence.replace(valid=valid))
        return super().attend(query, key, value, run)


class Rounds(Method):
    """Loses precision that bfloat16 has."""

    def attend(self, query, key, value, call):
        query = query.round() if query.dtype == torch.bfloat16 else query
        return super().attend(query, key, value, call)

    def exact_limit(self):
        return self


FAKES = {
    Identity: "mixing: 30 of 61 outputs ignore every token",
    FirstLayerOnly: r"called: attention ran in layers \[0\]",
    Blind: "padding: 30 tokens padded",
    Skips: "long_input",
    Pads: "mixed_lengths: 20 tokens beside others",
    Unseeded: "seeded: touches the global random state",
    Overwrites: "stateless: changes its input",
    Dirty: "dirty_memory: reads memory",
    NoGradient: "training: the gradient gives a slope",
    Overlong: "training: reports that it can't train",
    NotExact: "exact_limit",
    Remembers: "stateless: gives another output after a short input|padding",
    NotOne: "any_length: 1 tokens give numbers",
    Runs: "padding: 30 tokens padded scattered",
    Rounds: "bfloat16: ",
    Cached: "stateless: another input of the same shape",
}


@pytest.mark.parametrize("fake", FAKES)
def test_a_fake_is_caught(fake):
    method = fake()
    failures = check(method, LRAFamily.tiny(method))
    assert any(re.match(FAKES[fake], line) for line in failures), failures


class Peeks(Method):
    """Reads the future."""

    def attend(self, query, key, value, call):
        every = replace(call, sequence=call.sequence.replace(causal=False))
        return super().attend(query, key, value, every)


def test_a_causal_method_that_sees_the_future_is_caught():
    failures = check(Peeks(), FAMILIES["decoder"].tiny(Peeks()))
    assert any(line.startswith("no_future: token 60 changes 60 outputs") for line in failures)


class CacheFake(Method):
    """Exact attention; its cache is the fake."""

    cache = FullCache

    def kv_cache(self, workload):
        return self.cache()


class Forgets(FullCache):
    """Keeps only the last tokens."""

    def decode(self, query, key, value, call):
        self.layers[call.layer].keep_last(3)
        return super().decode(query, key, value, call)


class BlindCache(FullCache):
    """New tokens read padding like any token."""

    def decode(self, query, key, value, call):
        unpadded = call.sequence.replace(valid=None)
        return super().decode(query, key, value, replace(call, sequence=unpadded))


class Slices(FullCache):
    """Drops the prompt's first tokens by a slice, which frees nothing."""

    def prefill(self, query, key, value, call):
        output = super().prefill(query, key, value, call)
        entries = self.layers[call.layer]
        last = slice(max(0, entries.size - 16), entries.size)
        entries._parts = [x[:, :, last] for x in (entries.key, entries.value, entries.token)]
        entries.size = last.stop - last.start
        return output


class Hides(FullCache):
    """Keeps the prompt's keys a second time, in a place that held() doesn't report."""

    def prefill(self, query, key, value, call):
        self.hidden = {"keys": [key]}
        return super().prefill(query, key, value, call)


class HidesInClosure(FullCache):
    """The same, in a place that no attribute references."""

    def prefill(self, query, key, value, call):
        self.hidden = lambda: key
        return super().prefill(query, key, value, call)


class Masks(FullCache):
    """Reads 16 of its entries, and frees none."""

    def decode(self, query, key, value, call):
        return super().decode(query, key, value, replace(call, window=16))

    def _leave_window(self, entries, call):
        pass


class Uncounted(FullCache):
    def decode(self, query, key, value, call):
        output = super().decode(query, key, value, call)
        self.read_bytes = 0
        return output


class Overcounted(FullCache):
    def decode(self, query, key, value, call):
        self.read_bytes += 1 << 30
        return super().decode(query, key, value, call)


CACHES = {
    Forgets: r"decoding: \[61\] tokens: one by one",
    BlindCache: "decoding_padded: 30 tokens padded right",
    Slices: "held_is_kept: after the prompt .* bytes are kept behind the tensors",
    Hides: "held_is_kept: after the prompt it keeps 21,184 bytes that held",
    HidesInClosure: "held_is_kept: after new tokens 1 of the prompt's tensors",
    Masks: r"held_is_read: tensor 0 of held\(\) has 384 entries, of which (16|24) are read",
    Uncounted: "read_is_counted: a token counts 0 bytes",
    Overcounted: "read_is_counted: a token counts 1,073,7",
}


@pytest.mark.parametrize("fake", CACHES)
def test_a_cache_that_breaks_the_contract_is_caught(fake):
    method = type(fake.__name__, (CacheFake,), {"cache": fake})()
    failures = run(cache_checks.CHECKS, method, FAMILIES["decoder"].tiny(method))
    assert any(re.match(CACHES[fake], line) for line in failures), failures


@pytest.mark.parametrize("kind", ["gemma2", "gpt2", "gpt_oss", "mistral"])
def test_vanillas_cache_keeps_the_contract(kind):
    """In decoders with windows, soft caps, sinks and learned positions."""

    class Full(Vanilla):
        def kv_cache(self, workload):
            return FullCache()

    assert run(cache_checks.CHECKS, Full(), tiny(kind, Full())) == []


class Constant(LRAFamily):
    """Answers without reading its text."""

    def classify(self, ids, sequence):
        return torch.zeros(len(ids), 10)


def test_a_model_that_answers_without_the_method_is_caught():
    failures = check(Vanilla(), Constant.tiny(Vanilla()))
    assert any(re.match(r"answering: .*never called \(0 calls\)", line) for line in failures)


def test_every_check_has_a_fake():
    caught = {name for words in FAKES.values() for name in re.findall(r"(\w+)(?::|$)", words)}
    named = {one.__name__ for one in CHECKS}
    caught |= {words.split(":")[0] for words in CACHES.values()}
    assert caught | {"no_future", "answering"} >= named


def test_a_method_that_refuses_a_family_is_not_run_there():
    class Refuses(Method):
        def unsupported(self, shape):
            return "never"

        def attend(self, query, key, value, call):
            raise Unsupported("never")

    assert check(Refuses(), LRAFamily.tiny(Vanilla())) == []
