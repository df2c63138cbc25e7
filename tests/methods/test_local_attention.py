"""Local attention against dense attention under its mask, and by hand."""

import pytest
import torch

from methods.local_attention import LocalAttention
from tests.methods.hand import A, check_rows, masked, read, slope


def twin(method):
    def attend(query, key, value, call):
        place = torch.arange(query.shape[2])
        blocks = -(-len(place) // method.b)
        block = place // method.b if method.layout == "contiguous" else place % blocks
        return masked(query, key, value, call, block[:, None] == block[None])

    return attend


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_equals_its_twin(layout, biased):
    method = LocalAttention(8, layout)
    for n in (53, 64):
        check_rows(method, twin(method), n, counted=n == 64, bias=slope() if biased else None)


def test_by_hand():
    assert read(LocalAttention(2), *A) == pytest.approx(
        [1.731059, 1.268941, 3.5, 3.880797], abs=1e-6
    )
    strided = [1.238406, 3.761594, 2.0, 2.035972]
    assert read(LocalAttention(2, "strided"), *A) == pytest.approx(strided, abs=1e-6)
