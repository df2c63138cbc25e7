"""Both ratios and the kernel in the terminal's tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.terminal import row_table, rows_table, text_table
from tests import made

OWN = {
    "kernel": "native avx512 float32; torch (fewer than 256 tokens)",
    "engine_kernel": "native avx512 float32", "engine_base_median_ns": 41_000_000,
    "engine_ratio": 1.204, "engine_ratio_ci_lo": 1.19, "engine_ratio_ci_hi": 1.22,
    "engine_verdict": "slower",
}  # fmt: skip


def test_a_rows_table_has_both_ratios_its_kernel_and_the_conclusion(capsys):
    row_table.show(
        made.full(
            cell='{"model": {}, "data": {}, "task": {}, "method": {}}', **made.timing(0.5), **OWN
        ),
        Path("rows"),
    )
    lines = capsys.readouterr().out.splitlines()
    [own] = [line for line in lines if "same engine" in line]
    assert "41.0" in own and "×1.204 (1.190 … 1.220) slower" in own
    [kernel] = [line for line in lines if "avx512" in line]
    assert "native avx512 float32, torch" in kernel and "faster by its engine only" in kernel
    assert any("kernel torch (fewer than 256 tokens): native kernels" in line for line in lines)


def test_a_list_of_rows_has_both_ratios_and_the_kernel(capsys, monkeypatch):
    monkeypatch.setattr(text_table, "PIPE_WIDTH", 200)
    old, new = made.full(**made.timing(0.5)), made.full(**made.timing(0.5), **OWN)
    rows_table.show([old, new])
    head, first, second = capsys.readouterr().out.splitlines()[-3:]
    assert "same engine" in head and "kernel" in head
    assert "faster" in first and first.count("–") >= 2 and "engine only" not in first
    assert "faster by its engine only" in second and "×1.204 slower" in second
    assert "native, torch" in second


@pytest.mark.parametrize(("kept", "told"), [(None, False), (False, True)])
def test_a_row_says_that_page_faults_are_in_its_times(capsys, kept, told):
    row_table.show(made.full(**made.timing(0.5), large_memory_kept=kept), Path("rows"))
    assert ("page faults are in the times" in capsys.readouterr().out) == told


@pytest.mark.parametrize(("tokens", "told"), [(None, False), (4086, False), (3144, True)])
def test_a_row_says_that_shorter_inputs_were_timed(capsys, tokens, told):
    row = made.full(**made.timing(0.5), length=4096, timed_tokens=tokens)
    row_table.show(row, Path("rows"))
    assert ("3,144 of 4,096" in capsys.readouterr().out) == told
