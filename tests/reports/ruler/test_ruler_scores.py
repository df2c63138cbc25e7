"""RULER's averages and effective length, from made rows."""

import math

import pytest

from bench.status import Status
from reports.ruler import LLAMA2_7B_AT_4K, TASKS, page, results
from tasks.ruler import KINDS
from tests.reports.made_ruler import REACH, failed, score, scores

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
LLAMA_31_70B = (96.5, 95.8, 95.4, 94.8, 88.4, 66.6)
"""Averages that RULER's leaderboard prints, with 89.6, 85.5 and 93.7 over lengths and 64K."""


def one(rows):
    (found,) = results(rows)
    return found


def middle(measured):
    return measured.value


def text_of(found, caption, threshold=LLAMA2_7B_AT_4K):
    """The lines of a grid by their first column."""
    grids = {grid.caption: grid for grid in page(found, threshold).sections[0].grids}
    (grid,) = (grid for name, grid in grids.items() if name.startswith(caption))
    return {line[0]: line[1:] for line in grid.lines}


def test_the_tasks_are_those_that_are_generated():
    assert TASKS == KINDS


def test_averages_and_effective_length_are_those_of_the_leaderboard():
    found = one(scores({"vanilla": LLAMA_31_70B}, LENGTHS))
    rising = found.rising()
    means = [found.over_lengths("vanilla", w) for w in ([1] * 6, rising, rising[::-1])]
    assert [round(mean.measured.value, 1) for mean in means] == [89.6, 85.5, 93.7]
    assert found.effective_length("vanilla", LLAMA2_7B_AT_4K, middle) == 65536
    assert found.effective_length("vanilla", 99, middle) == 0


def test_an_average_has_the_interval_of_independent_tasks():
    average = one(scores({"vanilla": [80]}, [1024])).average("vanilla", 1024)
    assert average.whole and average.measured.value == pytest.approx(80)
    assert average.measured.hi - 80 == pytest.approx(REACH / math.sqrt(13))


def test_the_effective_length_is_as_sure_as_the_averages():
    found = one(scores({"vanilla": [95, 87, 80]}, [1024, 2048, 4096]))
    line = text_of(found, "Mean")["vanilla"]
    assert line[-1] == "2,048 (1,024 … 2,048)"
    assert text_of(found, "Mean", 70)["vanilla"][-1] == "≥ 4,096"
    assert text_of(found, "Mean", 99.5)["vanilla"][-1] == "below 1,024"


def test_an_average_of_fewer_tasks_says_so_and_has_no_effective_length():
    found = one(scores({"vanilla": [90, 90]}, [1024, 2048], TASKS[:4]))
    line = text_of(found, "Mean")["vanilla"]
    assert line[0].endswith(", 4 of 13 tasks") and line[2] == "90.0, 4 of 13 tasks"
    assert line[-1] == "–"


def test_averages_of_different_tasks_have_no_mean_over_lengths():
    rows = scores({"vanilla": [90]}, [1024], TASKS[:4]) + scores(
        {"vanilla": [90]}, [2048], TASKS[1:5]
    )
    assert text_of(one(rows), "Mean")["vanilla"][2:] == ["–", "–", "–", "–"]


def test_methods_are_ranked_where_vanilla_is_above_chance():
    rows = scores({"vanilla": [80], "good": [79], "bad": [50]}, [1024])
    rows = [row for row in rows if row["task"] != "ruler_vt"]
    floor = {"base_value": 0.0, "base_ci_lo": 0.0, "base_ci_hi": 20.0, "value_diff": 60.0,
             "value_diff_ci_lo": 50.0, "value_diff_ci_hi": 70.0}  # fmt: skip
    rows += [score("vanilla", "vt", 1024, 0.0), score("bad", "vt", 1024, 60.0, **floor),
             score("good", "vt", 1024, 0.0)]  # fmt: skip
    found = one(rows)
    assert found.at_chance(1024) == ["vt"] and len(found.comparable(1024)) == 12
    differences = text_of(found, "Difference")
    assert list(differences) == ["good", "bad"]
    assert differences["good"] == ["−1.0 (−2.7 … +0.7)"]
    assert differences["bad"] == ["−30.0 (−31.7 … −28.3) lower"]
    assert "on vt: no method is ranked" in " ".join(page(found).sections[0].items)


def test_vanilla_is_known_from_rows_of_other_methods():
    found = one(scores({"snapkv": [70]}, [1024]))
    assert found.methods[0] == "vanilla"
    assert found.average("vanilla", 1024).measured.value == pytest.approx(80)


def test_a_cell_that_failed_or_was_not_run_says_so():
    rows = scores({"vanilla": [80], "snapkv": [70]}, [1024], TASKS[:2])
    rows.append(failed("snapkv", "vt", 1024, Status.OOM_HOST))
    lines = text_of(one(rows), "1,024 tokens")
    assert lines["vt"] == ["not run", "out of memory"] and lines["cwe"] == ["not run", "not run"]
    assert text_of(one(rows), "Mean")["snapkv"][0].endswith("2 of 13 tasks")


def test_a_repeated_cell_counts_once_and_settings_stay_apart():
    old = score("vanilla", "vt", 1024, 10.0, created_utc="2026-01-01T00:00:00+00:00")
    new = old | {"value": 90.0, "row_id": "new", "created_utc": "2026-02-01T00:00:00+00:00"}
    failed = old | {"status": Status.ERROR, "row_id": "bad", "value": None,
                    "created_utc": "2026-03-01T00:00:00+00:00"}  # fmt: skip
    assert one([new, failed, old]).score("vanilla", 1024, "vt").measured.value == 90
    other = [row | {"model": "other"} for row in scores({"vanilla": [70]}, [1024])]
    assert [found.row["model"] for found in results([new, *other])] == ["other", "embedded-llama"]
