"""Longformer against dense attention under its mask, by hand, and with second projections."""

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.longformer.longformer import Longformer
from tests.methods.hand import masked, slope
from tests.methods.input_a import A, Identity, call, close, drawn, inputs

CAUSAL = SequenceInfo(causal=True)


def twin(method, local, second, call_):
    """Dense attention under the mask, row by row on valid tokens."""
    sequence, output = call_.sequence, torch.zeros_like(local[0])
    for row in range(len(output)):
        n = output.shape[2]
        valid = torch.ones(n, dtype=torch.bool) if sequence.valid is None else sequence.valid[row]
        kept = valid.nonzero()[:, 0]
        at = torch.arange(len(kept))
        distance = at - at[:, None]
        mask = distance.abs() <= method.window // 2
        chosen = torch.zeros(len(kept), dtype=torch.bool)
        if sequence.causal:
            mask &= distance <= 0
        elif method.global_tokens != "none":
            chosen[:1] = True
            if method.global_tokens == "vip" and sequence.vip is not None:
                chosen |= sequence.vip[row, kept]
        mask = mask | chosen | chosen[:, None]
        counts = sequence.log_multiplicity
        counts = None if counts is None else counts[row : row + 1, kept]
        own = SequenceInfo(kept[None], log_multiplicity=counts)
        one = AttentionCall(own, call_.scale, 0, call_.bias)
        read, again = (
            masked(*(x[row : row + 1, :, kept] for x in parts), one, mask)[0]
            for parts in (local, second)
        )
        output[row, :, kept] = torch.where(chosen[:, None], again, read)
    return output


def test_the_window_and_a_global_token_by_hand():
    method = Longformer(2, "first", "shared")
    close(method.attend(*A, call()), 1.969464, 2.729600, 2.5, 1.383684)


def test_the_causal_window_by_hand():
    method = Longformer(2, "none")
    close(method.attend(*A, call(sequence=CAUSAL)), 1.0, 1.268941, 2.5, 3.880797)


@pytest.mark.parametrize("biased", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("chosen", ["vip", "first", "none"])
@pytest.mark.parametrize("window", [6, 64])
def test_equals_its_twin(window, chosen, biased):
    n, method = 41, Longformer(window, chosen, "shared")
    valid = torch.arange(n)[None] % torch.tensor([[99], [5], [2]]) != 1
    counts = torch.arange(1.0, 3 * n + 1, dtype=torch.float64).view(3, n).log()
    vip = torch.arange(n).expand(3, -1) % torch.tensor([[7], [11], [60]]) == 4
    sequence = SequenceInfo(valid=valid, vip=vip, log_multiplicity=counts)
    one = call({}, sequence, 0.4, bias=slope() if biased else None)
    tensors = inputs(n, 3)
    output = method.attend(*tensors, one).masked_fill(~valid[:, None, :, None], 0)
    torch.testing.assert_close(output, twin(method, tensors, tensors, one))


def test_a_causal_model_has_the_window_alone():
    method, tensors = Longformer(6), inputs(29)
    one = call(sequence=CAUSAL)
    torch.testing.assert_close(method.attend(*tensors, one), twin(method, tensors, tensors, one))


def test_global_tokens_read_through_second_projections():
    method, hidden = Longformer(4, "first"), torch.randn(2, 13, 4, dtype=torch.float64)
    own = drawn(method, 1, 4, hidden=4)
    local = [hidden[:, None]] * 3
    second = [
        (hidden @ own[f"{name}_weight"].T + own[f"{name}_bias"])[:, None]
        for name in ("query", "key", "value")
    ]
    output = method.mix(hidden, Identity(), call(own))
    torch.testing.assert_close(output, twin(method, local, second, call(own))[:, 0])
