"""The page as a file: its size, its policy, hostile rows, and the data that its script reads."""

import base64
import hashlib
import json
import re

import pytest

from reports.leaderboard.page import ASSETS
from tests.reports import made
from tests.reports.leaderboard.pages import (
    ONE,
    Tags,
    data_of,
    hostile_rows,
    packed_in,
    small,
    stored,
    written,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The page of 2,000 rows of every kind."""
    folder = tmp_path_factory.mktemp("rows")
    rows = [row for _, row in zip(range(2000), made.rows(seeds=(0, 1)), strict=False)]
    return written(stored(folder / "runs", rows), folder / "page.html")


def test_2000_rows_take_at_most_300_kb(whole):
    assert len(whole.encode()) <= 300_000
    assert len(data_of(whole)["rows"]["id"]) == 2000
    assert re.search(r"\d+ ended without a result", whole)


def test_nothing_but_the_file_itself_is_ever_loaded_or_run(whole):
    tags = Tags(whole).found
    assert not {tag for tag, _ in tags} & {"link", "img", "iframe", "object", "base", "embed"}
    papers = [a["href"] for tag, a in tags if tag == "a"]
    assert papers and all(re.fullmatch(r"https://arxiv\.org/abs/[\d.]+", link) for link in papers)
    for tag, attributes in tags:
        if tag == "a":  # a link loads nothing until it is followed
            assert set(attributes) == {"href", "rel"}
            continue
        loading = {"src", "href", "action", "style", "srcset"} & set(attributes)
        assert not loading and not [n for n in attributes if n.startswith("on")], (tag, attributes)
    rest = whole.replace("https://arxiv.org/abs/", "")
    assert "http:" not in rest and "https:" not in rest


def source(text):
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_the_inlined_style_and_script_and_nothing_else(whole):
    [policy] = [a["content"] for t, a in Tags(whole).found
                if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    [style] = re.findall(r"<style>(.*?)</style>", whole, re.DOTALL)
    [loader] = re.findall(r"<script>(.*?)</script>", whole, re.DOTALL)
    assert rules["style-src"] == source(style)
    assert rules["script-src"] == f"{source(loader)} {source(packed_in(whole, 'code'))}"
    assert set(rules) == {"default-src", "base-uri", "form-action", "style-src", "script-src"}


def test_the_script_writes_no_html():
    script = "".join(part.read_text() for part in ASSETS.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script)


def test_every_row_is_in_the_table_for_readers_without_javascript(whole):
    plain = re.search("<noscript>(.*)</noscript>", whole, re.S)[1]
    assert len(re.findall("<tr><td>", plain)) == 2000
    words = " ".join(Tags(plain).texts)
    for expected in ("vcc", "0.5", "faster", "±", "÷ vanilla’s", "4,096 tokens", "hub rows, n =",
                     "pretrained-swap weights", "cpu float32", "out of memory"):  # fmt: skip
        assert expected in words


def test_hostile_names_ids_and_messages_stay_text(tmp_path):
    text = written(stored(tmp_path / "runs", hostile_rows()), tmp_path / "page.html")
    parsed = Tags(text)
    tags = [tag for tag, _ in parsed.found]
    assert tags.count("script") == 3 and "img" not in tags
    assert "<script>alert(1)" in "".join(parsed.texts)
    found = data_of(text)
    assert len(found["rows"]["id"]) == 4
    assert found["boards"][0]["task"].endswith("</script>")
    assert max(len(str(value)) for value in found["rows"]["method"]) < 700


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_figures_that_are_no_numbers_are_shown_as_none(tmp_path, value):
    [row] = small(methods=("vcc",), **ONE)
    figures = ("value", "ci_lo", "ci_hi", "lat_ratio", "lat_ratio_ci_hi", "mem_ratio", "fid_rel_l2")
    text = written(stored(tmp_path / "r", [row | dict.fromkeys(figures, value)]), tmp_path / "p")
    assert "nan" not in " ".join(Tags(text).texts) and "inf" not in "".join(Tags(text).texts)
    assert "<tr><td>vcc</table>" in text


def test_a_row_of_few_columns_is_shown(tmp_path):
    bare = {"cell_key": "x", "status": "skipped", "row_id": "bare"}
    probe = bare | {"cell_key": "y", "row_id": "probe", "status": "ok", "max_length_fit": 65536}
    text = written(stored(tmp_path / "r", [bare, probe]), tmp_path / "p")
    assert "no task" in text and "skipped" in text
    assert "65,536 tokens" in data_of(text)["rows"]["longest"]


def test_a_histogram_holds_every_timing(tmp_path):
    [row] = small(methods=("vcc",), **ONE)
    times = [1_000_000] * 6 + [2_000_000] * 3 + [12_000_000]
    rows = [row | {"lat_samples_ns": times, "lat_base_samples_ns": [5, 5, 5]}]
    columns = data_of(written(stored(tmp_path / "r", rows), tmp_path / "p.html"))["rows"]
    assert columns["times"] == [[1, 12, 10, "40000001"]]
    assert columns["baseTimes"][0][2:] == [3, "4" + "0" * 7]


@pytest.mark.parametrize(
    "command_line",
    [
        "bench run method=vcc task=narrativeqa length=4096 n=2",
        "bench run -m method=vcc,vanilla task=narrativeqa",
        "bench run method=vcc  task={task} length=40960",
    ],
)
def test_commands_come_back_as_they_were(tmp_path, command_line):
    [row] = small(methods=("vcc",), **ONE)
    rows = [row | {"command": command_line}]
    data = data_of(written(stored(tmp_path / "r", rows), tmp_path / "p.html"))
    [template] = data["command"]
    filled = template if "{task} " in command_line else template.format(**row)
    assert filled == command_line


def test_the_origin_of_every_row_is_in_the_page(tmp_path):
    rows = [*small()]
    found = data_of(written(stored(tmp_path / "runs", rows), tmp_path / "p.html"))
    columns, boards_of = found["rows"], found["boards"]
    letters = len(columns["id"][0])
    by_id = {row["row_id"][:letters]: row for row in rows}
    assert len(columns["id"]) == len(rows)
    for i, start in enumerate(columns["id"]):
        row, board = by_id[start], boards_of[columns["board"][i]]
        told = {**board, "method": columns["method"][i]}
        text = found["command"][columns["command"][i]]
        assert re.sub(r"\{(\w+)\}", lambda m, t=told: str(t[m[1]]), text) == row["command"]
        assert columns["code"][i].startswith(row["code_sha"][:12])
        assert found["host"][columns["host"][i]]["host_id"] == row["host_id"]
        assert (columns["times"][i] is None) == (not row.get("lat_samples_ns"))
        if row.get("lat_ratio"):
            assert columns["ratioLo"][i] == pytest.approx(row["lat_ratio_ci_lo"], rel=1e-3)


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        (("a" * 32, "b" * 32), {"a" * 8, "b" * 8}),
        (("a" * 32, "a" * 9 + "b"), {"a" * 12, "a" * 9 + "b"}),
        (("a" * 31 + "1", "a" * 31 + "2"), {"a" * 31 + "1", "a" * 31 + "2"}),
    ],
)
def test_ids_are_as_long_as_tells_them_apart(tmp_path, ids, shown):
    rows = small(methods=("vcc", "vanilla"), **ONE)
    rows = [row | {"row_id": name} for row, name in zip(rows, ids, strict=True)]
    text = written(stored(tmp_path / "r", rows), tmp_path / "p.html")
    assert set(data_of(text)["rows"]["id"]) == shown


def test_a_score_of_weights_trained_for_it_is_marked_and_says_its_training(tmp_path):
    methods = ("vanilla", "bigbird", "vcc")
    rows = [*small(methods=methods, **ONE)]
    training = {"from": "t5", "steps": 200, "hours": 0.5, "supervision": "answers"}
    rows[1] |= {"quality_comparison": "same weights"}
    rows[2] |= {"quality_comparison": "each trained for itself", "training": json.dumps(training)}
    text = written(stored(tmp_path / "runs", rows), tmp_path / "p.html")
    assert "§: method and vanilla were trained separately" in text
    data = data_of(text)
    told = [{} if i is None else data["text"][i] for i in data["rows"]["text"]]
    told = dict(zip(data["rows"]["method"], told, strict=True))
    assert told["bigbird"]["compared"] == "same weights" and "compared" not in told["vanilla"]
    assert told["vcc"]["compared"] == "each trained for itself"
    assert told["vcc"]["training"] == "from t5, 200 steps, 30 min, answers"
    assert told["vcc"]["base_training"] == "not recorded"
    assert data["rows"]["ownWeights"].count(True) == 1


def test_a_score_at_chance_is_marked(tmp_path):
    rows = [*small(methods=("vanilla", "vcc"), **ONE)]
    rows[1] |= {"chance": 99.0, "at_chance": True}
    text = written(stored(tmp_path / "runs", rows), tmp_path / "p.html")
    assert re.search(r"<tr><td>vcc<td>[\d.±]+‡", text)
    columns = data_of(text)["rows"]
    assert columns["atChance"].count(True) == 1 and 99 in columns["chance"]


def test_the_ratio_to_exact_attention_by_the_same_engine_is_there(tmp_path):
    rows = [*small(methods=("bigbird", "vcc"), **ONE)]
    rows[0] |= {"lat_verdict": "faster", "lat_ratio": 0.7, "engine_ratio": 1.0,
                "engine_verdict": "same"}  # fmt: skip
    text = written(stored(tmp_path / "runs", rows), tmp_path / "p.html")
    found = data_of(text)
    columns = found["rows"]
    place = columns["method"].index("bigbird")
    assert columns["engine"][place] == 1 and columns["engineVerdict"][place] == "same"
    assert columns["engineOnly"][place] == "by its engine only"
    assert columns["engine"][1 - place] is None  # on torch it is the ratio to vanilla
    texts = [found["text"][number] for number in columns["text"]]
    assert {t["engine_kernel"] for t in texts} == {"torch", "native avx512 float32"}
