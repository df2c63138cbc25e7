"""`bench ls methods`: complete, true, and narrow enough for a terminal."""

from __future__ import annotations

from dataclasses import replace
from importlib.machinery import PathFinder

import pytest

from bench.conformance import families
from bench.request import plugins
from bench.terminal import method_table
from methods.base import Method, refusal

METHODS = sorted(path.stem for path in (plugins.CONF / "method").glob("*.yaml"))
HOOKS = {
    "attend": {"attend"},
    "mix": {"mix"},
    "encode": {"encode", "encode_shorter"},
    "kv_cache": {"kv_cache"},
}


@pytest.fixture(scope="module")
def workloads():
    vanilla = plugins.build(plugins.conf("method", "vanilla"))
    return {name: kind.tiny(vanilla).workload(331, 4) for name, kind in families().items()}


@pytest.mark.parametrize("name", [name for name in METHODS if not plugins.is_engine(name)])
def test_what_a_method_says_of_itself_is_so(name, workloads):
    facts = plugins.conf("method", name)["facts"]
    if (package := facts.get("needs")) and not PathFinder.find_spec(package):
        pytest.skip(f"{package} is not installed")
    method = plugins.build(plugins.conf("method", name))
    runs = [family for family, each in workloads.items() if not refusal(method, each)]
    assert set(workloads if facts["families"] == "all" else facts["families"]) == set(runs)
    assert facts["causal"] == any(workloads[family].causal for family in runs)
    training = (replace(workloads[family], training=True) for family in runs)
    assert facts["trains"] == any(not refusal(method, each) for each in training)
    own = {
        hook
        for hook, names in HOOKS.items()
        if any(getattr(type(method), each) is not getattr(Method, each) for each in names)
    }
    # What has a kernel to choose answers `attend` as well, with exact attention.
    assert set(facts["hooks"]) <= own
    assert facts["kind"] in method_table.KINDS


def listing():
    """The lines that list all methods."""
    records = [
        {"name": name, **method_table.method_facts(plugins.conf("method", name))}
        for name in METHODS
    ]
    return method_table.method_table(records).splitlines()


def test_a_listing_has_every_method_and_fits():
    lines = listing()
    assert [line.split()[0] for line in lines] == ["method", *METHODS]
    assert max(map(len, lines)) <= 120


def test_a_listing_shows_which_methods_are_oracles():
    words = [line.split() for line in listing()]
    oracles = {name for name, kind, *_ in words if kind == "oracle"}
    assert oracles == {"oracle_blocks", "oracle_topk", "oracle_topp"}


def test_a_method_without_facts_is_listed():
    [_, line] = method_table.method_table(
        [{"name": "bare", **method_table.method_facts({})}]
    ).splitlines()
    assert line.split() == ["bare", *["–"] * len(method_table.METHOD_COLUMNS)]
