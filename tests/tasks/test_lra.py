"""LRA's configuration, ids and embedded rows."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from tasks.base import Data, Row
from tasks.generators import lra_rows
from tasks.lra import LISTOPS
from tests.made import task as build


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


@pytest.mark.parametrize("name", ["lra_image", "lra_pathfinder_easy"])
def test_images_are_halved_to_a_short_length(name):
    task = build(name)
    for row in task.load(Data(), 4, 256, 0).rows:
        encoded = task.encode(row, None, 256)
        assert len(encoded.ids) == encoded.tokens_in == 256 and len(set(encoded.ids)) > 4


def test_words_of_a_review_dont_tell_its_sentiment():
    """The same good and bad words, equally often for either label."""
    task = build("lra_text")
    good, every = Counter(), Counter()
    for sample in islice(lra_rows.text(task, "train", 4000, 0), 200):
        for word in sample.document.replace(".", " ").replace(",", " ").split():
            good[sample.label] += word in lra_rows.GOOD
            every[sample.label] += word in lra_rows.GOOD or word in lra_rows.BAD
    assert abs(good[0] / every[0] - good[1] / every[1]) < 0.04
