"""XAttention against dense attention under its mask, written out tile by tile, and by hand."""

from dataclasses import replace

import pytest
import torch

from methods.base import AttentionCall, SequenceInfo
from methods.parts.sparse_prefill import fewest_covering
from methods.vanilla import Vanilla
from methods.xattention import XAttention, first_chunk
from tests.methods.native import native
from tests.methods.prefill import by_token, check_kernels, check_twin, inputs

CALL = AttentionCall(SequenceInfo(causal=True), 0.4, 0)
SMALL = XAttention(block=8, stride=4, threshold=0.6)


def block_weights(method, query, key, scale):
    """The estimate for one head, as sums over antidiagonals of scores."""
    n, s, b = len(key), method.stride, method.block
    tiles, blocks = -(-n // s), -(-n // b)
    scores = torch.zeros(tiles * s, tiles * s, dtype=key.dtype)
    scores[:n, :n] = query @ key.T * scale
    sums = torch.full((tiles, tiles), -torch.inf, dtype=key.dtype)
    for a in range(tiles):
        for c in range(a + 1):
            tile = scores[a * s : a * s + s, c * s : c * s + s]
            sums[a, c] = tile.flip(0).diagonal().sum() / s
    weights = torch.zeros(blocks, blocks, dtype=key.dtype)
    for a, row in enumerate(sums.softmax(-1)):
        for c, weight in enumerate(row):
            weights[a * s // b, c * s // b] += weight
    return weights


def chosen(method, query, key, scale, quirk=False):
    """[blocks, blocks]. `quirk`: as the official `find_blocks_chunked` has it in its first chunk,
    whose sums start a place too late, and whose other places all name the first block."""
    weights = block_weights(method, query, key, scale)
    result = torch.eye(len(weights), dtype=torch.bool)
    result[:, 0] = True
    if quirk:
        for i, row in enumerate(weights):
            others = [j for j in row.argsort(descending=True).tolist() if j != i]
            sums = [0.0, 0.0, float(row[i])]
            for j in others:
                sums.append(sums[-1] + float(row[j]))
            for j, before in zip([i, *others], sums, strict=False):
                if before < method.threshold * float(row.sum()) and j <= i:
                    result[i, j] = True
        return result
    for i, row in enumerate(weights):
        for j in row.argsort(descending=True).tolist():
            if row[result[i]].sum() < method.threshold * row.sum() and j <= i:
                result[i, j] = True
    return result


@pytest.mark.parametrize("method", [SMALL, replace(SMALL, stride=2, threshold=0.9)], ids=str)
def test_equals_its_twin(method):
    def seen(query, key, scale):
        return by_token(chosen(method, query, key, scale), len(key))

    check_twin(method, seen, lengths=(1, 2, 53, 64))


@pytest.mark.parametrize("start", [16, 2048])
def test_the_official_first_chunk_reads_one_block_more(start, monkeypatch):
    """As the official code, written out; the queries after the first chunk read what they would."""
    monkeypatch.setattr("methods.xattention.first_chunk", lambda n: start)

    def seen(query, key, scale):
        if len(key) <= 16:
            return torch.ones(len(key), len(key)).tril() > 0
        blocks = chosen(SMALL, query, key, scale, quirk=True)
        blocks[start // 8 :] = chosen(SMALL, query, key, scale)[start // 8 :]
        return by_token(blocks, len(key))

    check_twin(replace(SMALL, chunk_quirk=True), seen, lengths=(2, 53, 64))


def test_a_first_chunk_has_all_of_16_384_tokens():
    chunks = [first_chunk(n) for n in (100, 2500, 16384, 16385, 1 << 17)]
    assert chunks == [2048, 4096, 16384, 8192, 2048]


def test_estimates_some_rows_at_a_time(monkeypatch):
    query, key, _ = (x[0] for x in inputs(101))
    whole = SMALL.block_weights(query[:2], key[0], 0.4)
    monkeypatch.setattr("methods.xattention.TILES", 1)
    torch.testing.assert_close(SMALL.block_weights(query[:2], key[0], 0.4), whole)


@native
@pytest.mark.parametrize("block", [64, 128])
def test_native_kernel_agrees(block):
    check_kernels(XAttention(block=block, stride=8, threshold=0.5), n=700)


def test_by_hand():
    """The first block and the own one, the last, hold .35 of all: .8 takes one more, .9 two."""
    weights = torch.tensor([0.05, 0.50, 0.15, 0.30])
    forced = torch.tensor([True, False, False, True])
    assert fewest_covering(weights, 0.8, forced).tolist() == [True, True, False, True]
    assert fewest_covering(weights, 0.9, forced).all()


def test_above_one_all_is_read():
    parts = inputs(61)
    exact = Vanilla().attend(*parts, CALL)
    torch.testing.assert_close(replace(SMALL, threshold=2.0).attend(*parts, CALL), exact)
    assert not torch.allclose(SMALL.attend(*parts, CALL), exact)
