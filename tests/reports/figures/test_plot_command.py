"""bench plot: its files, and its errors."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.cli.main import dispatch, main
from reports.figures.catalogue import figures
from tests.reports.figures.made_rows import STUDIES, failed, frontier, measured, store


def run(capsys, *words):
    """(exit code, what went to standard error) of `bench plot`."""
    with pytest.raises(SystemExit) as ended:
        main(["plot", *map(str, words)])
    return ended.value.code, capsys.readouterr().err


def test_wrong_requests_are_one_line_each(made, tmp_path, capsys):
    empty = tmp_path / "empty"
    empty.mkdir()
    for words, said in (
        (["--results", empty], f"no rows in {empty}; make some: bench run -m method"),
        (["--results", tmp_path / "gone"], f"no folder {tmp_path / 'gone'}; make some: bench run"),
        (["pareto_latncy", "--results", made], "Did you mean pareto_latency?"),
        (["--results", made, "--format", "gif"], "unknown format 'gif'"),
        (["--results", made, "--panels", "0"], "--panels"),
        (["--results", made, "mehtod=vcc"], "Did you mean 'method'?"),
        (["--results", made, "method=vxx"], "vcc"),
    ):  # fmt: skip
        code, error = run(capsys, *words, "--out", tmp_path / "out")
        assert code == 2, words
        assert said in error and error.count("\n") == 1, error


def test_a_figure_that_fails_is_named_and_the_others_are_drawn(made, tmp_path, capsys, monkeypatch):
    def fail(rows, most):
        raise TypeError("'<' not supported")

    known = {name: figures()[name] for name in ("fidelity_speed", "iso_cost", "pareto_tpot")}
    monkeypatch.setitem(known, "fidelity_speed", known["fidelity_speed"]._replace(draw=fail))
    monkeypatch.setattr("reports.figures.command.figures", lambda: known)
    code, error = run(capsys, "--results", made, "--out", tmp_path, "--format", "svg")
    assert code == 1
    assert "fidelity_speed: TypeError: '<' not supported" in error
    assert len(list(tmp_path.glob("*.svg"))) == len(known) - 1


def test_all_formats_are_whole_and_the_same_each_time(made, tmp_path, capsys):
    for folder in ("a", "b"):
        words = ["pareto_latency", "task=narrativeqa", "length=512", "--results", str(made)]
        words += ["--out", str(tmp_path / folder)]
        assert dispatch(["plot", *words]) == 0
    for form in ("png", "svg", "pdf"):
        first, second = (tmp_path / f / f"pareto_latency.{form}" for f in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    ElementTree.parse(tmp_path / "a" / "pareto_latency.svg")
    assert "pareto_latency.png, .svg, .pdf" in capsys.readouterr().out


def test_rows_of_one_method_say_what_is_missing(tmp_path, capsys):
    folder = store(tmp_path, [failed("vanilla", 512, "ok")])
    code, error = run(capsys, "pareto_latency", "--results", folder, "--out", tmp_path / "out")
    assert code == 2
    assert "nothing to draw: it needs two methods" in error
    code, error = run(capsys, "--results", folder, "--out", tmp_path / "out")
    assert code == 1
    assert error.count("nothing to draw") == len(figures())


def test_a_corrupt_shard_is_set_aside_and_named(tmp_path, capsys):
    folder = store(tmp_path, frontier(lengths=(512,)))
    (folder / "rows-torn.parquet").write_bytes(b"PAR1 not a shard")
    words = ("pareto_latency", "--results", folder, "--out", tmp_path / "out", "--format", "png")
    code, error = run(capsys, *words)
    assert code == 0
    assert "set aside" in error and "rows-torn.parquet" in error
    assert (tmp_path / "out" / "pareto_latency.png").exists()


def test_a_figure_of_others_is_left_as_it_is(tmp_path, capsys):
    folder = store(tmp_path, frontier(lengths=(512,)))
    words = ("pareto_latency", "--results", folder, "--out", tmp_path, "--format", "png")
    (tmp_path / "pareto_latency.png").write_text("mine")
    code, error = run(capsys, *words)
    assert code == 2 and "pareto_latency.png holds what bench didn't write" in error
    assert (tmp_path / "pareto_latency.png").read_text() == "mine"
    (tmp_path / "pareto_latency.png").unlink()
    assert [run(capsys, *words)[0] for _ in range(2)] == [0, 0]


def test_a_wrong_study_is_one_line(made, tmp_path, capsys):
    folder = store(tmp_path, [measured("vcc", 512)])
    (folder / "studies").mkdir()
    (folder / "studies" / "recall-1.csv").write_text("search,total_ns\ntopk,many\n")
    code, error = run(capsys, "iceformer_3", "--results", folder, "--out", tmp_path / "out")
    assert code == 2
    assert "recall-1.csv" in error and error.count("\n") == 1


def test_studies_are_drawn_where_there_are_no_rows(tmp_path, capsys):
    (tmp_path / "studies").mkdir()
    for name, text in STUDIES.items():
        (tmp_path / "studies" / f"{name}-1.csv").write_text(text)
    words = ("--results", tmp_path, "--format", "png", "--out", tmp_path / "out")
    code, error = run(capsys, "iceformer_3", *words, "fourier_1")
    assert code == 0, error
    code, error = run(capsys, *words)
    assert code == 0 and error.count("nothing to draw") == len(figures()) - 2
