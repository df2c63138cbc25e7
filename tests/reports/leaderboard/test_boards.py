"""Which rows the page shows, how they are ranked, and the command that writes it."""

from __future__ import annotations

import json
import re
import sys

import pytest

from bench.cli.main import dispatch
from bench.request.cell import Cell
from bench.rows.store import Store
from reports.leaderboard import boards as boarding
from reports.leaderboard.page import page
from reports.leaderboard.pick import pick
from tests import made as bench_made
from tests.reports.leaderboard.pages import boards, data_of, small, stored, written
from tests.rows.test_results import bench


@pytest.mark.parametrize(
    "rows",
    [
        [{"cell_key": f"c{i}", "created_utc": f"2026-11-2{i}", "code_sha": f"s{i}",
          "status": "error" if i == 3 else "ok"} for i in range(4)],
        [{"cell_key": "c", "attempt": i, "created_utc": f"2026-11-2{5 - i}"} for i in range(1, 3)],
    ],
    ids=["the newest ok row of any code", "the last attempt, also with an earlier time"],
)  # fmt: skip
def test_of_the_rows_of_a_cell_one_counts(tmp_path, rows):
    [row] = small(methods=("vcc",), kinds=(("hub", "finetuned"),))
    named = [row | one | {"row_id": f"r{one.get('attempt', i)}"} for i, one in enumerate(rows)]
    [board] = boards(stored(tmp_path, named))
    assert [entry.row["row_id"] for entry in board.entries] == ["r2"]


def test_a_row_in_two_folders_is_shown_once_and_hosts_are_apart(tmp_path):
    rows = [*small(methods=("vcc",), kinds=(("hub", "finetuned"),))]
    other = [{**rows[0], "row_id": "there", "host_id": "another"}]
    one, two = stored(tmp_path / "a", rows), stored(tmp_path / "b", rows + other)
    picked = pick([one, two], [], 2000)
    made_boards = boarding.boards(picked.rows, lambda done, total: None)
    assert picked.n_cells == len(picked.rows) == len(made_boards) == 2
    hosts = sorted(b.title.rpartition("host ")[2] for b in made_boards)
    assert hosts == ["another (older id)", "h2-a3f0c1d2"]


def test_words_choose_rows(tmp_path):
    folder = stored(tmp_path, small())
    found = boards(folder, "method=vcc,vanilla", "weights=finetuned")
    assert [sorted(e.label for e in board.entries) for board in found] == [["vanilla", "vcc"]]


def test_of_too_many_cells_the_newest_boards_are_kept_whole(tmp_path, capsys):
    rows = [*small(lengths=(1024, 2048, 4096), kinds=(("hub", "finetuned"),))]
    folder = stored(tmp_path / "runs", rows)
    assert [b.key["length"] for b in boards(folder, most=17)] == [2048, 4096]
    assert len(boards(folder, most=3)[0].entries) == 3
    arguments = ["--results", str(folder), "--out", str(tmp_path / "p.html"), "--most", "9"]
    dispatch(["leaderboard", *arguments])
    assert "16 older cells are left out" in capsys.readouterr().err
    assert "the newest of 24 cells" in (tmp_path / "p.html").read_text()


def test_official_embedded_and_random_rows_never_share_a_board(tmp_path):
    found = boards(stored(tmp_path, small()))
    assert [board.kind for board in found] == ["official", "official", "own", "random"]
    for board in found:
        weights = {entry.row["weights_kind"] for entry in board.entries}
        assert len(weights) == 1
    assert all(entry.rank is None for entry in found[-1].entries)


def test_quality_of_random_weights_is_never_ranked(tmp_path):
    rows = [row | {"value": 99.0, "n_scored": 9} for row in small(kinds=(("hub", "random"),))]
    [board] = boards(stored(tmp_path, rows))
    assert board.kind == "random" and all(entry.rank is None for entry in board.entries)


def test_failures_are_on_their_board_and_last(tmp_path):
    rows = [row for row in small(kinds=(("hub", "finetuned"),))]
    rows[0] |= {"status": "timeout", "status_stage": "quality", "value": None}
    [board] = boards(stored(tmp_path / "runs", rows))
    assert board.entries[-1].row["status"] == "timeout" and board.entries[-1].rank is None
    assert len(board.entries) == len(rows)
    text = written(tmp_path / "runs", tmp_path / "p.html")
    assert "<td>out of time" in text and "1 ended without a result" in text


def test_the_longest_input_that_fits_is_a_row_of_its_own(tmp_path):
    rows = [*small(methods=("vcc",), kinds=(("hub", "random"),))]
    probe = rows[0] | {"row_id": "probe", "max_length_fit": 65536, "lat_ratio": None}
    [board] = boards(stored(tmp_path / "runs", [*rows, probe]))
    assert len(board.entries) == 2
    columns = data_of(written(tmp_path / "runs", tmp_path / "p.html"))["rows"]
    assert "65,536 tokens" in columns["longest"]


def test_a_busy_machine_is_marked(tmp_path):
    rows = [row | {"noisy": row["method"] == "vcc"} for row in small()]
    text = written(stored(tmp_path / "runs", rows), tmp_path / "p.html")
    columns = data_of(text)["rows"]
    noisy = {name for name, busy in zip(columns["method"], columns["noisy"], strict=True) if busy}
    assert noisy == {"vcc"}


