"""Summaries: shards in order, one sentence per line, the result for an empty article."""

import pytest

from tasks import metrics, summaries
from tasks.base import Data
from tests.made import task as build
from tests.tasks import parquet
from tests.tasks.words import Words


def news(i: int) -> dict:
    return {"article": f"Article {i}. It ends.", "highlights": "One .\nTwo .", "id": f"n{i}"}


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


def test_an_empty_article_is_no_error(tmp_path):
    words = Words()
    row = build("cnn_dailymail").parse(news(0) | {"article": ""}, "here", "validation", 0)
    assert words.spell(build("cnn_dailymail").encode(row, words, 64).ids) == "summarize </s>"


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
