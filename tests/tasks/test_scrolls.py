"""SCROLLS: layouts, local, embedded and real rows, how they are read and encoded."""

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tasks import scrolls
from tasks.base import Data, DataError, Row
from tasks.generators import stories
from tasks.loading import reader
from tests.conftest import REAL_ROWS
from tests.made import task as build
from tests.tasks.test_sources import archive
from tests.tasks.words import Words

EMBEDDED = Data()


def folder(path: Path, rows: list, member="qmsum", split="validation") -> Data:
    """A local copy of the benchmark with one split; a row that is text is written unchanged."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (path / "scrolls").mkdir(exist_ok=True)
    place = path / "scrolls" / f"{member}.zip"
    archive(place, "\n".join(lines), f"{member}/{split}.jsonl")
    return Data("local", path, split)


def row(name: str, text: str = "Who?\n\nA text.", output: object = "Nobody", pid: int = 0) -> dict:
    return {"id": name, "pid": f"{name}_{pid}", "input": text, "output": output}


def load(data: Data, n: int | None = None, name: str = "qmsum"):
    return build(name).load(data, n, 1024, 0)


FOUR = "Which?\n\n (A) one\n (B) two\n (C) three\n (D) four"


def test_the_query_is_what_stands_before_the_first_blank_line():
    assert scrolls.paragraph("Who? \n\n\nOne.\n\nTwo.") == ("Who?", "One.\n\nTwo.")


@pytest.mark.parametrize("between", ["\n\n\n", "\n\n", "\n"])
def test_options_belong_to_the_query(between):
    article = "An article.\n (A) not an option"
    assert scrolls.options(f"{FOUR}{between}{article}") == (FOUR, article)


def test_an_option_in_a_question_is_not_an_option_line():
    asked = FOUR.replace("Which?", "Is (A) or (D) meant?")
    assert scrolls.options(f"{asked}\n\n\nText") == (asked, "Text")


def test_a_large_split_is_read_only_as_far_as_n_needs(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "READ_WHOLE_BYTES", 0)
    data = folder(tmp_path, [row("a"), row("a", output="No one", pid=1), row("b"), "broken"])
    loaded = load(data, 1)
    assert loaded.rows[0].references == ("Nobody", "No one")
    assert loaded.n_available == 272  # as the YAML says, since the rest wasn't read
    place = tmp_path / "scrolls" / "qmsum.zip"
    assert loaded.sha256 == hashlib.sha256(place.read_bytes()).hexdigest()
    with pytest.raises(DataError, match="line 4: broken json"):
        load(data)


def test_embedded_rows_look_like_their_benchmark():
    r = load(EMBEDDED, 1, "quality").rows[0]
    lines = r.query.split("\n")
    assert [line[:5] for line in lines[2:]] == [" (A) ", " (B) ", " (C) ", " (D) "]
    assert r.references[0] in [line[5:] for line in lines[2:]]
    labels = {r.references[0] for r in load(EMBEDDED, 12, "contract_nli").rows}
    assert labels == set(stories.LABELS)
    assert all(r.query == "summarize" for r in load(EMBEDDED, 3, "gov_report").rows)
    assert all(len(r.references[0].split()) > 3 for r in load(EMBEDDED, 3, "qmsum").rows)


def test_a_length_without_room_for_a_story_is_refused():
    with pytest.raises(DataError, match="length=100 is too short for a story: 146 at least"):
        build("qmsum").load(EMBEDDED, 1, 100, 0)


LONG = Row("a", "who is it ?", "one two three four five six", ("x",))


def test_query_document_end():
    words = Words()
    found = build("qmsum").encode(LONG, words, 64)
    assert words.spell(found.ids) == "who is it ? one two three four five six </s>"
    assert found.vip == [True] * 4 + [False] * 7 and found.tokens_in == 11


@pytest.mark.parametrize(("side", "kept"), [("right", "one two three"), ("left", "four five six")])
def test_the_document_is_cut_and_the_query_is_not(side, kept):
    words = Words()
    found = replace(build("qmsum"), truncation_side=side).encode(LONG, words, 8)
    assert words.spell(found.ids) == f"who is it ? {kept} </s>"
    assert found.tokens_in == 11 and sum(found.vip) == 4


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_query_may_take_all_but_not_more(side):
    task, words = replace(build("qmsum"), truncation_side=side), Words()
    assert words.spell(task.encode(LONG, words, 5).ids) == "who is it ? </s>"
    with pytest.raises(DataError, match="row a: its query has 4 tokens, more than fit in length=4"):
        task.encode(LONG, words, 4)


@pytest.mark.parametrize(("name", "count"), [("quality", 101), ("qasper", 86), ("gov_report", 7)])
def test_real_rows(name, count):
    task = build(name)
    path = REAL_ROWS / "scrolls" / f"{task.member}.zip"
    if not path.is_file():
        pytest.skip(f"no {path}")
    loaded = task.load(Data("local", REAL_ROWS), None, 16384, 0)
    assert len(loaded.rows) == loaded.n_available == count
    with zipfile.ZipFile(path) as opened, opened.open(f"{task.member}/validation.jsonl") as lines:
        inputs = {(found := json.loads(line))["id"]: found["input"] for line in lines}
    letters = Words(cut=list)
    for r in loaded.rows:
        text = inputs[r.id]
        assert text.endswith(r.document) and len(r.document) > 1000
        assert r.query == "summarize" if name == "gov_report" else text.startswith(r.query)
        if name == "quality":
            assert r.references[0] in r.query and r.query.count("\n") == 5
        found = task.encode(replace(r, document=r.document[:500]), letters, 8192)
        vip = [i for i, kept in zip(found.ids, found.vip, strict=True) if kept]
        assert letters.spell(vip, "") == r.query
    assert task.load(Data("local", REAL_ROWS), 5, 16384, 0).rows == loaded.rows[:5]
