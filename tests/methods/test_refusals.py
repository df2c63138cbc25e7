"""What methods refuse: causal sequences, a position bias, parameters and workloads."""

from dataclasses import replace

import pytest
import torch
import yaml

from bench.request import plugins
from longctx_bench.named import built
from methods.base import Unsupported
from tests.methods.decoder import workload
from tests.methods.hand import Slope, call_of, inputs
from tests.methods.input_a import call, drawn

CAUSAL = ["bigbird", "lara", "local_attention", "mra", "nystromformer", "reformer"]
FUTURE = r"future|causal|nothing but itself|encoders"
BIASED = ["h_transformer_1d", "lara", "linear_transformer", "mra", "nystromformer", "performer"]


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_call_is_refused(name):
    with pytest.raises(Unsupported, match=FUTURE):
        built(name, {}).attend(*inputs(5), call_of(causal=True))


@pytest.mark.parametrize("name", BIASED)
def test_a_position_bias_is_refused(name):
    with pytest.raises(Unsupported, match="position bias"):
        built(name, {}).attend(*inputs(5), call_of(bias=Slope(torch.ones(2))))


@pytest.mark.parametrize("name", ["linformer", "synthesizer"])
def test_more_tokens_than_its_matrices_have_are_refused(name):
    form = {"form": "random"} if name == "synthesizer" else {}
    method = built(name, {"k": 2, "n": 8, **form})
    with pytest.raises(Unsupported, match="at most n=8 tokens, not 9"):
        method.attend(*inputs(9, d=4), call(drawn(method, 2, 4)))


def values(words):
    """Words NAME=VALUE, the values in YAML."""
    return {name: yaml.safe_load(value) for name, _, value in (x.partition("=") for x in words)}


def said(asked):
    named, _, sizes = asked.partition(" / ")
    name, *parameters = named.split()
    kind = plugins.load(plugins.conf("method", name)["target"])
    try:
        method = kind(**values(parameters))
    except ValueError as error:
        return str(error)
    return method.unsupported(replace(workload(100), **values(sizes.split()))) or "runs"


def test_parameters_and_workloads_are_refused_in_one_line(snapshot, request):
    """Each line: a method, its parameters / sizes of a workload: why it is refused, or "runs". For
    a new one, write the line up to its colon and run the test with --update-snapshots."""
    lines = (request.path.parent / "snapshots" / "refusals.txt").read_text().splitlines()
    asked = [line.partition(":")[0] for line in lines]
    snapshot("refusals", "\n".join(f"{one}: {said(one)}" for one in asked))
