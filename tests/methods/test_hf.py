"""Functions of transformers' attention interface as a method: its own, and another package's."""

import sys
import textwrap

import pytest
import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from bench.models import attention
from bench.models.bert import BertFamily
from bench.models.decoder import DecoderFamily
from bench.models.lra import LRAFamily
from bench.request import code_hash, compose, plugins
from methods.base import SequenceInfo, Unsupported, refusal
from methods.hf import HARNESS, HF
from methods.vanilla import Vanilla
from tests.models.decoders import tiny
from tests.models.test_decoders import NEW, N, close, prompts

THEIRS = """
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

seen = []


def near(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **settings):
    seen.append((type(module).__name__, module.layer_idx, module.config.num_attention_heads))
    n, t = key.shape[2], query.shape[2]
    at = torch.arange(n - t, n)[:, None]
    mask = (torch.arange(n) > at - 3) & (torch.arange(n) <= at)
    mask = mask[None, None] if attention_mask is None else attention_mask & mask
    return sdpa_attention_forward(module, query, key, value, mask, dropout, scaling)


def register():
    AttentionInterface.register("their_near", near)
    AttentionMaskInterface.register("their_near", sdpa_mask)
    AttentionInterface.register("their_unmasked", sdpa_attention_forward)
    AttentionInterface.register("their_flat", lambda *_, **__: (torch.zeros(1), None))
"""
REGISTER = "their_attention:register"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A package that registers functions; its module."""
    (tmp_path / "their_attention.py").write_text(textwrap.dedent(THEIRS))
    monkeypatch.syspath_prepend(tmp_path)
    import their_attention

    their_attention.register()
    yield their_attention
    del sys.modules["their_attention"]
    for registry in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        for name in [one for one in registry if one.startswith("their_")]:
            del registry._global_mapping[name]


def family_of(kind, method):
    """A tiny model with the method, after the check whether the method can run there."""
    family = kind.tiny(method)
    assert refusal(method, family.workload(N, 2)) is None
    return family


def test_the_name_is_the_harnesss():
    assert HARNESS == attention.NAME


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "mistral"])
@torch.no_grad()
def test_eager_has_windows_soft_caps_and_sinks(kind):
    family = tiny(kind, Vanilla())
    ids, sequence = prompts()
    expected = family.generate_ids(ids, sequence, NEW)
    logits = family.logits(ids, sequence, expected)
    workload = family.workload(N, 2)
    family.method = HF("eager")
    assert refusal(family.method, workload) is None
    close(family.logits(ids, sequence, expected), logits)
    assert ("ignores" in str(refusal(HF("sdpa"), workload))) == (kind != "mistral")


@torch.no_grad()
def test_another_packages_function_reads_prompts_and_new_tokens(theirs):
    family = family_of(DecoderFamily, HF("their_near", REGISTER))
    ids, sequence = prompts()
    decoding = family.prefill(ids, sequence)
    assert theirs.seen == [("LlamaAttention", layer, 4) for layer in range(3)]
    after = decoding.step(ids[:, :1])
    assert len(theirs.seen) == 6
    alone = family.prefill(ids[1:, sequence.valid[1]], SequenceInfo())
    close(decoding.logits[1:], alone.step(ids[1:, :1]))
    family.method = Vanilla()
    assert not torch.allclose(family.prefill(ids, sequence).step(ids[:, :1]), after, atol=1e-3)


@torch.no_grad()
def test_what_a_function_cannot_do_is_said(theirs):
    ids, padded = prompts()
    for kind, attn, sequence, why in (
        (BertFamily, "their_unmasked", padded, "no mask function is registered as 'their_unm"),
        (DecoderFamily, "their_flat", SequenceInfo(), r"their_flat gives \(1,\); queries"),
        (LRAFamily, "their_near", padded, "their_near reads 'config' of the model's attention"),
    ):  # fmt: skip
        with pytest.raises(Unsupported, match=why):
            family_of(kind, HF(attn, REGISTER)).encode(ids, sequence)


def test_what_cannot_run_is_refused(theirs):
    workload = DecoderFamily.tiny(Vanilla()).workload(N, 1)
    for method, why in {
        HF("their_neer", REGISTER): "no attention function 'their_neer'; nearest: their_near",
        HF("sdpb"): "nearest: sdpa; attn.module=their_pkg imports",
        HF("x", "their_attention:nothing"): "attn.module=their_attention:nothing: AttributeError",
        HF("flash_attention_2"): "attn=flash_attention_2: it asks the model's config",
        HF("flex_attention"): "attn=flex_attention: torch.compile",
    }.items():
        assert why in str(refusal(method, workload))


def test_a_request_names_the_function(theirs):
    words = ["method=hf", "attn=their_near", f"attn.module={REGISTER}", "model=embedded-llama"]
    method = compose.compose(words)["method"]
    assert (method["attn"], method["module"]) == ("their_near", REGISTER)
    theirs_too = code_hash.code_sha256(*plugins.targets(method))
    assert theirs_too != code_hash.code_sha256(method["target"])
