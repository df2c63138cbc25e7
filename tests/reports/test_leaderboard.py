"""The page without a browser: which rows it shows, how they are ranked, and that it is safe."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from bench.cell import Cell
from bench.store import Store
from reports.leaderboard import boards as boarding
from reports.leaderboard import command, look, pack
from reports.leaderboard.page import ASSETS, page
from reports.leaderboard.pick import pick
from tests.bench import made as bench_made
from tests.bench.test_results import bench
from tests.conftest import ROOT
from tests.reports import made

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&${style}{method}</script>"


def stored(folder: Path, rows) -> Path:
    Store(folder).append(rows)
    return folder


def boards(folder, *words, most=2000):
    picked = pick([folder], words, most)
    return boarding.boards(picked.rows, lambda done, total: None)


def small(**more):
    """Rows of one task, on few boards."""
    return made.rows(**{"tasks": ("narrativeqa",), "lengths": (4096,), "devices": ("cpu",)} | more)


def written(folder, out, *words, **options):
    command.main([*words, "--results", str(folder), "--out", str(out)])
    return out.read_text()


def data_of(text):
    how, content = re.search(r'id="data" data-how="(\w+)">([^<]*)<', text).groups()
    if how == "deflate":
        content = zlib.decompress(base64.b64decode(content), -15).decode()
    return json.loads(content)


class Tags(HTMLParser):
    """Every element with its attributes, and all text outside scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.inside = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.texts.append(data)


# --- the file ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of 2,000 rows of every kind."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [row for _, row in zip(range(2000), made.rows(seeds=(0, 1)), strict=False)]
    return written(stored(folder / "runs", rows), folder / "page.html")


def test_2000_rows_take_at_most_300_kb(whole):
    assert len(whole.encode()) <= 300_000
    assert len(data_of(whole)["rows"]["id"]) == 2000


def test_nothing_but_the_file_itself_is_ever_loaded_or_run(whole):
    tags = Tags(whole).found
    assert not {tag for tag, _ in tags} & {"link", "img", "iframe", "object", "base", "embed"}
    for tag, attributes in tags:
        loading = {"src", "href", "action", "style", "srcset"} & set(attributes)
        assert not loading and not [n for n in attributes if n.startswith("on")], (tag, attributes)
    assert "http:" not in whole.replace("http://www.w3.org/2000/svg", "") and "https:" not in whole


def test_the_policy_allows_the_inlined_style_and_script_and_nothing_else(whole):
    [policy] = [a["content"] for t, a in Tags(whole).found
                if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        inlined = re.findall(rf"<{tag}>(.*?)</{tag}>", whole, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inlined[0].encode()).digest()).decode()
        assert len(inlined) == 1 and rules[kind] == f"'sha256-{digest}'"
    assert set(rules) == {"default-src", "base-uri", "form-action", "style-src", "script-src"}


def test_the_script_writes_no_html():
    script = "".join(part.read_text() for part in ASSETS.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script)


def test_what_is_left_out_without_javascript_is_said(whole):
    shown = whole.count("<tr><td>")
    assert 500 < shown < 2000
    left = [int(n.replace(",", "")) for n in re.findall(r"<p>([\d,]+) more rows need", whole)]
    assert len(left) == 3 and shown + sum(left) == 2000
    for name in ("scrolls", "lra", "longeval"):
        assert f"<h2>{name}</h2>" in whole


def test_one_board_of_2000_rows_takes_no_more(tmp_path):
    [first] = small(methods=("vcc",), kinds=(("hub", "finetuned"),))
    rows = [first | {"row_id": f"{k:032x}", "method_params": f'{{"k": {k}}}', "value": k / 20}
            for k in range(2000)]  # fmt: skip
    picked = pick([stored(tmp_path, rows)], [], 2000)
    [board] = boarding.boards(picked.rows[:2], lambda done, total: None)
    entries = [
        boarding.Entry(row, "name " * 9 + row["row_id"], None, (True, False)) for row in picked.rows
    ]
    text = page([dataclasses.replace(board, entries=entries)], "")
    assert len(text.encode()) <= 300_000 and "more rows need JavaScript" in text


def test_fewer_rows_are_all_readable_without_javascript(tmp_path):
    text = written(stored(tmp_path / "runs", small()), tmp_path / "page.html")
    assert text.count("<tr><td>") == 32 and "need JavaScript." not in text
    words = " ".join(Tags(text).texts)
    for expected in ("vcc", "×0.5", "faster", "±", "baseline", "4,096 tokens", "hub rows, n\u00a0=",
                     "pretrained-swap weights", "cpu float32", "Random weights"):  # fmt: skip
        assert expected in words


# --- hostile rows ------------------------------------------------------------------------------


