"""Every method of the configuration, a plugin's too, in every family."""

from __future__ import annotations

import pytest
import torch

from bench import plugins
from bench.conformance import check, families
from bench.conformance.support import PAGE, page

METHODS = sorted(plugins.available("method"))
FAMILIES = families()


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
