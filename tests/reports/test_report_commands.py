"""Common behaviour of `bench leaderboard`, `plot` and `report`: rows that are set aside, and files
that they don't overwrite. Their wrong requests: tests/cli/snapshots/refused_reports.txt."""

import pytest

from bench.rows import columns
from tests.reports.leaderboard.pages import small, stored

COMMANDS = {
    "leaderboard": ("page.html", "page.html"),
    "plot pareto_latency --format png": ("", "pareto_latency.png"),
    "report vcc_table2 --format md,csv": ("", "cells.csv"),
}
"""Words of a command → what it writes to in a folder, and a file that it writes."""


@pytest.fixture
def rows(tmp_path):
    return stored(tmp_path / "rows", small())


@pytest.mark.parametrize("words", COMMANDS)
def test_torn_and_newer_files_of_rows_are_named_and_set_aside(
    command, rows, tmp_path, monkeypatch, words
):
    (rows / "rows-torn.parquet").write_bytes(b"PAR1 no more")
    monkeypatch.setattr(columns, "SCHEMA_VERSION", 9)
    stored(rows, small(methods=("vcc",)))
    monkeypatch.undo()
    out = tmp_path / "out" / COMMANDS[words][0]
    code, _, error = command(*words.split(), "--results", rows, "--out", out)
    assert code == 0 and (tmp_path / "out" / COMMANDS[words][1]).exists()
    told = [line for line in error.splitlines() if line.startswith("bench: set aside")]
    assert any("rows-torn.parquet" in line and "torn" in line for line in told)
    assert any("schema 9" in line and "update longctx-bench" in line for line in told)


@pytest.mark.parametrize("words", COMMANDS)
def test_files_of_others_are_left_as_they_are(command, refused, rows, tmp_path, words):
    place, name = COMMANDS[words]
    asked = (*words.split(), "--results", rows, "--out", tmp_path / "out" / place)
    assert [command(*asked)[0] for _ in range(2)] == [0, 0], "its own are written anew"
    (tmp_path / "out" / name).write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    assert f"{name} holds what bench didn't write" in refused(*asked)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("words", COMMANDS)
def test_a_place_that_cannot_be_written_is_one_line(refused, rows, tmp_path, words):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "page.html"
    assert "cannot write to" in refused(*words.split(), "--results", rows, "--out", out)