@pytest.mark.parametrize(
    ("method", "labels"),
    [
        ("vcc", {"vcc k=8": {"k": 8, "mode": "x"}, "vcc k=16": {"k": 16, "mode": "x"}}),
        ("iceformer", {"iceformer·dci k=5": {"search": "dci", "k": 5},
                       "iceformer·dci k=20": {"search": "dci", "k": 20},
                       "iceformer·quantized": {"search": "quantized", "k": 20}}),
    ],
)  # fmt: skip
def test_methods_are_labelled_by_their_variant_and_by_parameters_that_differ(
    tmp_path, method, labels
):
    [row] = small(methods=(method,), kinds=(("hub", "finetuned"),))
    rows = [row | {"row_id": name, "method_params": json.dumps(params)}
            for name, params in labels.items()]  # fmt: skip
    [board] = boards(stored(tmp_path, rows))
    assert {entry.label: entry.row["row_id"] for entry in board.entries} == {n: n for n in labels}


def test_weights_trained_with_a_method_stand_beside_vanillas(tmp_path):
    rows = [*small(methods=("vanilla", "vcc"), kinds=(("hub", "finetuned"),))]
    rows[1] |= {"weights_sha256": "f" * 64}
    assert len(boards(stored(tmp_path, rows))) == 1


def test_rows_with_predictions_are_tested_on_the_same_samples(tmp_path):
    model = bench_made.checkpoint(tmp_path / "model")
    n = 24
    good, bad = [True] * n, [i % 4 == 0 for i in range(n)]
    for method, right in (("vanilla", good), ("vcc", bad), ("bigbird", good)):
        bench_made.answered(tmp_path / "runs", model, right, None, f"method={method}")
    [board] = boards(tmp_path / "runs")
    assert board.how == "paired on the same samples" and board.kind == "own_partial"
    assert [(e.label, e.rank) for e in board.entries] == [
        ("vanilla", (1, 2)), ("bigbird", (1, 2)), ("vcc", (3, 3)),
    ]  # fmt: skip


def test_a_task_that_rows_bring_themselves_is_not_run(tmp_path, monkeypatch):
    model = bench_made.checkpoint(tmp_path / "model")
    honest = bench_made.answered(tmp_path / "runs", model, [True] * 4, None, "method=vcc")
    cell = json.loads(honest["cell"])
    cell["task"]["target"] = "antigravity:boo"
    row = {**honest, "row_id": "evil", "seed": 1, "cell": Cell(**cell).to_json()}
    Store(tmp_path / "runs").append([row])
    boards(tmp_path / "runs")
    assert "antigravity" not in sys.modules


def test_the_command_writes_the_page_and_says_so(tmp_path, capsys):
    folder = stored(tmp_path / "runs", small())
    out = tmp_path / "new" / "page.html"
    code, lines, err = bench(capsys, "leaderboard", "--results", folder, "--out", out)
    assert code == 0 and not err
    assert re.fullmatch(r".*page.html: 32 rows on 4 boards, \d+ KiB", lines[0])
    assert out.read_text().startswith("<!doctype html>") and len([*out.parent.iterdir()]) == 2


def refused(capsys, *words):
    """The one line of standard error of a wrong request."""
    code, _, err = bench(capsys, "leaderboard", *words)
    assert code == 2 and len(err) == 1, err
    return err[0]


def test_no_rows_says_how_to_make_some(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no folder results/runs: make bench" in refused(capsys)
    (tmp_path / "empty").mkdir()
    said = refused(capsys, "--results", "empty")
    assert "no rows in empty: make bench" in said
    assert "no folder nowhere" in refused(capsys, "--results", "nowhere")
    assert not (tmp_path / "leaderboard.html").exists()


def test_wrong_words_are_refused(tmp_path, capsys):
    folder = stored(tmp_path / "runs", small())
    where = ("--results", folder)
    assert "Did you mean 'method'?" in refused(capsys, "metod=vcc", *where)
    assert "Did you mean vcc?" in refused(capsys, "method=vc", *where)
    said = refused(capsys, "weights=finetuned", "data=embedded", *where)
    assert "that fit weights=finetuned data=embedded" in said
    assert "is a folder" in refused(capsys, *where, "--out", tmp_path)
    assert "--most" in refused(capsys, *where, "--most", "0")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "page.html"
    assert "cannot write to" in refused(capsys, *where, "--out", out)
    (tmp_path / "notes.html").write_text("mine")
    said = refused(capsys, *where, "--out", tmp_path / "notes.html")
    assert "holds what bench didn't write" in said
    assert (tmp_path / "notes.html").read_text() == "mine"


def test_bad_files_are_set_aside_each_with_a_line(tmp_path, capsys, monkeypatch):
    folder = stored(tmp_path / "runs", small())
    (folder / "rows-torn.parquet").write_bytes(b"PAR1 no more")
    from bench.rows import columns

    monkeypatch.setattr(columns, "SCHEMA_VERSION", 9)
    newer = stored(tmp_path / "newer", small())
    monkeypatch.undo()
    out = tmp_path / "p.html"
    code, lines, err = bench(capsys, "leaderboard", "--results", folder, newer, "--out", out)
    assert code == 0 and "32 rows" in lines[0]
    torn, update = err
    assert "torn" in torn and "rows-torn.parquet" in torn
    assert "schema 9" in update and "update longctx-bench" in update
    code, _, err = bench(capsys, "leaderboard", "--results", newer, "--out", out)
    assert code == 2 and "update longctx-bench" in err[0] and "no rows in" in err[1]


def test_without_folders_named_the_reference_rows_are_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "results" / "reference", small())
    assert bench(capsys, "leaderboard")[0] == 0
    assert (tmp_path / "leaderboard.html").exists()


def test_the_same_rows_give_the_same_page(tmp_path):
    found = boards(stored(tmp_path, small()))
    assert page(found, "x") == page(boards(tmp_path), "x")
