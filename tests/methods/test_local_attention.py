"""Local attention against dense attention under its mask, and by hand."""

import pytest
import torch

from methods.local_attention import LocalAttention
from tests.methods.hand import A, call_of, inputs, masked, padded, read, row_by_row
from tests.methods.slope import Slope


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
    bias = Slope(torch.tensor([0.1, 0.3], dtype=torch.float64)) if biased else None
    for n in (53, 64):
        counts = torch.arange(1.0, 3 * n + 1, dtype=torch.float64).view(3, n).log()
        call = call_of(0, bias, valid=padded(n), log_multiplicity=counts if n == 64 else None)
        expected = row_by_row(twin(method), *inputs(n, 3), call)
        torch.testing.assert_close(method.attend(*inputs(n, 3), call), expected)


def test_by_hand():
    assert read(LocalAttention(2), *A) == pytest.approx(
        [1.731059, 1.268941, 3.5, 3.880797], abs=1e-6
    )
    strided = [1.238406, 3.761594, 2.0, 2.035972]
    assert read(LocalAttention(2, "strided"), *A) == pytest.approx(strided, abs=1e-6)