def hostile_rows():
    for kind in ("plain", "failed"):
        for text in (HOSTILE, HOSTILE * 40):
            row = next(iter(small(methods=("vcc",))))
            names = ("method", "task", "benchmark", "model", "split", "dtype", "device", "host_id",
                     "command", "code_sha", "cpu_model", "measure", "created_utc", "metric",
                     "ratio_reason", "noise_reason", "dataset_sha256", "launcher")  # fmt: skip
            row |= dict.fromkeys(names, text) | {"row_id": text + kind}
            row |= {"method_params": json.dumps({text[:99]: text})}
            if kind == "failed":
                row |= {"seed": 1, "status": "error", "status_stage": text, "status_detail": text}
            yield row


def test_hostile_names_ids_and_messages_stay_text(tmp_path):
    text = written(stored(tmp_path / "runs", hostile_rows()), tmp_path / "page.html")
    parsed = Tags(text)
    tags = [tag for tag, _ in parsed.found]
    assert tags.count("script") == 2 and "img" not in tags
    assert "<script>alert(1)" in "".join(parsed.texts)
    found = data_of(text)
    assert len(found["rows"]["id"]) == 4
    assert found["boards"][0]["task"].endswith("</script>")
    assert max(len(str(value)) for value in found["rows"]["method"]) < 700


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_figures_that_are_no_numbers_are_shown_as_none(tmp_path, value):
    [row] = small(methods=("vcc",), kinds=(("hub", "finetuned"),))
    figures = ("value", "ci_lo", "ci_hi", "ratio", "ratio_ci_hi", "mem_ratio", "fid_rel_l2")
    text = written(stored(tmp_path / "r", [row | dict.fromkeys(figures, value)]), tmp_path / "p")
    assert "nan" not in " ".join(Tags(text).texts) and "inf" not in "".join(Tags(text).texts)
    assert "<td>–<td>vcc<td>–<td>–" in text


def test_a_row_of_few_columns_is_shown(tmp_path):
    bare = {"cell_key": "x", "status": "skipped", "row_id": "bare"}
    text = written(stored(tmp_path / "r", [bare]), tmp_path / "p")
    assert "no benchmark" in text and "skipped" in text


# --- which rows --------------------------------------------------------------------------------


def test_the_newest_ok_row_of_a_cell_counts_whatever_its_code(tmp_path):
    [row] = small(methods=("vcc",), kinds=(("hub", "finetuned"),))
    versions = [
        row | {"row_id": f"r{i}", "cell_key": f"c{i}", "created_utc": f"2026-11-2{i}", "value": i,
               "code_sha": f"s{i}", "status": "error" if i == 3 else "ok"}
        for i in range(4)
    ]  # fmt: skip
    [board] = boards(stored(tmp_path, versions))
    assert [entry.row["row_id"] for entry in board.entries] == ["r2"]


def test_a_row_in_two_folders_is_shown_once_and_hosts_are_apart(tmp_path):
    rows = [*small(methods=("vcc",), kinds=(("hub", "finetuned"),))]
    other = [{**rows[0], "row_id": "there", "host_id": "another"}]
    one, two = stored(tmp_path / "a", rows), stored(tmp_path / "b", rows + other)
    picked = pick([one, two], [], 2000)
    made_boards = boarding.boards(picked.rows, lambda done, total: None)
    assert (picked.n_rows, len(made_boards)) == (2, 2)
    assert sorted(b.title.rpartition("host ")[2] for b in made_boards) == ["a3f0c1d2", "another"]


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
    command.main(arguments)
    assert "16 older cells are left out" in capsys.readouterr().err
    assert "the newest of 24 cells" in (tmp_path / "p.html").read_text()


# --- boards ------------------------------------------------------------------------------------


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
    assert "<b>out of time</b>" in text and "1 ended without a result" in text


def test_the_longest_input_that_fits_is_a_row_of_its_own(tmp_path):
    rows = [*small(methods=("vcc",), kinds=(("hub", "random"),))]
    probe = rows[0] | {"row_id": "probe", "max_length_fit": 65536, "ratio": None}
    [board] = boards(stored(tmp_path / "runs", [*rows, probe]))
    assert len(board.entries) == 2
    assert "<b>fits 65,536 tokens</b>" in written(tmp_path / "runs", tmp_path / "p.html")


def test_a_busy_machine_is_marked(tmp_path):
    rows = [row | {"noisy": row["method"] == "vcc"} for row in small()]
    text = written(stored(tmp_path / "runs", rows), tmp_path / "p.html")
    assert re.search(r"<td>vcc<td>[^<]*<td>×[\d.]+ faster†", text) and text.count("faster†") == 4


def test_methods_that_differ_in_parameters_are_labelled_by_these(tmp_path):
    [row] = small(methods=("vcc",), kinds=(("hub", "finetuned"),))
    rows = [row | {"row_id": f"k{k}", "method_params": json.dumps({"k": k, "mode": "x"})}
            for k in (8, 16)]  # fmt: skip
    [board] = boards(stored(tmp_path, rows))
    assert sorted(entry.label for entry in board.entries) == ["vcc k=16", "vcc k=8"]


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
    assert board.how == "paired on the same samples" and board.kind == "own"
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


