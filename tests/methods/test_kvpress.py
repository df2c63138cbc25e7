"""kvpress's presses as a method: those of the installed package, and a stand-in for it."""

import sys
import textwrap

import pytest
import torch

from bench.models.decoder import DecoderFamily
from bench.request import compose
from methods import kvpress
from methods.base import SequenceInfo, refusal
from methods.kvpress import KVPress

IDS = torch.arange(3, 53)[None]

STAND_IN = """
class BasePress:
    def post_init_from_model(self, model):
        pass

    def forward_hook(self, module, input, kwargs, output):
        raise AssertionError("not called")
"""
PRESSES = """
from dataclasses import dataclass
from kvpress.presses.base_press import BasePress


@dataclass
class LastPress(BasePress):
    compression_ratio: float = 0.0

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        n = keys.shape[2]
        assert hidden_states.shape[1] == n == len(kwargs["cache_position"])
        assert module.rotary_emb is not None and len(kwargs["position_embeddings"]) == 2
        kept = n - int(n * self.compression_ratio)
        return keys[:, :, n - kept :].contiguous(), values[:, :, n - kept :].contiguous()


class HookingPress(LastPress):
    def forward_hook(self, module, input, kwargs, output):
        pass
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A package kvpress with two presses."""
    folder = tmp_path / "kvpress" / "presses"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder.parent / "__init__.py").write_text("raise ImportError('all of it was imported')")
    (folder / "base_press.py").write_text(textwrap.dedent(STAND_IN))
    (folder / "last_press.py").write_text(textwrap.dedent(PRESSES))
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield
    forget()


def forget():
    kvpress.package_folder.cache_clear()
    kvpress.presses.cache_clear()
    for name in [one for one in sys.modules if one.partition(".")[0] == "kvpress"]:
        del sys.modules[name]


def steps(method, count=4):
    """The logits of new tokens, and the cache."""
    family = DecoderFamily.tiny(method)
    with torch.inference_mode():
        decoding = family.prefill(IDS, SequenceInfo())
        found = [decoding.logits, *(decoding.step(IDS[:, i : i + 1]) for i in range(count))]
    return torch.stack(found), decoding.cache


def sizes(cache):
    return [entries.size for layer in cache.layers.values() for _, entries in layer]


def test_a_press_keeps_what_it_returns(stand_in):
    whole, _ = steps(KVPress("LastPress", 0.0))
    from methods.vanilla import Vanilla

    assert torch.allclose(whole, steps(Vanilla())[0], atol=1e-5)
    pressed, cache = steps(KVPress("LastPress", 0.5), count=4)
    assert torch.equal(pressed[0], whole[0]) and not torch.allclose(pressed[1:], whole[1:])
    assert sizes(cache) == [25 + 4] * 3
    assert cache.read_bytes == sum(2 * 3 * 2 * 8 * 4 * (25 + i) for i in (1, 2, 3, 4))


def test_what_cannot_run_says_why(stand_in):
    workload = DecoderFamily.tiny(KVPress()).workload(50, 1)
    assert "hooks the model's forward pass itself" in refusal(KVPress("HookingPress"), workload)
    wrong = refusal(KVPress("LstPress"), workload)
    assert wrong.startswith("press is 'LstPress'; nearest: LastPress; kvpress has BasePress, La")
    wrong = refusal(KVPress("LastPress", options="ratio=1"), workload)
    assert "unexpected keyword argument 'ratio'" in wrong


def test_rows_are_pressed_as_if_alone(stand_in):
    family = DecoderFamily.tiny(KVPress("LastPress"))
    valid = torch.ones(2, 50, dtype=torch.bool)
    valid[0, :6] = False
    with torch.inference_mode():
        both = family.prefill(IDS.expand(2, -1), SequenceInfo(valid=valid))
        alone = family.prefill(IDS[:, 6:], SequenceInfo())
        for batch, row in ((both, IDS[:, :1].expand(2, -1)), (alone, IDS[:, :1])):
            batch.step(row)
    torch.testing.assert_close(both.logits[:1], alone.logits)


def test_without_the_package_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(kvpress, "package_folder", lambda: None)
    workload = DecoderFamily.tiny(KVPress()).workload(50, 1)
    assert "pip install --no-deps kvpress" in refusal(KVPress(), workload)


def test_a_request_names_the_press():
    request = compose.compose(["method=kvpress", "press=SnapKVPress", "press.window_size=8",
                               "press.compression_ratio=0.25", "press.pooling=max",
                               "model=embedded-llama"])  # fmt: skip
    assert request["method"]["press"] == "SnapKVPress"
    assert request["method"]["compression_ratio"] == 0.25
    assert request["method"]["options"] == "window_size=8, pooling=max"


@pytest.mark.skipif(kvpress.package_folder() is None, reason="kvpress is not installed")
@pytest.mark.parametrize(
    "press",
    ["KnormPress", "ExpectedAttentionPress", "StreamingLLMPress", "SnapKVPress", "TOVAPress",
     "PyramidKVPress"],
)  # fmt: skip
def test_presses_of_the_package(press):
    options = "window_size=8" if press in ("SnapKVPress", "PyramidKVPress") else ""
    _, cache = steps(KVPress(press, 0.5, options), count=1)
    assert sum(sizes(cache)) == pytest.approx(3 * 26, abs=6)
    assert press == "PyramidKVPress" or len(set(sizes(cache))) == 1
