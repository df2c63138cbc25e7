"""DuoAttention against a loop over tokens and heads, by hand, and by its patterns."""

from dataclasses import replace

import pytest
import torch

from methods.duo_attention import DuoAttention
from tests.methods.decoder import check_reads, chosen, decoded, inputs, stored, workload

ROLLING = DuoAttention(sinks=2, recent=5)


def test_it_holds_what_the_share_says():
    """n = 1,536, s = .5: 1 - .5 (1 - 384 / 1,536) = .625."""
    qkv = [x.float() for x in inputs(1536)]
    cache, _ = decoded(DuoAttention(), *qkv, 1536, work=workload(1536))
    assert stored(cache) - 2 * 8 == 0.625 * 2 * 2 * 1536 * 8 * 4
    assert [run.size for run in cache.layers[0].runs] in ([384, 1536], [1536, 384])


@pytest.mark.parametrize("prompt", [4, 6, 7, 8, 20])
def test_equals_its_twin(prompt):
    n, streams = 32, [False, True]
    query, key, value = inputs(n)
    method = replace(ROLLING, pattern="1 0; 0 0")
    for layer, heads in ((0, streams), (1, [False, False])):
        method = replace(method, pattern="1 0; 1 1", share=0.25)
        cache, outputs = decoded(method, query, key, value, prompt, layer=layer)
        for at in range(prompt, n):
            near = [i for i in range(at + 1) if i < 2 or i > at - 5]
            for head, rolls in enumerate(heads):
                seen = near if rolls else range(at + 1)
                check_reads(outputs, query, key, value, at, head, seen)
        held = [sorted(head) for head in chosen(cache, key, layer)[0]]
        rolled = [0, 1, *range(n - 5, n)]
        assert held == [rolled if rolls else [*range(n)] for rolls in heads]


def test_each_row_rolls_from_its_own_length():
    valid = torch.arange(30) >= torch.tensor([[0], [18]])
    qkv = inputs(30, 2)
    cache, _ = decoded(replace(ROLLING, pattern="0 1; 0 1"), *qkv, 21, valid=valid)
    rows = chosen(cache, qkv[1])
    assert [sorted(row[0]) for row in rows] == [
        [0, 1, *range(25, 30)], [18, 19, *range(25, 30)],
    ]  # fmt: skip
    assert [row[1] for row in rows] == [[*range(30)], [*range(18, 30)]]


def test_without_a_pattern_heads_that_read_near_stream():
    """In each row, the head whose last queries like the last keys."""
    query, key, value = inputs(40, 2)
    near, far = torch.zeros(8).double(), torch.zeros(8).double()
    near[0] = far[1] = 9
    query[:], key[:] = (near + far) / 3, 0.01 * key
    for row, head in ((0, 1), (1, 0)):
        key[row, head, -4:] += near
        key[row, 1 - head, 10:14] += far
    cache, _ = decoded(replace(ROLLING, observed=4), query, key, value, 40)
    assert [[len(head) for head in row] for row in chosen(cache, key)] == [[40, 7], [7, 40]]


def test_layers_share_an_odd_number_of_heads():
    """Half of three heads a layer: two, one, two, one."""
    work = workload(layers=4, key_heads=3)
    assert [DuoAttention()._count(work, layer) for layer in range(4)] == [2, 1, 2, 1]
    assert [DuoAttention(share=1.0)._count(work, layer) for layer in range(4)] == [3] * 4
    assert not any(DuoAttention(share=0.0)._count(work, layer) for layer in range(4))


def test_a_pattern_is_a_file_or_the_table_itself(tmp_path):
    """The lowest numbers of all layers stream, equal ones in their order."""
    file = tmp_path / "full_attention_heads.tsv"
    file.write_text("1.000e+00\t9.5e-01\n-9.58e-05\t2.0e-04\n0.5\t0.5\n")
    work = workload(layers=3)
    for pattern in (str(file), "1 .95; -9.58e-5 2e-4; .5 .5", "1,.95;0,1e-3;.5,.5"):
        half = DuoAttention(pattern=pattern)
        assert half.unsupported(work) is None
        assert half._by_pattern(work) == [[False, False], [True, True], [True, False]]
        assert [half.keeps_all(replace(work, length=999), i) for i in range(3)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("1 0; 0 1; 1 1", "2 lines of 2 numbers"),
        ("1 0 1; 0 1 1", "2 lines of 2 numbers"),
        ("no/such.tsv", "No such file"),
        ("1 0; 0 e", "could not convert"),
        ("", "No such file|Is a directory"),
    ],
)
def test_another_pattern_is_refused(pattern, reason):
    found = DuoAttention(pattern=pattern).unsupported(workload())
    assert found.startswith(f"pattern={pattern}: ")
    assert any(part in found for part in reason.split("|"))


def test_numbers_of_a_file_are_finite(tmp_path):
    file = tmp_path / "nan.tsv"
    file.write_text("1\tnan\n0\t1\n")
    assert "finite" in DuoAttention(pattern=str(file)).unsupported(workload())
