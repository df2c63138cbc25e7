"""LRA's configuration, ids and embedded rows."""

from dataclasses import replace
from itertools import islice

import pytest

from bench.request import plugins
from tasks import metrics
from tasks.base import Data, DataError, Row
from tasks.generators import lra_rows
from tasks.lra import LISTOPS, Lra

NAMES = (
    "lra_listops", "lra_listops4000", "lra_text", "lra_retrieval", "lra_image", "lra_image64",
    "lra_pathfinder", "lra_pathfinder64", "lra_pathx",
)  # fmt: skip
# Fast enough for every test.
QUICK = ("lra_listops", "lra_text", "lra_retrieval", "lra_image64", "lra_pathfinder")


def build(name: str) -> Lra:
    return plugins.build(plugins.conf("task", name))


@pytest.mark.parametrize("name", NAMES)
def test_yaml_builds_the_task(name):
    task = build(name)
    assert isinstance(task, Lra) and task.benchmark == "lra" and task.metric == "accuracy"
    assert task.labels in (2, 10) and task.vocabulary in (16, 256, 257)
    assert task.length in (1024, 2000, 4000, 4096, 16384)
    assert set(task.files) == {"train", "validation", "test"}
    assert not task.hub or task.hub["unverified"]


@pytest.mark.parametrize("name", QUICK)
def test_embedded_rows_are_encoded(name):
    task = build(name)
    for row in task.load(Data(), 4, task.length, 0).rows:
        encoded = task.encode(row, None, task.length)
        assert len(encoded.ids) == len(encoded.vip) == encoded.tokens_in <= task.length
        assert max(encoded.ids) < task.vocabulary and encoded.valid is None
        assert [at for at, vip in enumerate(encoded.vip) if vip] == [0]
        cut = task.encode(row, None, 100)
        assert [*cut.ids] == [*encoded.ids][:100] and cut.tokens_in == encoded.tokens_in


def test_predictions_are_class_numbers_or_scores():
    found = metrics.compute("lra/text", "accuracy", [" 1\n", [0.1, 0.7]], [["1"], ["0"]])
    assert found["value"] == 50


def test_listops_ids_are_fixed():
    row = Row("a", "", "( ( ( [SM 0 ) 9 ) ] )", ("9",))
    assert build("lra_listops").encode(row, None, 9).ids == [4, 5, 14, 15]
    assert sorted(LISTOPS.values()) == list(range(1, 16))


def test_bytes_and_pixels():
    row = Row("a", "", "é\n", ("1",), second="ab")
    encoded = build("lra_retrieval").encode(row, None, 2)
    assert encoded.ids == [0xC3 + 1, 0xA9 + 1] and encoded.tokens_in == 3
    assert encoded.second.ids == [98, 99] and encoded.second.vip == [True, False]
    assert build("lra_image").encode(Row("a", "", "\0ÿ", ("1",)), None, 9).ids == [0, 255]


def test_black_is_padding_in_the_legacy_mask_only():
    row = Row("a", "", "\0\x07\0", ("1",))
    assert build("lra_image").encode(row, None, 9).valid is None
    legacy = replace(build("lra_image"), lra_mask="legacy")
    assert legacy.encode(row, None, 9).valid == [False, True, False]
    with pytest.raises(ValueError, match="lra_mask=x; accepted: explicit, legacy"):
        replace(legacy, lra_mask="x")


def test_trees_fit_into_a_short_length():
    task = build("lra_listops")
    for row in task.load(Data(), 8, 64, 0).rows:
        assert task.encode(row, None, 64).tokens_in <= 64


@pytest.mark.parametrize("name", ["lra_image", "lra_pathfinder_easy"])
def test_images_are_halved_to_a_short_length(name):
    task = build(name)
    for row in task.load(Data(), 4, 256, 0).rows:
        encoded = task.encode(row, None, 256)
        assert len(encoded.ids) == encoded.tokens_in == 256 and len(set(encoded.ids)) > 4


def test_plain_reviews_use_the_words_of_their_sentiment():
    task = build("lra_text_easy")
    for sample in islice(lra_rows.text(task, "train", 4000, 0), 20):
        good = sum(sample.document.count(word) for word in lra_rows.GOOD)
        bad = sum(sample.document.count(word) for word in lra_rows.BAD)
        assert (good > bad) == bool(sample.label)


def test_words_of_a_review_dont_tell_its_sentiment():
    """The same good and bad words, equally often for either label."""
    task = build("lra_text")
    good = {0: 0, 1: 0}
    every = {0: 0, 1: 0}
    for sample in islice(lra_rows.text(task, "train", 4000, 0), 200):
        for word in sample.document.replace(".", " ").replace(",", " ").split():
            good[sample.label] += word in lra_rows.GOOD
            every[sample.label] += word in lra_rows.GOOD or word in lra_rows.BAD
    assert abs(good[0] / every[0] - good[1] / every[1]) < 0.04


@pytest.mark.parametrize(
    ("data", "n", "message"),
    [
        (Data(), 0, "n=0; expected 1 or more"),
        (Data(split="dev"), 1, "no split 'dev'; it has train, validation, test"),
        (Data("disk"), 1, "no source 'disk'; accepted: embedded, local, hub"),
        (Data("hub"), 1, "no hub source"),
        (Data("local"), 1, "needs data.dir"),
    ],
)
def test_wrong_requests(data, n, message):
    with pytest.raises(DataError) as raised:
        build("lra_listops").load(data, n, 2000, 0)
    assert message in str(raised.value)
