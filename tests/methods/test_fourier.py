"""The Fourier Transformer against its formulas written out as matrices, and by hand."""

import importlib
import importlib.util
import math

import pytest
import torch
from torch.nn.functional import layer_norm

from methods.base import AttentionCall, Method, SequenceInfo, Unsupported
from methods.fourier import dct as transform
from methods.fourier.dct import dct, idct, resample
from methods.fourier.filter import SpectralFilter
from methods.fourier.fourier import Fourier
from methods.parts.attention import exact_attention
from tests.methods.hand import Slope

D, HEADS = 6, 2
EXACT = {"rtol": 1e-9, "atol": 1e-9}
LENGTHS = (1, 2, 3, 5, 7, 16, 31, 45)
BIAS = Slope(torch.full((HEADS,), 0.05, dtype=torch.float64))
"""So that wrong positions show."""


def numbers(*shape, seed=0):
    make = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=make, dtype=torch.float64)


def matrix(n):
    """Eq. 1-2: the DCT as an orthonormal matrix [n, n]."""
    k = torch.arange(n, dtype=torch.float64)
    cosines = torch.cos(math.pi * k[:, None] * (2 * k + 1) / (2 * n)) * math.sqrt(2 / n)
    cosines[0] /= math.sqrt(2)
    return cosines


def filter_of(n, m):
    """[m, n]: DCT, truncation or zeros, inverse DCT."""
    kept = min(n, m)
    return matrix(m)[:kept].T @ matrix(n)[:kept]


class Toy:
    """A pre-norm layer in float64, which may be entered behind its norm."""

    def __init__(self, seed):
        make = torch.Generator().manual_seed(seed)
        self.weights = [
            torch.randn(D, D, generator=make, dtype=torch.float64).div(2).requires_grad_()
            for _ in range(3)
        ]
        self.seen = []

    def __call__(self, hidden, sequence):
        self.seen.append(hidden.shape[1])
        return hidden + self.attention(self.normed(hidden), sequence)

    def normed(self, hidden):
        return layer_norm(hidden, (D,))

    def from_normed(self, normed, sequence):
        return normed + self.attention(normed, sequence)

    def attention(self, x, sequence):
        query, key = ((x @ w).unflatten(2, (HEADS, -1)).transpose(1, 2) for w in self.weights[:2])
        value = x.unflatten(2, (HEADS, -1)).transpose(1, 2)
        read = exact_attention(query, key, value, AttentionCall(sequence, 0.5, 0, BIAS))
        return read.transpose(1, 2).flatten(2) @ self.weights[2]


