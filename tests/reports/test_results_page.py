"""docs/results.md is generated from the rows that it is given."""

import re

from bench.request import compose
from bench.rows.store import Store
from reports import results_page
from tests.conftest import ROOT
from tests.reports import made

CHOICE = re.compile("<!-- choice -->\n(.*?)<!-- end of choice -->", re.S)


def lines_of(text):
    """The lines of the tables of a page."""
    return [re.sub(" +", " ", line) for line in text.splitlines() if line.startswith("|")]


def page(folder, name="results.md"):
    return results_page.pages(folder)[name]


def test_the_stored_pages_are_those_of_the_reference_rows():
    made_now = results_page.pages()
    stored = {name: (results_page.PAGE.parent / name).read_text() for name in made_now}
    assert stored == made_now
    assert len(stored["results.md"].split()) <= 2500


def test_readme_quotes_the_choices_of_the_page():
    quoted, page = ((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
    assert CHOICE.findall(quoted) == CHOICE.findall(page) != []


def test_readme_shows_a_stored_row():
    text = results_page.README.read_text()
    page = results_page.PAGE.read_text()
    assert results_page.readme(text, page) == text
    command = compose.compose([])
    given = dict(word.split("=") for word in results_page.SHOWCASE)
    assert given["method"] == command["method"]["name"] and given["task"] == command["task"]["name"]


def test_the_page_has_five_questions_and_says_where_no_row_is(tmp_path):
    found = results_page.pages(tmp_path)
    headings = re.findall(r"^## (.*)$", found["results.md"], re.M)
    assert len(headings) == 5 and all(heading.endswith("?") for heading in headings)
    assert found["results.md"].count("No row yet.") == 2
    for name, text in found.items():
        assert name == "results.md" or ("No row yet." in text and "|" not in text), name
        assert re.search(r"^    (bench|make) ", text, re.M), name


def test_the_frontier_says_how_far_each_method_goes(tmp_path):
    kinds = (("hub", "finetuned"),)
    plain, row = made.rows(tasks=("narrativeqa",), lengths=(512,), devices=("cpu",), kinds=kinds,
                           methods=("vanilla", "vcc"))  # fmt: skip
    cells = [
        plain | {"lat_median_ns": 1_234_000_000, "length": 512},
        row | {"lat_ratio": 0.5, "lat_verdict": "faster", "mem_ratio": 1.25, "length": 512,
               "engine_kernel": "native avx512 float32", "engine_ratio": 1.001,
               "engine_verdict": "same"},
        row | {"lat_ratio": None, "baseline_status": "oom_host", "lat_median_ns": 9_000_000,
               "length": 2048},
        plain | {"status": "oom_host", "length": 2048},
        plain | {"status": "timeout", "length": 8192},
        row | {"status": "skipped", "length": 8192},
        row | {"lat_ratio": 0.1, "lat_verdict": "faster", "mem_ratio": 1.0, "engine_kernel": None,
               "lat_base_median_ns": 7_000_000_000, "length": 32768,
               "engine_verdict": "faster"},
        plain | {"status": "skipped", "length": 32768},
        row | {"status": "skipped", "length": 131072},
    ]  # fmt: skip
    more = [{"row_id": f"r{i}", "cell_key": f"c{i}", "experiment": "frontier"} for i in range(9)]
    Store(tmp_path).append(cell | own for cell, own in zip(cells, more, strict=True))
    lines = lines_of(page(tmp_path, "results/length.md"))
    assert lines[0] == "| method | 512 tokens | 2,048 tokens | 8,192 tokens | 32,768 tokens |"
    assert lines[2:] == [
        "| vanilla | 1,234 ms | out of memory | out of time | 7,000 ms |",
        "| vcc | ×0.50 faster by its engine only (×1.00 same on native), memory ×1.25 "
        "| 9 ms, vanilla out of memory | not measured | ×0.10 faster, memory ×1.00 |",
    ]
