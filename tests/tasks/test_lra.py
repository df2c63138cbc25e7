"""LRA's configuration, ids and embedded rows."""

from dataclasses import replace
from itertools import islice

import pytest

from bench import plugins
from tasks import lra_embedded, metrics
from tasks.base import Data, DataError, Row
from tasks.lra import LISTOPS, Lra

NAMES = (
    "lra_listops", "lra_listops4000", "lra_text", "lra_retrieval", "lra_image", "lra_image64",
    "lra_pathfinder", "lra_pathfinder64", "lra_pathx",
)  # fmt: skip
# Small enough to be made for each test.
QUICK = ("lra_listops", "lra_text", "lra_retrieval", "lra_image64", "lra_pathfinder")


def task(name: str) -> Lra:
    return plugins.build(plugins.conf("task", name))


@pytest.mark.parametrize("name", NAMES)
def test_yaml_builds_the_task(name):
    made = task(name)
    assert isinstance(made, Lra) and made.benchmark == "lra" and made.metric == "accuracy"
    assert made.labels in (2, 10) and made.vocabulary in (16, 256, 257)
    assert made.length in (1024, 2000, 4000, 4096, 16384)
    assert set(made.files) == {"train", "validation", "test"}
    assert not made.hub or made.hub["unverified"]


@pytest.mark.parametrize("name", QUICK)
def test_embedded_rows_keep_the_contract(name):
    made = task(name)
    loaded = made.load(Data(), 6, made.length, 0)
    assert loaded == made.load(Data(), 6, made.length, 0) and loaded.n_available >= 6
    assert made.load(Data(), 2, made.length, 0).rows == loaded.rows[:2]
    assert made.load(Data(), 2, made.length, 1).sha256 != loaded.sha256
    train = made.load(Data(split="train"), 6, made.length, 0)
    assert not {row.document for row in train.rows} & {row.document for row in loaded.rows}
    for row in loaded.rows:
        assert int(row.references[0]) in range(made.labels)
        encoded = made.encode(row, None, made.length)
        assert len(encoded.ids) == len(encoded.vip) == encoded.tokens_in <= made.length
        assert max(encoded.ids) < made.vocabulary and encoded.valid is None
        assert [at for at, vip in enumerate(encoded.vip) if vip] == [0]
        cut = made.encode(row, None, 100)
        assert [*cut.ids] == [*encoded.ids][:100] and cut.tokens_in == encoded.tokens_in
    references = [row.references for row in loaded.rows]
    assert made.score([one for (one,) in references], references)["value"] == 100
    assert made.score([""] * 6, references)["value"] == 0
    assert set(made.score_each(["9" * 9, "é"], references[:2])) == {0.0}


def test_predictions_are_class_numbers_or_scores():
    found = metrics.compute("lra/text", "accuracy", [" 1\n", [0.1, 0.7]], [["1"], ["0"]])
    assert found["value"] == 50


def test_listops_ids_are_fixed():
    row = Row("a", "", "( ( ( [SM 0 ) 9 ) ] )", ("9",))
    assert task("lra_listops").encode(row, None, 9).ids == [4, 5, 14, 15]
    assert sorted(LISTOPS.values()) == list(range(1, 16))


def test_bytes_and_pixels():
    row = Row("a", "", "é\n", ("1",), second="ab")
    encoded = task("lra_retrieval").encode(row, None, 2)
    assert encoded.ids == [0xC3 + 1, 0xA9 + 1] and encoded.tokens_in == 3
    assert encoded.second.ids == [98, 99] and encoded.second.vip == [True, False]
    assert task("lra_image").encode(Row("a", "", "\0ÿ", ("1",)), None, 9).ids == [0, 255]


def test_black_is_padding_in_the_legacy_mask_only():
    row = Row("a", "", "\0\x07\0", ("1",))
    assert task("lra_image").encode(row, None, 9).valid is None
    legacy = replace(task("lra_image"), lra_mask="legacy")
    assert legacy.encode(row, None, 9).valid == [False, True, False]
    with pytest.raises(ValueError, match="lra_mask=x; accepted: explicit, legacy"):
        replace(legacy, lra_mask="x")


def test_trees_fit_into_a_short_length():
    made = task("lra_listops")
    for row in made.load(Data(), 8, 64, 0).rows:
        assert made.encode(row, None, 64).tokens_in <= 64


@pytest.mark.parametrize("name", ["lra_image", "lra_pathfinder_easy"])
def test_images_are_halved_to_a_short_length(name):
    made = task(name)
    for row in made.load(Data(), 4, 256, 0).rows:
        encoded = made.encode(row, None, 256)
        assert len(encoded.ids) == encoded.tokens_in == 256 and len(set(encoded.ids)) > 4


def test_plain_reviews_use_the_words_of_their_sentiment():
    made = task("lra_text_easy")
    for found in islice(lra_embedded.text(made, "train", 4000, 0), 20):
        good = sum(found.content.count(word) for word in lra_embedded.GOOD)
        bad = sum(found.content.count(word) for word in lra_embedded.BAD)
        assert (good > bad) == bool(found.label)


def test_words_of_a_review_dont_tell_its_sentiment():
    """The same good and bad words, as often for either label."""
    made = task("lra_text")
    good = {0: 0, 1: 0}
    every = {0: 0, 1: 0}
    for found in islice(lra_embedded.text(made, "train", 4000, 0), 200):
        for word in found.content.replace(".", " ").replace(",", " ").split():
            good[found.label] += word in lra_embedded.GOOD
            every[found.label] += word in lra_embedded.GOOD or word in lra_embedded.BAD
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
        task("lra_listops").load(data, n, 2000, 0)
    assert message in str(raised.value)
