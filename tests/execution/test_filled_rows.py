"""Inputs that are filled up to a length."""

import pytest

import bench
from bench.execution import arms
from bench.execution.arms import filled
from bench.measure import training_step
from bench.request.cell import Cell
from tasks.base import Encoded

QUERY = Encoded(
    ids=[1, 2, 10, 11, 12, 3], vip=[True, True, False, False, False, False], tokens_in=6
)


def test_a_row_is_continued_with_its_own_text():
    row = filled(QUERY, 11)
    assert row.ids == [1, 2, 10, 11, 12, 10, 11, 12, 10, 11, 3]
    assert row.vip == [True] * 2 + [False] * 9 and row.tokens_in == 6


def test_a_query_at_the_end_stays_there():
    row = filled(Encoded([5, 6, 7, 1, 2], [False, False, False, True, True], 5), 7)
    assert row.ids == [5, 6, 7, 5, 6, 1, 2] and row.vip == [False] * 5 + [True] * 2


def test_both_texts_of_a_pair_and_their_validity_are_filled():
    text = Encoded([1, 2, 3, 0], [False] * 4, 4, valid=[True, True, True, False])
    row = filled(Encoded([7, 8], [False] * 2, 2, second=text), 6)
    assert row.ids == [7, 7, 7, 7, 7, 8]
    assert row.second.ids == [1, 2, 3, 1, 2, 0] and row.second.valid == [True] * 5 + [False]


@pytest.mark.parametrize("row", [QUERY, Encoded([1, 2], [True, True], 2), Encoded([], [], 0)])
def test_a_row_that_is_long_enough_or_all_query_stays_as_it_is(row):
    assert filled(row, 6 if row is QUERY else 9) == row


def test_timed_inputs_have_exactly_the_length():
    asked = ("model=random-roberta-base", "task=hotpotqa", "length=400", "n=4", "measure=speed")
    cells = bench.compose(*asked), bench.compose(*asked, "fill=true")
    family = arms.load(cells[0], arms.vanilla())
    as_they_are, full = (
        [ids.shape[1] for ids, _ in arms.longest_inputs(cell, family, 4)] for cell in cells
    )
    assert max(as_they_are) < 400 and full == [400] * 4
    assert cells[0].key != cells[1].key
    assert Cell.from_json(cells[1].to_json()) == cells[1]
    assert (cells[0].columns["filled"], cells[1].columns["filled"]) == (None, True)


def test_rows_of_a_training_step_too():
    cell = bench.compose("model=random-lra", "task=lra_text", "length=96", "n=4", "batch=2",
                         "measure=training", "fill=true")  # fmt: skip
    family = training_step.start(cell)
    assert [batch.ids.shape for batch in training_step.rows(cell, family)] == [(2, 96)] * 4
