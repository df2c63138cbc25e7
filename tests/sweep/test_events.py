"""events=FILE: the events of a command that runs cells, for a tracker."""

import json
import multiprocessing
from datetime import datetime

import pytest

from bench.sweep.log import EventStream, sweeps
from tests.rows.test_results import bench

CELL = ["length=256", "n=2", "threads=1", "measure=quality"]


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def kinds(events):
    return [each["event"] for each in events]


def test_a_sweep_tells_of_each_cell_and_goes_on_in_the_same_file(
    tiny_t5, tmp_path, capsys, instant_cells
):
    path = tmp_path / "new/events.jsonl"
    words = [*CELL, f"model={tiny_t5}", f"results={tmp_path}", f"events={path}"]
    code, _, _ = bench(capsys, "run", "-m", "method=vanilla,vcc", *words)
    first = read(path)
    cell = ["cell_started", "stage", "row"]
    assert code == 0 and kinds(first) == ["sweep_started", *cell, *cell, "sweep_ended"]
    [record] = sweeps(tmp_path)
    assert {each["sweep"] for each in first} == {record.id} and first[0]["cells"] == 2
    assert all(each["schema"] == 1 and datetime.fromisoformat(each["time"]).utcoffset() is not None
               for each in first)  # fmt: skip
    assert [each["method"] for each in first if each["event"] == "row"] == ["vanilla", "vcc"]
    assert all(each["row_id"] for each in first if each["event"] == "row")
    assert first[-1]["exit_code"] == 0
    code, _, _ = bench(capsys, "run", "-m", "method=vanilla,vcc", *words)
    after = read(path)[len(first) :]
    assert code == 0 and kinds(after) == ["sweep_started", "sweep_ended"] and after[0]["done"] == 2


def test_one_cell_has_the_same_events(tiny_t5, tmp_path, capsys):
    words = [*CELL, f"model={tiny_t5}", f"results={tmp_path}"]
    path = tmp_path / "e"
    code, _, _ = bench(capsys, "run", "method=vcc", *words, f"events={path}")
    events = read(path)
    assert code == 0 and kinds(events)[:2] == ["sweep_started", "cell_started"]
    assert kinds(events)[-2:] == ["row", "sweep_ended"] and "stage" in kinds(events)
    assert events[-2]["metric"] == "f1" and "events=" not in events[0]["command"]
    from bench.rows.store import Store

    [row] = Store(tmp_path).rows().to_pylist()
    assert row["row_id"] == events[-2]["row_id"] and row["run_id"] == events[0]["sweep"]
    assert "events" not in row["command"] + row["cell"]


def test_a_refused_cell_is_told(tmp_path, capsys):
    words = ["method=vcc", "length=256", "n=2", f"results={tmp_path}", f"data.dir={tmp_path}"]
    code, _, err = bench(capsys, "run", *words, f"events={tmp_path / 'e'}")
    events = read(tmp_path / "e")
    assert code == 2 and len(err) == 1
    assert kinds(events) == ["sweep_started", "cell_started", "cell_refused", "sweep_ended"]
    assert events[2]["reason"] in err[0] and events[3]["exit_code"] == 2


@pytest.mark.parametrize("multirun", [[], ["-m"]])
def test_a_file_that_can_not_be_written_is_one_line_before_anything_runs(
    tmp_path, capsys, multirun, instant_cells
):
    (tmp_path / "file").write_text("")
    for where in (tmp_path, tmp_path / "file/e"):
        words = [*multirun, "method=vanilla", *CELL, f"results={tmp_path / 'r'}"]
        code, out, err = bench(capsys, "run", *words, f"events={where}")
        assert code == 2 and not out and len(err) == 1 and "can't be written" in err[0]
    (tmp_path / "notes").write_text("no line end")
    code, _, err = bench(capsys, "run", *words, f"events={tmp_path / 'notes'}")
    assert code == 2 and len(err) == 1 and "notes holds no events; give a new file" in err[0]
    assert (tmp_path / "notes").read_text() == "no line end"
    assert not (tmp_path / "r").exists()


def _many(path, number):
    stream = EventStream(path, str(number))
    for i in range(100):
        stream.write("row", cell=i, text="x" * (number * 1000))


def test_processes_append_whole_lines_and_remove_what_a_killed_one_left(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b'{"a": 1}\n{"event": "ro')
    writers = [multiprocessing.get_context("fork").Process(target=_many, args=(path, n))
               for n in range(4)]  # fmt: skip
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    events = read(path)
    assert len(events) == 401 and events[0] == {"a": 1}
    for number in range(4):
        assert [e["cell"] for e in events[1:] if e["sweep"] == str(number)] == list(range(100))
