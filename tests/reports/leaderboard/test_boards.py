"""Which rows the page shows, how they are ranked, and the command that writes it."""

import json
import re
import sys

from bench.request.cell import Cell
from bench.rows.store import Store
from reports.leaderboard import boards as boarding
from reports.leaderboard.page import page
from reports.leaderboard.pick import pick
from tests import made as bench_made
from tests.reports.leaderboard.pages import ONE, boards, data_of, small, stored, written

WIDE = {"value_diff_ci_lo": -40.0, "value_diff_ci_hi": 40.0, "ci_lo": 0.0, "ci_hi": 100.0}


def each(rows, **more):
    """The rows with other values; a function gives that of a row."""
    return [
        row | {name: value(row) if callable(value) else value for name, value in more.items()}
        for row in rows
    ]


def variants(method, *params):
    """A row of a method with each of these parameters."""
    [row] = small(methods=(method,), **ONE)
    return [row | {"row_id": f"r{i}", "method_params": json.dumps(one)}
            for i, one in enumerate(params)]  # fmt: skip


def of_a_cell(*rows):
    """Rows of one method that differ in these columns."""
    [row] = small(methods=("vcc",), **ONE)
    return [row | {"row_id": f"r{i}", "value": float(i)} | one for i, one in enumerate(rows)]


CASES = {
    "each kind of data and weights, random ones with a score": each(
        small(methods=("vanilla", "vcc")), value=lambda row: row.get("value", 99.0), n_scored=9
    ),
    "the newest ok row of a cell, of any code, counts": of_a_cell(*(
        {"cell_key": f"c{i}", "created_utc": f"2026-11-2{i}", "code_sha": f"s{i}",
         "status": "error" if i == 3 else "ok"} for i in range(4)
    )),
    "its last attempt, with an earlier time, too": of_a_cell(*(
        {"cell_key": "c", "attempt": i, "created_utc": f"2026-11-2{5 - i}"} for i in (1, 2)
    )),
    "what failed is last": each(
        small(**ONE), status=lambda row: "timeout" if row["method"] == "vcc" else row["status"]
    ),
    "the longest input is a row": of_a_cell({}, {"max_length_fit": 65536, "lat_ratio": None}),
    "parameters that differ are in the label": variants(
        "vcc", {"k": 8, "mode": "x"}, {"k": 16, "mode": "x"}
    ),
    "so is the variant": variants(
        "iceformer", {"search": "dci", "k": 5}, {"search": "dci", "k": 20},
        {"search": "quantized", "k": 20},
    ),
    "weights trained with a method are next to vanilla's": each(
        small(methods=("vanilla", "vcc"), **ONE),
        weights_sha256=lambda row: ("e" if row["method"] == "vanilla" else "f") * 64,
    ),
    "boards without speed or quality come after complete ones": [
        *each(small(tasks=("contract_nli",), methods=("vcc",), **ONE), lat_ratio=None,
              measure="quality", row_id="q"),
        *each(small(tasks=("lra_text",), methods=("vcc",), **ONE), value=None, measure="glance",
              row_id="l"),
        *small(tasks=("qmsum",), methods=("vcc",), **ONE),
    ],
    "nothing is ranked where vanilla is at chance": each(
        small(**ONE), chance=95.0, at_chance=lambda row: row["method"] == "vanilla"
    ),
    "known from rows of others": [
        row for row in each(small(**ONE), chance=95.0, at_chance=False)
        if row["method"] != "vanilla"
    ],
    "samples that separate no rows": [row | WIDE for row in small(**ONE) if row["status"] == "ok"],
    "boards of one title name what differs": of_a_cell(
        {"dataset_sha256": "1" * 64}, {"dataset_sha256": "2" * 64}
    ),
}  # fmt: skip


