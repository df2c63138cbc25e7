"""`bench ls methods`: complete, true, and narrow enough for a terminal."""

from dataclasses import replace
from importlib.machinery import PathFinder

import pytest

from bench.cli import list_command
from bench.conformance import families
from bench.request import plugins
from methods.base import Method, refusal

METHODS = sorted(path.stem for path in (plugins.CONF / "method").glob("*.yaml"))
ALL = {name: plugins.conf("method", name) for name in METHODS}
HOOKS = {name: {name} for name in ("attend", "mix", "kv_cache")}
HOOKS["encode"] = {"encode", "encode_shorter"}


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
    assert facts["kind"] in plugins.METHOD_KINDS


def listing(confs):
    """The lines that list methods of these configurations."""
    records = [{"name": name, **plugins.method_facts(conf)} for name, conf in confs.items()]
    return list_command.method_table(records).splitlines()


def test_a_listing_has_every_method_and_fits():
    lines = listing(ALL)
    assert [line.split()[0] for line in lines] == ["method", *METHODS]
    assert max(map(len, lines)) <= 120


def test_a_listing_shows_which_methods_are_oracles():
    words = [line.split() for line in listing(ALL)]
    oracles = {name for name, kind, *_ in words if kind == "oracle"}
    assert oracles == {"oracle_blocks", "oracle_topk", "oracle_topp"}


def test_a_method_without_facts_is_listed():
    [_, line] = listing({"bare": {}})
    assert line.split() == ["bare", *["–"] * len(plugins.METHOD_COLUMNS)]
