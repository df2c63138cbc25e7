"""bench report ruler: its formats, and its error for a wrong request."""

import csv
import io

import pytest

from bench.rows.store import Store
from tests.reports.made_ruler import scores


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    Store(folder).append(scores({"vanilla": [90, 80], "snapkv": [85, 40]}, [1024, 2048]))
    return folder


def test_all_formats(folder, tmp_path, command):
    code, out, _ = command("report", "ruler", "--results", folder, "--out", tmp_path)
    assert code == 0 and "ruler in" in out
    for form in ("md", "tex", "html"):
        text = (tmp_path / f"ruler.{form}").read_text()
        assert "wAvg. (inc)" in text and "13 tasks" in text
    lines = list(csv.DictReader(io.StringIO((tmp_path / "ruler.csv").read_text())))
    assert len(lines) == 2 * 2 * 13 + 2 * 2
    averages = {(x["method"], x["length"]): x["score"] for x in lines if x["task"] == "average"}
    assert float(averages["vanilla", "2048"]) == pytest.approx(80)


def test_a_threshold_of_its_own(folder, command):
    code, out, _ = command("report", "ruler", "--results", folder, "--threshold", 70)
    assert code == 0 and "above 70" in out and "≥ 2,048" in out and "Llama-2" not in out


def test_without_rows_it_says_how_to_make_some(tmp_path, command):
    code, _, error = command("report", "ruler", "--results", tmp_path)
    assert code == 1 and "bench run -m experiment=ruler scale=small" in error


def test_the_list_of_reports_names_it(folder, command):
    code, out, _ = command("report", "--results", folder)
    assert code == 0 and "2 methods, 13 of 13 tasks at 1,024, 2,048 tokens" in out