def twin(method, layers, hidden, places=None):
    """One row without padding, [n, D] → [n, D]: filters and upsampling as matrices."""
    cls = int(method.pooling == "cls")
    n = len(hidden)
    whole = torch.eye(n, dtype=torch.float64)
    up = whole  # [n, length now]
    places = torch.arange(n) if places is None else places
    total = torch.zeros(n, D, dtype=torch.float64)
    filters = [int(i) for i in str(method.layers).split(",")]
    for index, layer in enumerate(layers):
        if index in filters:
            total = total + up @ hidden
            length = len(hidden)
            kept = min(length - cls, math.ceil(method.r * length - 1e-9))
            spectral = torch.eye(cls + kept, length, dtype=torch.float64)
            if length > cls:
                spectral[cls:, cls:] = filter_of(length - cls, kept)
                spectral[:cls, cls:] = spectral[cls:, :cls] = 0
                if method.rescale:
                    spectral[cls:, cls:] *= math.sqrt(kept / (length - cls))
                middle = (torch.arange(kept) + 0.5) * (length - cls) / kept
                places = torch.cat((places[:cls], places[cls:][middle.long()]))
            up = torch.zeros(n, cls + kept, dtype=torch.float64)
            up[:cls, :cls] = torch.eye(cls)
            for token in range(n - cls):
                up[cls + token, cls + token * kept // (n - cls)] = 1
            if method.residual == "normed":
                hidden = spectral @ layer.normed(hidden)
                hidden = layer.from_normed(hidden[None], SequenceInfo(places[None]))[0]
                continue
            hidden = spectral @ hidden
        hidden = layer(hidden[None], SequenceInfo(places[None]))[0]
    return up @ hidden + (total if method.global_residual else 0)


@pytest.fixture(params=["matrix", "fft"])
def form(request, monkeypatch):
    if request.param == "fft":
        monkeypatch.setattr(transform, "MATRIX", 0)


@pytest.mark.parametrize("n", LENGTHS)
def test_dct_is_its_matrix_and_scipys(n, form):
    scipy = importlib.util.find_spec("scipy") and importlib.import_module("scipy.fft")
    for columns in (1, 4, 5):
        x = numbers(2, n, columns)
        expected = matrix(n) @ x
        if scipy:
            theirs = torch.from_numpy(scipy.dct(x.numpy(), axis=1, norm="ortho"))
            torch.testing.assert_close(theirs, expected, **EXACT)
        torch.testing.assert_close(dct(x, n), expected, **EXACT)
        torch.testing.assert_close(dct(x, (n + 1) // 2), expected[:, : (n + 1) // 2], **EXACT)
        torch.testing.assert_close(idct(expected, n), x, **EXACT)
        single = dct(x.float(), n)
        torch.testing.assert_close(single.double(), expected, rtol=1e-5, atol=1e-5)


def test_filter_is_its_matrix(form):
    for n in LENGTHS:
        x = numbers(2, n, 3)
        assert resample(x, n) is x
        for m in {1, (n + 1) // 2, n + 1, 2 * n}:
            torch.testing.assert_close(resample(x, m), filter_of(n, m) @ x, **EXACT)
            assert resample(x.bfloat16(), m).dtype == torch.bfloat16
            flat = resample(torch.full((1, n, 1), 3.0), m)  # a constant grows by √(N/L)
            torch.testing.assert_close(flat, torch.full((1, m, 1), 3 * math.sqrt(n / m)))


def test_wide_inputs_are_filtered_in_parts(monkeypatch):
    monkeypatch.setattr(transform, "MATRIX", 0)
    x = numbers(2, 9, 2 * transform.COLUMNS + 3)
    torch.testing.assert_close(resample(x, 4), filter_of(9, 4) @ x, **EXACT)


def test_filter_has_its_gradients(form):
    for n, m in ((7, 3), (4, 4), (3, 8)):
        x = numbers(1, n, 3).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, m=m: resample(x, m), x)
        assert torch.autograd.gradgradcheck(lambda x, m=m: resample(x, m) ** 2, x)


def test_filter_by_hand():
    x = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)[None, :, None]
    four = torch.tensor([5, -2.230442, 0, -0.158513], dtype=torch.float64)
    two = torch.tensor([1.958373, 5.112694], dtype=torch.float64)
    torch.testing.assert_close(dct(x, 4)[0, :, 0], four, rtol=0, atol=1e-6)
    torch.testing.assert_close(resample(x, 2)[0, :, 0], two, rtol=0, atol=1e-6)
    assert resample(x, 2).mean().item() * math.sqrt(0.5) == pytest.approx(2.5)
    assert resample(x[:, [0, 2]], 1).item() == pytest.approx(2.828427)
    method = Fourier(r=0.5, upsample=False, rescale=True)
    hidden, _ = method.encode_shorter([lambda hidden, sequence: hidden], x, SequenceInfo())
    assert hidden.flatten().tolist() == pytest.approx([1.3848, 3.6152], abs=1e-4)


def test_lengths():
    cls, mean = SpectralFilter(0.2, 1, False), SpectralFilter(0.2, 0, False)
    assert [cls.kept(n) for n in (64, 5, 2048, 1, 0)] == [14, 2, 411, 1, 0]
    assert [mean.kept(n) for n in (64, 1, 0)] == [13, 1, 0]
    assert SpectralFilter(0.07, 0, False).kept(100) == 7 < math.ceil(0.07 * 100)  # official
    assert SpectralFilter(1.0, 1, False).kept(9) == 9


METHODS = {
    "first": Fourier(),
    "two filters": Fourier(layers="1,2", r=0.6),
    "cls": Fourier(layers=1, r=0.4, pooling="cls"),
    "two filters, cls": Fourier(layers="0,2", r=0.5, pooling="cls"),
    "rescaled": Fourier(layers=1, r=0.5, rescale=True, global_residual=False),
    "normed": Fourier(layers="0,2", r=0.5, residual="normed"),
}


def batch(n, side):
    hidden = numbers(4, n, D)
    lengths = torch.tensor([n, n - 6, 1, n - 6])[:, None]
    valid = torch.arange(n)[None] < lengths
    valid = {"right": valid, "left": valid.flip(1), "none": torch.ones_like(valid)}[side]
    return hidden.masked_fill(~valid[..., None], 1e6), SequenceInfo(valid=valid)


@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", METHODS)
def test_rows_equal_the_twin_alone(name, side):
    method, layers = METHODS[name], [Toy(i) for i in range(3)]
    for n in (19, 24):
        hidden, sequence = batch(n, side)
        output = method.encode(layers, hidden, sequence)
        for row, valid in enumerate(sequence.valid):
            places = valid.nonzero()[:, 0]
            expected = twin(method, layers, hidden[row, valid], places)
            torch.testing.assert_close(output[row, valid], expected, **EXACT)
            assert output[row, ~valid].eq(0).all()


def test_shorter_states_come_with_what_is_known_of_them():
    layers = [Toy(0), Toy(1)]
    method = Fourier(layers=1, r=0.25, upsample=False)
    hidden, sequence = batch(20, "left")
    short, known = method.encode_shorter(layers, hidden, sequence)
    assert short.shape == (4, 5, D) and [layer.seen for layer in layers] == [[20], [5]]
    assert known.valid.sum(1).tolist() == [5, 4, 1, 4]
    assert known.positions[0].tolist() == [2, 6, 10, 14, 18]
    long, same = Fourier(layers=1, r=0.25, global_residual=False).encode_shorter(
        layers, hidden, sequence
    )
    assert same is sequence
    torch.testing.assert_close(long[0], short[0].repeat_interleave(4, 0))
    plain, same = Method().encode_shorter(layers, hidden, sequence)
    assert same is sequence and plain.shape == hidden.shape
    with pytest.raises(Unsupported, match="upsample"):
        method.encode(layers, hidden, sequence)


def test_what_cant_be_done_is_said_in_words():
    for method, sequence, words in (
        (Fourier(), SequenceInfo(causal=True), "causal"),
        (Fourier(layers=1), SequenceInfo(), "layers has 1"),
        (Fourier(residual="normed"), SequenceInfo(), "first norm"),
    ):
        with pytest.raises(Unsupported, match=words):
            method.encode([lambda hidden, sequence: hidden], numbers(1, 4, D), sequence)