def test_methods_keep_their_look_whatever_else_is_drawn():
    few, all_of_them = look.looks(["vcc", "zeta"]), look.looks([*look.LOOKS, "zeta", "alpha"])
    assert few["vcc"] == all_of_them["vcc"] == look.LOOKS["vcc"]
    assert [*all_of_them][:7] == [*look.LOOKS] and [*all_of_them][7:] == ["alpha", "zeta"]
    drawn = [(style.colour, style.marker) for style in all_of_them.values()]
    assert len(set(drawn)) == len(drawn)


# --- data --------------------------------------------------------------------------------------


def test_a_histogram_holds_every_timing():
    lo, hi, n, heights = pack._histogram([1_000_000] * 6 + [2_000_000] * 3 + [12_000_000])
    assert (lo, hi, n) == (1, 12, 10) and len(heights) == pack.BINS
    assert heights == "zi000000000" + heights[-1] and int(heights[-1], 36) == 6
    assert pack._histogram([5, 5, 5])[3] == "z" + "0" * 11
    assert pack._histogram([]) is None and pack._histogram(None) is None


@pytest.mark.parametrize(
    "command_line",
    [
        "bench run method=vcc task=qmsum length=4096 n=2",
        "bench run -m method=vcc,vanilla task=qmsum",
        "bench run method=vcc  task={task} length=40960",
        "",
    ],
)
def test_commands_come_back_as_they_were(command_line):
    row = {"command": command_line, "method": "vcc", "task": "qmsum", "model": "m",
           "length": 4096, "seed": 0, "device": "cpu"}  # fmt: skip
    template = pack._template(row)
    filled = template if "{task} " in command_line else template.format(**row)
    assert filled == command_line


def test_the_origin_of_every_row_is_in_the_page(tmp_path):
    rows = [*small()]
    found = data_of(written(stored(tmp_path / "runs", rows), tmp_path / "p.html"))
    columns, boards_of = found["rows"], found["boards"]
    by_id = {row["row_id"][: pack.ID]: row for row in rows}
    assert len(columns["id"]) == len(rows)
    for i, start in enumerate(columns["id"]):
        row, board = by_id[start], boards_of[columns["board"][i]]
        told = {**board, "method": columns["method"][i]}
        text = found["command"][columns["command"][i]]
        assert re.sub(r"\{(\w+)\}", lambda m, t=told: str(t[m[1]]), text) == row["command"]
        assert columns["code"][i].startswith(row["code_sha"][:12])
        assert found["host"][columns["host"][i]]["host_id"] == row["host_id"]
        assert (columns["times"][i] is None) == (not row.get("lat_samples_ns"))
        if row.get("ratio"):
            assert columns["ratioLo"][i] == pytest.approx(row["ratio_ci_lo"], rel=1e-3)


def test_ids_that_begin_alike_are_told_whole():
    assert pack._short_ids(["a" * 32, "b" * 32]) == ["a" * 12, "b" * 12]
    assert pack._short_ids(["a" * 31 + "1", "a" * 31 + "2"])[0] == "a" * 31 + "1"


# --- the command -------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_so(tmp_path, capsys):
    folder = stored(tmp_path / "runs", small())
    out = tmp_path / "new" / "page.html"
    code, lines, err = bench(capsys, "leaderboard", "--results", folder, "--out", out)
    assert code == 0 and not err
    assert re.fullmatch(r".*page.html: 32 rows on 4 boards, \d+ KiB", lines[0])
    assert out.read_text().startswith("<!doctype html>") and len([*out.parent.iterdir()]) == 1


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
    assert "--most 0" in refused(capsys, *where, "--most", "0")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "page.html"
    code, _, err = bench(capsys, "leaderboard", *where, "--out", out)
    assert code == 1 and len(err) == 1 and "cannot write to" in err[0]


def test_bad_files_are_set_aside_each_with_a_line(tmp_path, capsys, monkeypatch):
    folder = stored(tmp_path / "runs", small())
    (folder / "rows-torn.parquet").write_bytes(b"PAR1 no more")
    from bench import columns

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


def test_reports_load_no_torch_and_no_method(tmp_path):
    folder = stored(tmp_path / "runs", small())
    program = (
        "import sys\nfrom reports.leaderboard.command import main\n"
        f"main(['--results', {str(folder)!r}, '--out', {str(tmp_path / 'p.html')!r}])\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "print({'torch', 'transformers', 'datasets', 'methods'} & loaded)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip().splitlines()[-1:] == ["set()"], done.stderr


def test_the_same_rows_give_the_same_page(tmp_path):
    found = boards(stored(tmp_path, small()))
    assert page(found, "x") == page(boards(tmp_path), "x")
