"""docs/results.md is generated from the rows that it is given."""

from __future__ import annotations

import json
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
        assert name == "results.md" or "No row yet." in text, name
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


def test_a_table_has_the_rows_of_one_host(tmp_path):
    rows = made.rows(tasks=("narrativeqa",), lengths=(512, 1024), devices=("cpu",),
                     kinds=(("hub", "finetuned"),), methods=("vcc",))  # fmt: skip
    asked = {"experiment": "frontier", "lat_verdict": "faster"}
    rows = [row | asked | {"lat_ratio": 0.5} for row in rows]
    far = rows[0] | {"host_id": "h2-far", "row_id": "far", "lat_ratio": 0.1}
    Store(tmp_path).append([*rows, far | {"created_utc": "2027-01-01T00:00:00+00:00"}])
    text = page(tmp_path, "results/length.md")
    assert "×0.50" in text and "×0.10" not in text


def test_the_board_has_a_table_for_each_length_and_way_of_asking(tmp_path):
    rows = made.rows(tasks=("narrativeqa",), lengths=(512,), devices=("cpu",),
                     kinds=(("hub", "finetuned"),), methods=("vanilla", "vcc"))  # fmt: skip
    asked = {"experiment": "kv_board", "value": 50.0, "ci_lo": 40.0, "ci_hi": 60.0, "n_scored": 64}
    rows = [row | asked for row in rows]
    after = [row | {"question": "after", "row_id": row["row_id"][::-1], "cell_key": row["row_id"],
                    "value": 20.0, "quality_verdict": "lower"} for row in rows]  # fmt: skip
    Store(tmp_path).append([*rows, *after])
    board = page(tmp_path, "results/kv_board.md")
    assert board.count("512 tokens, 64 rows") == 4, "in the findings, too"
    assert board.count("the question read after the cache was compressed") == 2
    assert "50.0 ✓" in board and re.search(r"20.0 +\|", board)


def test_each_model_of_the_frontier_has_the_host_that_measured_most_of_it(tmp_path):
    made_rows = made.rows(tasks=("narrativeqa",), lengths=(512, 1024), devices=("cpu",),
                          kinds=(("hub", "finetuned"),), methods=("vcc",))  # fmt: skip
    asked = {"experiment": "frontier", "lat_verdict": "faster"}
    near = {"model": "small", "host_id": "h2-near", "cpu_model": "EPYC", "lat_ratio": 0.5}
    far = {"model": "base", "host_id": "h2-far", "cpu_model": "Xeon", "lat_ratio": 0.1}
    rows = [row | asked | near for row in made_rows]
    Store(tmp_path).append([*rows, rows[0] | far | {"row_id": "far", "cell_key": "far"}])
    text = page(tmp_path, "results/length.md")
    small, base = text.index("### small"), text.index("### base")
    assert small < text.index("Measured on EPYC") < text.index("×0.50") < base
    assert base < text.index("Measured on Xeon") < text.index("×0.10")


def test_each_host_has_its_own_table_of_training_steps(tmp_path):
    [row] = made.rows(tasks=("lra_text",), lengths=(1024,), devices=("cpu",), methods=("vanilla",),
                      kinds=(("local", "random"),))  # fmt: skip
    step = {"experiment": "lra_table2", "train_ratio": None, "threads": 1}
    hosts = {"h2-near": "avx avx2 avx512f", "h2-far": "avx avx2"}
    Store(tmp_path).append(
        row | step | {"row_id": host, "host_id": host, "instruction_sets": sets,
                      "cpu_model": "EPYC", "train_median_ns": 10**9 * n}
        for n, (host, sets) in enumerate(hosts.items(), start=1)
    )  # fmt: skip
    text = page(tmp_path, "results/training_step.md")
    lines = lines_of(text)
    assert [line for line in lines if "/s" in line] == ["| vanilla | 1/s |", "| vanilla | 0.5/s |"]
    assert "EPYC (AVX-512), " in text and "EPYC (AVX2), " in text


def test_scores_of_the_same_weights_stand_apart_from_trainings(tmp_path):
    kinds = (("hub", "finetuned"),)
    both = made.rows(tasks=("narrativeqa",), lengths=(512,), devices=("cpu",), kinds=kinds,
                     methods=("vcc", "bigbird"))  # fmt: skip
    training = {"from": "t5", "steps": None, "hours": 1.58, "supervision": "answers"}
    own = {"quality_comparison": "each trained for itself", "training": json.dumps(training)}
    words = ({"quality_comparison": "same weights", "value": 20.0}, own | {"value": 40.0})
    asked = {"experiment": "quickstart", "base_value": 30.0, "method": "vcc"}
    rows = [row | more | asked for row, more in zip(both, words, strict=True)]
    Store(tmp_path).append(rows)
    text = page(tmp_path, "results/encoders.md")
    lines = [line for line in text.splitlines() if line.startswith("| narrativeqa")]
    assert ["same weights" in line for line in lines] == [True, False]
    assert "each trained for itself" in lines[1]
    assert "score +10.0 to +10.0 points (each trained for itself, 1 task)" in text
    assert "score −10.0 to −10.0 points (same weights, 1 task)" in text
    assert "t5-large, vcc: from t5, 1.6 h, answers" in text


def test_without_rows_there_are_no_tables(tmp_path):
    found = results_page.pages(tmp_path / "none")
    assert not any("|" in text for name, text in found.items() if name != "results.md")
