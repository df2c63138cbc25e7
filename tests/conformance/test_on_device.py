"""The checks of a GPU, on the processor and on a stand-in for a GPU (tests/emulated_cuda.py)."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.conformance import checks, families, on_device
from bench.conformance.on_device import check_on_device
from bench.conformance.subject import LONG, MIXED
from bench.request import plugins
from methods.base import AttentionCall, Method, refusal
from methods.parts import attention
from methods.vanilla import Vanilla
from tests.emulated_cuda import emulated

FAMILIES = families()
METHODS = sorted(name for name in plugins.available("method") if not plugins.is_engine(name))


@pytest.mark.parametrize("family", ["bert", "decoder"])
@pytest.mark.parametrize("name", METHODS)
def test_half_precision_is_near_float32(name, family):
    method = plugins.build(plugins.conf("method", name))
    tiny = FAMILIES[family].tiny(method)
    if refusal(method, tiny.workload(LONG, len(MIXED))):
        return
    assert check_on_device(method, tiny, "cpu", "float16") == []


@dataclass(frozen=True)
class Wrong(Vanilla):
    """Exact in float32 on the CPU only."""

    wrong: str = "dtype"

    def attend(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        out = super().attend(query, key, value, call)
        if self.wrong == "device":
            return out + torch.zeros(out.shape[-1])
        return out if out.dtype == torch.float32 else -out

    def exact_limit(self) -> Method | None:
        return self

    def kv_cache(self, workload):
        return None


def failures(method: Method, device: str, dtype: str) -> list[str]:
    return check_on_device(method, FAMILIES["bert"].tiny(method), device, dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_half_precision_breaks_is_named_beside_what_vanilla_loses(dtype):
    assert failures(Wrong(), "cpu", "float32") == []
    lines = failures(Wrong(), "cpu", dtype)
    assert any("from torch.float32; " in line and "is allowed" in line for line in lines)


@pytest.fixture
def quick(monkeypatch):
    """Only one of the checks and the comparison with the CPU, since the stand-in is slow."""
    monkeypatch.setattr(on_device, "SINGLE", (checks.called,))


def test_a_tensor_that_stays_on_the_processor_is_found(quick):
    assert failures(Wrong(wrong="device"), "cpu", "float32") == []
    with emulated():
        lines = failures(Wrong(wrong="device"), "cuda", "float32")
    assert any("Expected all tensors to be on the same device" in line for line in lines)


def test_an_output_may_lie_in_memory_by_tokens(monkeypatch):
    """As in the output of a GPU's fused kernel; the CPU's output is ordered by heads."""

    def by_tokens(*args, **kwargs):
        out = scaled_dot_product_attention(*args, **kwargs)
        return out.transpose(1, 2).contiguous().transpose(1, 2)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", by_tokens)
    method = plugins.build(plugins.conf("method", "knorm"))
    assert check_on_device(method, FAMILIES["decoder"].tiny(method), "cpu", "float32") == []


@pytest.mark.parametrize(
    ("name", "family"), [("vcc", "t5"), ("fourier", "lra"), ("quest", "decoder")]
)
def test_methods_keep_their_tensors_together(quick, name, family):
    method = plugins.build(plugins.conf("method", name))
    tiny = FAMILIES[family].tiny(method)
    with emulated():
        assert check_on_device(method, tiny, "cuda", "float32") == []
