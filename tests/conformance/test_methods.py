"""Every method of the configuration, a plugin's too, in every family."""

import functools
import re
import sys

import pytest
import torch

from bench.conformance import check, families
from bench.conformance.checks import mixed_lengths
from bench.conformance.subject import LONG, Subject, vanilla
from bench.conformance.support import page
from bench.request import plugins
from methods.base import refusal

METHODS = sorted(name for name in plugins.available("method") if not plugins.is_engine(name))
CLASSES = sorted(
    {
        repr(plugins.build(plugins.conf("method", name)).scaled_down()): name
        for name in reversed(METHODS)
    }.values()
)
"""The methods without presets that are another one on inputs as short as those of the checks."""
FAMILIES = families()


@functools.cache
def workload_of(family):
    return FAMILIES[family].tiny(vanilla()).workload(LONG, 2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", CLASSES)
def test_method_keeps_the_contract(name, family):
    method = plugins.build(plugins.conf("method", name))
    if refusal(method, workload_of(family)):
        return
    tiny = FAMILIES[family].tiny(method)
    state = torch.get_rng_state()
    assert check(method, tiny) == []
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kernel", ["native", "torch"])
def test_rows_of_mixed_lengths_are_as_alone_by_each_kernel(kernel, family):
    """For methods with kernels; the check of the contract covers the others."""
    confs = {name: plugins.conf("method", name) for name in CLASSES}
    for name, conf in confs.items():
        if "kernel" not in conf:
            continue
        method = plugins.build({**conf, "kernel": kernel})
        if not refusal(method, workload_of(family)):
            tiny = FAMILIES[family].tiny(method)
            tiny.model.eval()
            assert [*mixed_lengths(Subject(method, tiny))] == [], name


@pytest.mark.parametrize("name", METHODS)
def test_yaml_is_short_and_says_what_it_is(name):
    path = plugins.available("method")[name]
    assert len(path.read_text().splitlines()) <= 40
    assert plugins.about(path) and plugins.conf("method", name)["name"] == name


@pytest.mark.parametrize("name", METHODS)
def test_a_docstring_names_the_licence_of_the_official_code(name):
    conf = plugins.conf("method", name)
    document = sys.modules[plugins.load(conf["target"]).__module__].__doc__
    named = re.search(r"Apache-2.0|MIT|MPL-2.0|no licence found|no official code", document)
    assert named, document


def test_the_support_page_lists_every_method_and_family():
    lines = page().splitlines()
    for title in ("Inference", "Training"):
        start = next(i for i, line in enumerate(lines) if line.startswith(f"| {title} "))
        assert [name.strip() for name in lines[start].split("|")[2:-1]] == list(FAMILIES)
        table = lines[start + 2 : start + 2 + len(METHODS)]
        assert [line.split("|")[1].strip() for line in table] == METHODS
    reason = plugins.build(plugins.conf("method", "vcc")).unsupported(workload_of("decoder"))
    number = next(line.split(".")[0] for line in lines if line.endswith(f". {reason}"))
    (row, _) = (line for line in lines if line.startswith("| vcc "))
    assert f"no ({number})" in row
