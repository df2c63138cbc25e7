"""The cells that a budget leaves out of a sweep, and the rows that report it."""

import time
from dataclasses import replace

import pytest

from bench.cli.main import dispatch
from bench.execution import runner
from bench.rows.store import Store
from bench.sweep import sweep
from bench.sweep.log import Record
from bench.sweep.plan import plan

CELL = ["n=2", "threads=1", "measure=quality"]


@pytest.fixture
def begun(tmp_path):
    """The record of a sweep of two methods at three lengths, of which nothing has run."""
    words = [*CELL, "length=256,512,1024", "method=vanilla,vcc", f"results={tmp_path}"]
    made = plan([*words, "time=1h"])
    record = Record.begin(made, "")
    for cell in record.content["cells"]:
        cell["seconds"] = 100.0
    return record


def until(record, left_s):
    """The record of a sweep with this time left."""
    end = None if left_s is None else time.time() + left_s
    return replace(record, content=record.content | {"until": end})


def over(record, index, status="ok", seconds=100.0):
    record.write_note(index, state="ended", status=status, code=0, seconds=seconds)


def test_the_first_cell_always_begins_and_without_a_budget_all_do(begun):
    assert sweep.reason_to_skip(until(begun, -5), 0) is None
    assert sweep.reason_to_skip(until(begun, None), 5) is None


def test_a_cell_that_would_end_too_late_is_not_begun(begun):
    soon = until(begun, 60)
    assert "about 2 min, and 60 s are left" in sweep.reason_to_skip(soon, 2)
    # Its method took half of what was thought, so there is time; the other's cells say less.
    for index, took in ((0, 400.0), (1, 50.0)):
        over(soon, index, seconds=took)
    assert [cell["overrides"][1] for cell in soon.content["cells"][:4]] == [
        "method=vanilla", "method=vcc"] * 2  # fmt: skip
    assert sweep.reason_to_skip(soon, 3) is None
    assert "about 7 min" in sweep.reason_to_skip(soon, 2)


@pytest.mark.parametrize("status", ["oom_host", "oom_device", "timeout"])
def test_what_did_not_fit_is_not_tried_with_more_tokens(begun, status):
    over(begun, 1, status=status)
    assert sweep.reason_to_skip(begun, 3) == f"at length=256 it ended as {status}"
    assert sweep.reason_to_skip(begun, 2) is None


def test_what_is_left_out_becomes_rows_once_and_is_still_to_do(tmp_path):
    words = [*CELL, "length=256", "method=vanilla,vcc", f"results={tmp_path}"]
    made = plan([*words, "time=1h"])
    for _ in range(2):
        left = [(planned, "too long") for planned in made.cells]
        sweep.store_rows(made, left, here=True)
    rows = Store(tmp_path).rows().to_pylist()
    assert {(row["method"], row["status"]) for row in rows} == {
        ("vanilla", "skipped"), ("vcc", "skipped")}  # fmt: skip
    assert len(rows) == 2 and all(row["host_id"] for row in rows)
    assert rows[0]["status_detail"] == "not measured for the budget of 1h: too long"
    assert len(plan(words).of("to do")) == 2


def test_a_spent_budget_tells_each_cell_and_why(tmp_path, capsys, monkeypatch, instant_cells):
    run = runner.run
    monkeypatch.setattr(runner, "run", lambda *a, **k: time.sleep(1.1) or run(*a, **k))
    code = dispatch(["run", "-m", *CELL, "length=256", "method=vanilla", "seed=0,1", "time=1s",
              f"results={tmp_path}"])  # fmt: skip
    told = capsys.readouterr().out
    assert code == 0 and "1 done, 0 failed, 1 not measured for the budget" in told
    assert "over budget: it would take about" in told
    statuses = [row["status"] for row in Store(tmp_path).rows().to_pylist()]
    assert sorted(statuses) == ["ok", "skipped"]
