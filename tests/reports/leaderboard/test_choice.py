"""The choices: which boards come first, unranked rows, vanilla everywhere."""

import re

import pytest

from reports import ratios
from tests.reports.leaderboard.pages import (
    ONE,
    Tags,
    boards,
    data_of,
    decoded_rows,
    small,
    stored,
    written,
)

TURNED = "vcc\u202eevil\u2066\u200b"


def test_vanilla_is_on_a_board_without_its_row_as_it_was_measured_beside_others(tmp_path):
    rows = [row for row in small(**ONE) if row["method"] != "vanilla"]
    [board] = boards(stored(tmp_path, rows))
    baseline = board.baseline.row
    beside = next(row for row in rows if row["status"] == "ok")
    assert (baseline["method"], baseline["value"]) == ("vanilla", beside["base_value"])
    assert baseline["lat_median_ns"] in {row.get("lat_base_median_ns") for row in rows}
    text = written(tmp_path, tmp_path / "p.html")
    assert f"<tr><td>vanilla<td>{beside['base_value']:.1f}" in text
    [data] = data_of(text)["boards"]
    assert data["vanilla"]["value"] == beside["base_value"] and "command" not in data["vanilla"]
    [full] = boards(stored(tmp_path / "full", small(**ONE)))
    assert full.baseline is None


def test_a_decoders_boards_have_its_ratios(tmp_path):
    text = written(stored(tmp_path / "r", decoded_rows()), tmp_path / "p.html")
    columns = data_of(text)["rows"]
    assert sorted(columns["tpot"], key=str) == [0.6, 0.8, None] and 64 in columns["heldMib"]
    assert "tpot" not in data_of(written(stored(tmp_path / "o", small()), tmp_path / "o.h"))["rows"]


def test_names_cannot_turn_the_writing_direction(tmp_path):
    [row] = small(methods=("vcc",), **ONE)
    names = ("method", "task", "model", "benchmark", "cpu_model", "status_detail", "host_id")
    row |= dict.fromkeys(names, TURNED) | {"status": "error"}
    text = written(stored(tmp_path / "r", [row]), tmp_path / "p.html")
    data = data_of(text)
    for where in (text, str(data)):
        assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b-\u200f]", where)
    assert data["rows"]["method"] == ["vcc\\u202eevil\\u2066\\u200b"]
    assert "vcc\\u202eevil" in " ".join(Tags(text).texts)


def test_the_processor_and_the_systems_kernel_are_in_sight(tmp_path):
    page = written(stored(tmp_path / "r", small(devices=("cpu", "h200"))), tmp_path / "p.html")
    words = " ".join(" ".join(Tags(page).texts).split())
    assert "h2-a3f0c1d2 AMD EPYC 9454P, 2 cores, virtual machine, Linux 6.1.0, torch" in words
    assert "NVIDIA H200, Intel Xeon 8480C, 16 cores, container, Linux 6.8.0" in words


def test_methods_of_this_installation_link_to_their_papers_and_no_others(tmp_path):
    page = written(stored(tmp_path / "r", small(**ONE)), tmp_path / "p.html")
    assert '<a href="https://arxiv.org/abs/2305.04241" rel="noopener noreferrer">' in page
    assert data_of(page)["papers"]["vcc"]["paper"] == "2305.04241"
    assert "longnet_plugin" not in data_of(page)["papers"]


@pytest.mark.parametrize(
    ("ratio", "pairs", "text"),
    [(124.811, None, "125"), (124.811, 1, "120 (1 pair)"), (3.609, 3, "3.6 (3 pairs)"),
     (0.4927, 40, "0.493"), (1.125, 40, "1.13"), (0.9996, 40, "1.00"), (12_345.6, 40, "12300"),
     (0.0, 40, "0")],
)  # fmt: skip
def test_ratios_have_no_more_figures_than_their_pairs_give(ratio, pairs, text):
    assert ratios.rounded(ratio, pairs) == text


def test_every_machine_is_listed_with_its_vectors(tmp_path):
    rows = []
    for i, sets in enumerate(["avx avx2", "avx2 avx512f", None, "asimd", "sse2"]):
        host = {"host_id": f"h2-{f'{i}' * 16}", "instruction_sets": sets}
        for row in small(methods=("vanilla", "vcc"), **ONE):
            rows.append(row | host | {"row_id": f"{i}{row['row_id']}"})
    text = written(stored(tmp_path / "r", rows), tmp_path / "p.html")
    words = " ".join(" ".join(Tags(text).texts).split())
    assert all(f"h2-{f'{i}' * 8} AMD EPYC 9454P" in words for i in range(5))
    assert "AMD EPYC 9454P · AVX2, host" in words and "AMD EPYC 9454P · AVX-512, host" in words
