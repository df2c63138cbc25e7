"""The progress of a cell and of a sweep, and the time left."""

import io
import re
import time

import pytest
from rich.console import Console

import bench
from bench.execution import cell_group
from bench.sweep.estimate import StageEstimate, stages_s
from bench.terminal import output, rows_table, run_progress
from bench.terminal.run_progress import StageClock, SweepProgress
from tests import made

STAGES = [
    StageEstimate("quality", "vcc", 30.0),
    StageEstimate("quality of vanilla", "vanilla", 30.0),
    StageEstimate("latency", "vcc and vanilla", 30.0),
    StageEstimate("memory", "vcc", 5.0),
    StageEstimate("memory", "vanilla", 5.0),
]


def test_the_time_left_follows_estimate_and_pace(monkeypatch):
    now = 100.0
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: now)
    clock = StageClock(STAGES, began=now)
    assert (clock.over_s(), clock.left_s()) == (0.0, 100.0)
    clock.update("load", 0, 0)
    assert clock.arms == "vcc"
    clock.update("quality", 16, 32)
    now = 130.0  # twice as long as estimated
    assert clock.over_s() == 15.0 and clock.left_s() == pytest.approx(2 * 85)
    clock.update("quality of vanilla", 32, 32)
    clock.update("load", 0, 0)
    assert clock.over_s() == 60.0 and clock.arms == "vcc and vanilla"
    clock.update("latency", 40, 40)
    for arm in ("vcc", "vanilla"):
        clock.update("load", 0, 0)
        clock.update("memory", 0, 0)
        assert clock.arms == arm
    assert clock.over_s() == 95.0


def test_a_cells_stages_are_estimated_in_the_order_in_which_they_run(tmp_path):
    cell = bench.compose("method=vcc", f"model={made.checkpoint(tmp_path)}", "n=4", "length=512")
    assert [(s.name, s.arms) for s in stages_s(cell)] == [(s.name, s.arms) for s in STAGES]


@pytest.mark.parametrize("width", [60, 100])
def test_the_bar_fits_the_terminal(width):
    clock = StageClock(STAGES)
    clock.update("quality of vanilla", 12, 32)
    out = io.StringIO()
    Console(file=out, width=width).print(run_progress._drawn(clock, 12, 32, ""))
    first, second = (line.rstrip() for line in out.getvalue().splitlines())
    assert "elapsed · about " in first and first.endswith(" left")
    assert second == "  vanilla: quality of vanilla 12/32"


@pytest.mark.parametrize("environment", [{"TERM": "dumb", "FORCE_COLOR": "1"}, {}])
def test_where_nothing_can_be_redrawn_there_are_lines(capsys, monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with run_progress.progress("vcc × qmsum", STAGES) as report:
        report("quality", 1, 2)
        report("latency", 1, 2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "vcc × qmsum" and "\x1b" not in "".join(lines)
    assert [line.split()[-1] for line in lines[1:]] == ["quality", "latency"]


def test_a_table_that_is_piped_is_not_cut(capsys, monkeypatch):
    for name, value in {"TERM": "dumb", "FORCE_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    output.draw("", ("name", "about"), [["one", "word " * 40]], ("name", "about"))
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_of_rows_fits_the_terminal(monkeypatch, capsys, width):
    monkeypatch.setattr(output, "PIPE_WIDTH", width)
    timed = {"lat_ratio": 0.308, "lat_base_median_ns": 251_900_000, "lat_verdict": "faster"}
    vanilla = made.full(method="vanilla", lat_median_ns=251_900_000)
    rows_table.show([vanilla, made.full(**timed, task="gov_report")])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    assert shown.count("251.9") == 2 and "×0.308" in shown, "vanilla's milliseconds"
    plain = re.sub(r"\s", "", shown)
    assert "faster" in plain and "…" not in plain, "nothing is cut"


ENDED = {"state": "ended", "status": "ok", "code": 0, "seconds": 20.0, "at": 1.0,
         "figures": "f1 50.0", "reason": ""}  # fmt: skip


def test_the_live_table_shows_how_far_it_is_and_what_failed():
    progress = SweepProgress(["method=a", "method=b", "method=c"], [10.0, 10.0, 10.0])
    progress.notes = {
        0: ENDED,
        1: ENDED | {"status": "error", "code": 1, "figures": "", "reason": "seven [is] not eight"},
        2: {"state": "running", "since": time.time(), "at": 2.0, "stage": ["latency", 3, 40]},
    }
    out = io.StringIO()
    Console(file=out, width=120).print(progress.table())
    text = out.getvalue()
    for part in ("2 of 3 cells", "1 failed", "f1 50.0", "seven [is] not eight", "latency 3/40"):
        assert part in text
    # Both took twice their estimate, so the third will.
    assert 18 < progress.left_s() <= 20


def test_the_first_answers_of_a_shared_prefill_give_no_pace():
    progress = SweepProgress(["method=a", "method=b"], [1000.0, 0.0])
    for done, total, left_s in ((0, 0, 900), (0, 1000, 900), (1, 1000, 900), (250, 1000, 300)):
        note = {"state": "running", "since": time.time() - 100, "at": 0.0}
        progress.notes = {0: note | {"stage": [cell_group.STAGE, done, total]}}
        assert progress.left_s() == pytest.approx(left_s, abs=5)


def test_slow_answers_of_a_cell_extend_its_estimate():
    progress = SweepProgress(["method=a"], [1000.0])
    for done, total, left_s in ((1, 1000, 900), (50, 200, 900), (60, 600, 900), (61, 1200, 1867)):
        note = {"state": "running", "since": time.time() - 100, "at": 0.0}
        progress.notes = {0: note | {"stage": ["quality", done, total]}}
        assert progress.left_s() == pytest.approx(left_s, abs=5)


def test_without_a_terminal_a_line_is_printed_at_times_and_for_each_cell_that_ends(capsys):
    progress = SweepProgress(["method=a"], [10.0])
    running = {"state": "running", "since": time.time(), "at": 0.0, "stage": ["latency", 3, 40]}
    progress.update(0, running)
    progress.printed -= 600
    for note in (running, running, ENDED, ENDED):
        progress.update(0, note)
    lines = ["method=a · latency 3/40 · about 10 s left", "[1/1] method=a: ok · f1 50.0 · 20 s"]
    assert capsys.readouterr().out.splitlines() == lines
