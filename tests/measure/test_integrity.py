"""Checks of a method's precision and speed against what is physically possible."""

from __future__ import annotations

import pytest
import torch

from bench.measure import failed_check, physical_floor, precision
from bench.measure.failed_check import IntegrityError
from bench.models.bert import BertFamily
from methods.base import SequenceInfo
from methods.bigbird.bigbird import BigBird
from methods.vanilla import Vanilla
from tests.cheaters.coarse import Coarse


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (Vanilla(), "float32"),
        (BigBird(), "float32"),
        (Coarse("bfloat16"), "bfloat16 or less"),
        (Coarse("float16"), "float16 or tf32"),
    ],
)
def test_the_precision_inside_is_named(method, dtype):
    family = BertFamily.tiny(method)
    ids = torch.randint(5, 60, (1, 128), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = precision.estimate(family, (ids, SequenceInfo()), "float32")
    assert found["dtype_effective"] == dtype, found


@torch.inference_mode()
def test_a_call_faster_than_its_linear_layers_is_an_error(monkeypatch):
    monkeypatch.setattr(failed_check, "_failures", [])
    layer = torch.nn.Linear(8, 16)
    with physical_floor.counted() as work:
        layer(torch.ones(2, 10, 8))
    assert work.flops == 2 * 2 * 10 * 8 * 16
    physical_floor.check([1000], flops=2000, gemm_gflops=1.0)  # 667 ns at three times the peak
    with pytest.raises(IntegrityError, match="is faster than this machine"):
        physical_floor.check([600], flops=2000, gemm_gflops=1.0)
