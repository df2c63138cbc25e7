"""Summaries and ELI5: columns of all sources, one sentence per line, references, local files."""

import json

import pytest

from tasks import metrics, summaries
from tasks.base import Data
from tests.made import task as build
from tests.tasks import parquet
from tests.tasks.words import Words


def news(i: int) -> dict:
    return {"article": f"Article {i}. It ends.", "highlights": "One .\nTwo .", "id": f"n{i}"}


# --- rows -------------------------------------------------------------------------------------


def test_parquet_shards_are_read_in_order(tmp_path):
    place = tmp_path / "cnn_dailymail" / "3.0.0"
    for shard, ids in enumerate(((0, 1), (2,))):
        parquet.write(place / f"validation-0000{shard}-of-00002.parquet", [news(i) for i in ids])
    parquet.write(place / "train-00000-of-00001.parquet", [news(9)])
    loaded = build("cnn_dailymail").load(Data("local", tmp_path), None, 512, 0)
    assert [row.id for row in loaded.rows] == ["n0", "n1", "n2"] and loaded.n_available == 3
    row = loaded.rows[2]
    assert (row.query, row.document) == ("summarize", "Article 2. It ends.")
    one = build("cnn_dailymail").load(Data("local", tmp_path, "train"), None, 512, 0)
    assert one.sha256 != loaded.sha256 and len(loaded.sha256) == 64


def test_turns_are_joined_by_blank_lines():
    task = build("mediasum")
    row = task.parse({"document": ["A: Hi.", "B: Ho."], "summary": "x"}, "here", "train", 0)
    assert row.document == "A: Hi.\n\nB: Ho."
    task = build(
        "mediasum", columns={"document": "utt", "speakers": "speaker", "summary": "summary"}
    )
    given = {"utt": ["Hi.", "Ho."], "speaker": ["A", "B"], "summary": "x"}
    assert task.parse(given, "here", "train", 0).document == "A: Hi.\n\nB: Ho."


def test_an_empty_article_is_no_error(tmp_path):
    words = Words()
    row = build("cnn_dailymail").parse(news(0) | {"article": ""}, "here", "validation", 0)
    assert words.spell(build("cnn_dailymail").encode(row, words, 64).ids) == "summarize </s>"


# --- ROUGE ------------------------------------------------------------------------------------


def test_sentences():
    text = 'It cost $3.5 a day. "Really?" she said. In the U.S. 3 did. end'
    assert summaries.sentences(text)[:2] == ["It cost $3.5 a day.", '"Really?" she said.']
    assert summaries.lines("One. Two.") == "One.\nTwo." == summaries.lines("One.\nTwo.")
    assert summaries.lines("One. Two.\nThree.") == "One. Two.\nThree."
    assert summaries.lines("") == ""


def test_predictions_need_no_lines_of_their_own():
    right = [["The cat sat here. A dog ran away."]]
    said = "A dog ran away. The cat sat here."
    found = build("cnn_dailymail").score([said], right)
    assert found["rougeLsum"] == found["value"] == 100 and found["rougeL"] < 60
    assert metrics.compute("cnn_dailymail", "rouge_stemmed", [said], right)["rougeLsum"] < 60
    assert build("cnn_dailymail").score_each([said], right) == [pytest.approx(100)]


# --- ELI5 -------------------------------------------------------------------------------------

KILT = {
    "id": "q1", "input": "Why is it so?",
    "output": [{"answer": "Because."}, {"provenance": [{"title": "x"}]}, {"answer": "So it is."}],
}  # fmt: skip
CATEGORY = {
    "q_id": "c1", "title": "Why?", "selftext": "It is odd.", "answers": {"text": ["Because.", ""]},
}  # fmt: skip


def test_kilt_rows_have_all_answers_and_no_document():
    row = build("eli5").parse(KILT, "here", "validation", 0)
    assert row.references == ("Because.", "So it is.") and row.document == ""
    assert build("eli5").parse(KILT | {"document": "A text."}, "", "train", 0).document == "A text."
    words = Words()
    found = build("eli5").encode(row, words, 64)
    assert words.vip(found) == "Why is it so?"


def test_category_rows():
    row = build("eli5_category").parse(CATEGORY, "here", "validation", 0)
    assert (row.id, row.query, row.references) == ("c1", "Why?\nIt is odd.", ("Because.",))


def test_kilt_files_are_found(tmp_path):
    (tmp_path / "kilt").mkdir()
    (tmp_path / "kilt" / "eli5-dev-kilt.jsonl").write_text(json.dumps(KILT))
    (row,) = build("eli5").load(Data("local", tmp_path), None, 512, 0).rows
    found = build("eli5").score(["So it is."], [row.references])
    assert found["value"] == pytest.approx(100, abs=1e-3) and found["f1"] == 1
