"""Every method of the configuration, a plugin's too, in every family; and fakes that must fail."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest
import torch

from bench import plugins
from bench.conformance import check, families
from bench.conformance.support import PAGE, page
from bench.models.lra import LRAFamily
from methods.base import Method, Unsupported
from methods.vanilla import Vanilla

METHODS = sorted(plugins.available("method"))
FAMILIES = families()


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models run on one thread several times as fast as on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", METHODS)
def test_method_keeps_the_contract(name, family):
    method = plugins.build(plugins.conf("method", name))
    tiny = FAMILIES[family].tiny(method)
    state = torch.get_rng_state()
    assert check(method, tiny) == []
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", METHODS)
def test_yaml_is_short_and_says_what_it_is(name):
    path = plugins.available("method")[name]
    assert len(path.read_text().splitlines()) <= 40
    assert plugins.about(path) and plugins.conf("method", name)["name"] == name


def test_the_page_of_what_runs_where_is_current():
    assert PAGE.read_text() == page(), "python -m bench.conformance.support writes it anew"


# --- fakes -------------------------------------------------------------------------------------


class Identity(Method):
    """Mixes nothing."""

    def attend(self, query, key, value, call):
        return value


class Zeros(Method):
    def attend(self, query, key, value, call):
        return torch.zeros_like(query)


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


class Unseeded(Method):
    def attend(self, query, key, value, call):
        return super().attend(query, key, value, call) * (1 + 0.01 * torch.rand(1))


class Overwrites(Method):
    """Writes to what the model still needs."""

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
    """Says that it can't train, and doesn't stop."""

    def unsupported(self, shape):
        return "not yet" if shape.training else None


class NotExact(Method):
    def attend(self, query, key, value, call):
        return super().attend(query, key, value, call) * 1.01

    def exact(self):
        return self


@dataclass(frozen=True)
class Remembers(Method):
    """Flips for good after one short input."""

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


FAKES = {
    Identity: "mixing: 30 of 61 outputs ignore every token",
    Zeros: "mixing",
    FirstLayerOnly: r"called: attention ran in layers \[0\]",
    Blind: "padding: 30 tokens padded",
    Skips: "long_input",
    Unseeded: "seeded: touches the global random state",
    Overwrites: "stateless: changes its input",
    Dirty: "dirty_memory: reads memory",
    NoGradient: "training: the gradient says",
    Overlong: "training: says that it can't train",
    NotExact: "exact_limit",
    Remembers: "stateless: gives another output after a short input|padding",
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
    failures = check(Peeks(), FAMILIES["llama"].tiny(Peeks()))
    assert any(line.startswith("no_future: token 60 changes 60 outputs") for line in failures)


def test_a_method_that_refuses_a_family_is_not_run_there():
    class Refuses(Method):
        def unsupported(self, shape):
            return "never"

        def attend(self, query, key, value, call):
            raise Unsupported("never")

    assert check(Refuses(), LRAFamily.tiny(Vanilla())) == []
