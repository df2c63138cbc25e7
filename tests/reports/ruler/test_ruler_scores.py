"""RULER's averages and effective length, from made rows."""

import math

import pytest

from bench.status import Status
from reports.ruler import page
from reports.ruler_scores import LLAMA2_7B_AT_4K, TASKS, results
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


def test_the_tasks_are_those_that_are_generated():
    assert TASKS == KINDS


def test_averages_and_effective_length_are_those_of_the_leaderboard():
    found = one(scores({"vanilla": LLAMA_31_70B}, LENGTHS))
    rising = range(1, len(LENGTHS) + 1)
    means = [found.over_lengths("vanilla", w) for w in ([1] * 6, rising, rising[::-1])]
    assert [round(mean.measured.value, 1) for mean in means] == [89.6, 85.5, 93.7]
    assert found.effective_length("vanilla", LLAMA2_7B_AT_4K, middle) == 65536
    assert found.effective_length("vanilla", 99, middle) == 0


def test_a_length_at_which_only_times_were_measured_is_left_out():
    timed = {**score("vanilla", "vt", 8192, 0.0), "value": None}
    assert one([*scores({"vanilla": [80]}, [1024]), timed]).lengths == [1024]


def test_an_average_has_the_interval_of_independent_tasks():
    average = one(scores({"vanilla": [80]}, [1024])).average("vanilla", 1024)
    assert average.whole and average.measured.value == pytest.approx(80)
    assert average.measured.hi - 80 == pytest.approx(REACH / math.sqrt(13))


FLOOR = {"base_value": 0.0, "base_ci_lo": 0.0, "base_ci_hi": 20.0, "value_diff": 60.0,
         "value_diff_ci_lo": 50.0, "value_diff_ci_hi": 70.0}  # fmt: skip
CASES = {
    "an effective length as sure as the averages": scores(
        {"vanilla": [95, 87, 80]}, [1024, 2048, 4096]
    ),
    "fewer tasks have no effective length": scores({"vanilla": [90, 90]}, [1024, 2048], TASKS[:4]),
    "different tasks have no mean over lengths": [
        *scores({"vanilla": [90]}, [1024], TASKS[:4]),
        *scores({"vanilla": [90]}, [2048], TASKS[1:5]),
    ],
    "methods are ranked where vanilla is above chance": [
        *scores({"vanilla": [80], "good": [79], "bad": [50]}, [1024],
                [task for task in TASKS if task != "vt"]),
        score("vanilla", "vt", 1024, 0.0), score("bad", "vt", 1024, 60.0, **FLOOR),
        score("good", "vt", 1024, 0.0),
    ],
    "vanilla is known from rows of others": scores({"snapkv": [70]}, [1024]),
    "what failed or was not run": [
        *scores({"vanilla": [80], "snapkv": [70]}, [1024], TASKS[:2]),
        failed("snapkv", "vt", 1024, Status.OOM_HOST),
    ],
}  # fmt: skip


def told(found, threshold=LLAMA2_7B_AT_4K):
    """The lines of a report's grids, and its notes."""
    section = page(found, threshold).sections[0]
    for grid in section.grids:
        yield from (grid.caption, *(f"  {' | '.join(line)}" for line in grid.lines))
    yield from section.items


def test_each_report_has_its_averages_differences_and_notes(snapshot):
    texts = [(title, told(one(rows))) for title, rows in CASES.items()]
    first = one(next(iter(CASES.values())))
    texts += [(f"a threshold of {each}", told(first, each)) for each in (70, 99.5)]
    snapshot("scores", "\n\n".join("\n".join([title, *lines]) for title, lines in texts))


def test_a_repeated_cell_counts_once_and_settings_stay_apart():
    old = score("vanilla", "vt", 1024, 10.0, created_utc="2026-01-01T00:00:00+00:00")
    new = old | {"value": 90.0, "row_id": "new", "created_utc": "2026-02-01T00:00:00+00:00"}
    failed = old | {"status": Status.ERROR, "row_id": "bad", "value": None,
                    "created_utc": "2026-03-01T00:00:00+00:00"}  # fmt: skip
    assert one([new, failed, old]).score("vanilla", 1024, "vt").measured.value == 90
    other = [row | {"model": "other"} for row in scores({"vanilla": [70]}, [1024])]
    assert [found.row["model"] for found in results([new, *other])] == ["other", "embedded-llama"]
