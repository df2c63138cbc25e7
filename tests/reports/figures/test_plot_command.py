"""bench plot: its files, and its errors."""

from xml.etree import ElementTree

from reports.figures.catalogue import figures
from tests.reports.figures.made_rows import STUDIES, failed, measured, store


def test_a_figure_that_fails_is_named_and_the_others_are_drawn(
    made, tmp_path, command, monkeypatch
):
    def fail(rows, most):
        raise TypeError("'<' not supported")

    known = {name: figures()[name] for name in ("fidelity_speed", "iso_cost", "pareto_tpot")}
    monkeypatch.setitem(known, "fidelity_speed", known["fidelity_speed"]._replace(draw=fail))
    monkeypatch.setattr("reports.figures.command.figures", lambda: known)
    code, _, error = command("plot", "--results", made, "--out", tmp_path, "--format", "svg")
    assert code == 1
    assert "fidelity_speed: TypeError: '<' not supported" in error
    assert len(list(tmp_path.glob("*.svg"))) == len(known) - 1


def test_all_formats_are_whole_and_the_same_each_time(made, tmp_path, command):
    words = ["pareto_latency", "task=narrativeqa", "length=512", "--results", made]
    for folder in ("a", "b"):
        code, out, _ = command("plot", *words, "--out", tmp_path / folder)
        assert code == 0 and "pareto_latency.png, .svg, .pdf" in out
    for form in ("png", "svg", "pdf"):
        first, second = (tmp_path / f / f"pareto_latency.{form}" for f in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    ElementTree.parse(tmp_path / "a" / "pareto_latency.svg")


def test_rows_of_one_method_say_what_is_missing(tmp_path, command):
    folder = store(tmp_path, [failed("vanilla", 512, "ok")])
    words = ("--results", folder, "--out", tmp_path / "out")
    code, _, error = command("plot", "pareto_latency", *words)
    assert code == 2
    assert "nothing to draw: it needs two methods" in error
    code, _, error = command("plot", *words)
    assert code == 1
    assert error.count("nothing to draw") == len(figures())


def test_a_wrong_study_is_one_line(tmp_path, refused):
    folder = store(tmp_path, [measured("vcc", 512)])
    (folder / "studies").mkdir()
    (folder / "studies" / "recall-1.csv").write_text("search,total_ns\ntopk,many\n")
    words = ("--results", folder, "--out", tmp_path / "out")
    assert "recall-1.csv" in refused("plot", "iceformer_3", *words)


def test_studies_are_drawn_where_there_are_no_rows(tmp_path, command):
    (tmp_path / "studies").mkdir()
    for name, text in STUDIES.items():
        (tmp_path / "studies" / f"{name}-1.csv").write_text(text)
    words = ("--results", tmp_path, "--format", "png", "--out", tmp_path / "out")
    code, _, error = command("plot", "iceformer_3", *words, "fourier_1")
    assert code == 0, error
    code, _, error = command("plot", *words)
    assert code == 0 and error.count("nothing to draw") == len(figures()) - 2