def told(board):
    """A board's title and what it lacks, and its rows in their order."""
    lines = [f"  {board.title} [{board.kind}]"]
    lines += [f"  {text}" for text in (board.how, board.lacks) if text]
    lines += ["  vanilla is at chance"] if board.at_chance else []
    for entry in board.entries:
        value = entry.row["value"]
        rank = "-".join(map(str, entry.rank)) if entry.rank else "not ranked"
        beaten = f", beaten in {entry.beaten}" if any(entry.beaten) else ""
        ended = "" if entry.row["status"] == "ok" else f" {entry.row['status']}"
        lines.append(
            f"    {entry.label}{ended} {'–' if value is None else f'{value:.1f}'}: {rank}{beaten}"
        )
    return "\n".join(lines)


def test_each_row_is_on_its_board_with_its_rank(tmp_path, snapshot):
    text = ""
    for number, (title, rows) in enumerate(CASES.items()):
        found = boards(stored(tmp_path / str(number), rows))
        text += "\n".join([title, *map(told, found), ""])
    words = ("method=vcc,vanilla", "weights=finetuned")
    found = boards(stored(tmp_path / "words", small()), *words)
    text += "\n".join([f"rows of {' '.join(words)}", *map(told, found), ""])
    snapshot("boards", text)


def test_a_row_in_two_folders_is_shown_once_and_hosts_are_apart(tmp_path):
    rows = [*small(methods=("vcc",), **ONE)]
    other = [{**rows[0], "row_id": "there", "host_id": "another"}]
    one, two = stored(tmp_path / "a", rows), stored(tmp_path / "b", rows + other)
    picked = pick([one, two], [], 2000)
    made_boards = boarding.boards(picked.rows, lambda done, total: None)
    assert picked.n_cells == len(picked.rows) == len(made_boards) == 2
    hosts = sorted(b.title.rpartition("host ")[2] for b in made_boards)
    assert hosts == ["another (older id)", "h2-a3f0c1d2"]


def test_of_too_many_cells_the_newest_boards_are_kept_whole(tmp_path, command):
    rows = [*small(lengths=(1024, 2048, 4096), **ONE)]
    folder = stored(tmp_path / "runs", rows)
    assert [b.key["length"] for b in boards(folder, most=17)] == [2048, 4096]
    assert len(boards(folder, most=3)[0].entries) == 3
    words = ("--results", folder, "--out", tmp_path / "p.html", "--most", "9")
    assert "16 older cells are left out" in command("leaderboard", *words)[2]
    assert "the newest of 24 cells" in (tmp_path / "p.html").read_text()


def test_a_busy_machine_is_marked(tmp_path):
    rows = [row | {"noisy": row["method"] == "vcc"} for row in small()]
    text = written(stored(tmp_path / "runs", rows), tmp_path / "p.html")
    columns = data_of(text)["rows"]
    noisy = {name for name, busy in zip(columns["method"], columns["noisy"], strict=True) if busy}
    assert noisy == {"vcc"}


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


def test_the_command_writes_the_page_and_says_so(tmp_path, command):
    folder = stored(tmp_path / "runs", small())
    out = tmp_path / "new" / "page.html"
    code, said, err = command("leaderboard", "--results", folder, "--out", out)
    assert code == 0 and not err
    assert re.fullmatch(r".*page.html: 32 rows on 4 boards, \d+ KiB", said.splitlines()[0])
    assert out.read_text().startswith("<!doctype html>") and len([*out.parent.iterdir()]) == 2


def test_no_rows_says_how_to_make_some(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no folder results/runs: make bench" in refused("leaderboard")
    assert not (tmp_path / "leaderboard.html").exists()


def test_without_folders_named_the_reference_rows_are_shown(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "results" / "reference", small())
    assert command("leaderboard")[0] == 0
    assert (tmp_path / "leaderboard.html").exists()


def test_the_same_rows_give_the_same_page(tmp_path):
    found = boards(stored(tmp_path, small()))
    assert page(found, "x") == page(boards(tmp_path), "x")
