"""bench report ruler: its formats, and what it says of a wrong request."""

import csv
import io

import pytest

from bench.cli.main import main
from bench.rows.store import Store
from tests.reports.made_ruler import scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    Store(folder).append(scores({"vanilla": [90, 80], "snapkv": [85, 40]}, [1024, 2048]))
    return folder


def report(*words):
    with pytest.raises(SystemExit) as ended:
        main(["report", *map(str, words)])
    return ended.value.code


def test_all_formats(folder, tmp_path, capsys):
    assert report("ruler", "--results", folder, "--out", tmp_path) == 0
    assert "ruler in" in capsys.readouterr().out
    for form in ("md", "tex", "html"):
        text = (tmp_path / f"ruler.{form}").read_text()
        assert "wAvg. (inc)" in text and "13 tasks" in text
    lines = list(csv.DictReader(io.StringIO((tmp_path / "ruler.csv").read_text())))
    assert len(lines) == 2 * 2 * 13 + 2 * 2
    averages = {(x["method"], x["length"]): x["score"] for x in lines if x["task"] == "average"}
    assert float(averages["vanilla", "2048"]) == pytest.approx(80)


def test_a_threshold_of_its_own(folder, capsys):
    assert report("ruler", "--results", folder, "--threshold", 70) == 0
    out = capsys.readouterr().out
    assert "above 70" in out and "≥ 2,048" in out and "Llama-2" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rulr"], "Did you mean ruler?"),
        (["ruler", "--threshold", "101"], "--threshold 101 is no score; accepted: 0 to 100"),
        (["vcc_table1", "--threshold", "80"], "--threshold is one of RULER's"),
        (["ruler", "vcc_table1"], "bench report ruler alone"),
        (["ruler", "--json"], "RULER's figures are in --format csv"),
        (["ruler", "--results", "missing"], "no folder missing"),
    ],
)
def test_a_wrong_request_says_what_is_accepted(words, said, capsys):
    assert report(*words) == 2
    assert said in capsys.readouterr().err


def test_without_rows_it_says_how_to_make_some(tmp_path, capsys):
    assert report("ruler", "--results", tmp_path) == 1
    assert "bench run -m experiment=ruler scale=small" in capsys.readouterr().err


def test_the_list_of_reports_names_it(folder, capsys):
    assert report("--results", folder) == 0
    out = capsys.readouterr().out
    assert "2 methods, 13 of 13 tasks at 1,024, 2,048 tokens" in out
