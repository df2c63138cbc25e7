"""A method that leaves nothing out of an input reports it, and equals vanilla then and only
then."""

import pytest
import torch

import bench
from bench.execution import arms
from bench.models.bert import BertFamily
from bench.models.decoder import DecoderFamily
from bench.request import plugins
from longctx_bench.named import built
from methods.base import SequenceInfo, Unsupported
from methods.vanilla import Vanilla
from tasks.base import Encoded

ENCODERS = {
    "bigbird": {"block_size": 4, "window": 1, "random": 1},
    "h_transformer_1d": {"rank": 8},
    "iceformer": {"k": 16},
    "local_attention": {"b": 16},
    "longformer": {"window": 32},
    "mra": {"b": 4, "per_row": 5},
    "nystromformer": {"m": 16},
    "sinkhorn": {"b": 16},
    "sparse_transformer": {"l": 16},
}
PROMPTS = {
    "a_shape": {"global_tokens": 8, "local_window": 8},
    "blasst": {"block_q": 4, "block_k": 16, "scale": 100.0},
    "flexprefill": {"block": 4, "min_budget": 16, "gamma": 0.5},
    "oracle_blocks": {"block": 16, "budget": 0.3},
    "vertical_slash": {
        "vertical": 4,
        "slash": 16,
        "first_columns": 1,
        "near_diagonals": 2,
        "granularity": "token",
    },
    "xattention": {"block": 8, "stride": 2, "threshold": 0.3},
}
CACHES = {
    "adakv": {"budget": 16, "window": 4},
    "duo_attention": {"sinks": 4, "recent": 12},
    "expected_attention": {"budget": 16},
    "h2o": {"budget": 16},
    "kivi": {"group": 8, "residual": 16},
    "knorm": {"budget": 16},
    "oracle_topk": {"budget": 16},
    "kvzip": {"budget": 16},
    "pyramidkv": {"budget": 16},
    "quest": {"budget": 48, "page": 4, "dense_layers": 1},
    "rkv": {"budget": 16},
    "snapkv": {"budget": 16, "window": 4},
    "sparq": {"budget": 16, "r": 8},
    "streaming_llm": {"budget": 16},
    "tova": {"budget": 16},
    "vattention": {"budget": 16, "sinks": 4, "window": 4},
}
NEVER = [
    "fnet", "fourier", "hf", "linear_transformer", "nomad", "oracle_topp", "performer", "q4_0",
    "q8_0", "turboquant", "vanilla", "vanilla_eager",
]  # fmt: skip


def reads_all(method, family, n):
    workload = family.workload(n, 1)
    return all(method.reads_all(workload, layer) for layer in range(workload.layers))


def ids_of(n):
    return torch.randint(5, 60, (1, n), generator=torch.Generator().manual_seed(n))


def equal(one, other):
    return torch.allclose(one, other, atol=1e-3 * float(other.abs().max()))


@pytest.mark.parametrize("name", [*ENCODERS, *PROMPTS])
@torch.no_grad()
def test_attention_to_all_tokens(name):
    method = built(name, ENCODERS.get(name) or PROMPTS[name])
    family = (BertFamily if name in ENCODERS else DecoderFamily).tiny(method)
    found = {}
    for n in range(12, 40):
        outputs = []
        for family.method in (method, Vanilla()):
            outputs.append(family.encode(ids_of(n), SequenceInfo()))
        found[n] = reads_all(method, family, n)
        assert equal(*outputs) or not found[n]
    assert found[12] and not found[39] and not equal(*outputs)


@pytest.mark.parametrize("name", CACHES)
@torch.no_grad()
def test_caches_that_keep_all_of_a_prompt(name):
    method = built(name, CACHES[name])
    family, longest = DecoderFamily.tiny(method), {"kivi": 15, "quest": 48}.get(name, 16)
    for n in (longest, longest + 1, longest + 12):
        logits = []
        for family.method in (method, Vanilla()):
            decoding = family.prefill(ids_of(n), SequenceInfo())
            logits.append(decoding.step(ids_of(1)))
        assert reads_all(method, family, n) == (n == longest)
        if n == longest + 12:
            assert not equal(*logits)


@pytest.mark.parametrize("name", NEVER)
def test_exact_methods_and_those_without_a_choice_run(name):
    assert not built(name, {}).reads_all(DecoderFamily.tiny(Vanilla()).workload(8, 1), 0)


def test_every_method_is_considered():
    known = {*ENCODERS, *PROMPTS, *CACHES, *NEVER}
    approximate = {"bigbird_etc", "kvpress", "lara", "luna", "reformer", "synthesizer", "vcc"}
    variants = {name for name in plugins.usable("method") if name.endswith(("_lra", "_4k", "_s"))}
    engines = {name for name in plugins.usable("method") if plugins.is_engine(name)}
    known |= approximate | variants | engines | {"linformer"}
    assert set(plugins.usable("method")) == known


@pytest.mark.parametrize("name", [*PROMPTS, *CACHES])
def test_defaults_leave_something_out_of_a_short_prompt(name):
    if name in ("kivi", "xattention"):  # 128 tokens, 256 tokens
        return
    family = DecoderFamily.tiny(Vanilla())
    assert not reads_all(built(name, {}), family, 890)


def test_such_a_cell_is_unsupported():
    words = ["method=snapkv", "budget=2048", "model=embedded-llama", "task=longeval_lines"]
    cell = bench.compose(*words)
    method = arms.method_of(cell)
    family = DecoderFamily.tiny(method)
    encoded = [Encoded(ids=[1] * n, vip=[False] * n, tokens_in=n) for n in (500, 890)]
    with pytest.raises(Unsupported, match="reads everything at 890 tokens"):
        arms.check_left_out(cell, family, encoded)
    encoded += [Encoded(ids=[1] * 2049, vip=[False] * 2049, tokens_in=2049)]
    arms.check_left_out(cell, family, encoded)
