"""Chance level: the best prediction that doesn't depend on the document."""

from dataclasses import replace

import pytest

from tasks.base import Data, Row
from tasks.metrics.chance import chance
from tests.made import task as build


def rows(*references: str, query: str = "") -> list[Row]:
    return [Row(str(i), query, "text", (one,)) for i, one in enumerate(references)]


def test_the_commonest_right_answer_of_other_rows_counts():
    others = rows("oz", "ur", "ur", "ur")
    assert chance(build("narrativeqa"), rows("ur", "oz"), others) == 50
    assert chance(build("narrativeqa"), rows("mu", "nu"), others) == 0
    # Words that answers have in common count too: "red hat" to all gives 100, 66.7 and 0.
    shared = chance(build("narrativeqa"), rows("red fox"), rows("red hat", "red cap", "sea"))
    assert shared == 50


def test_answers_of_the_rows_themselves_do_not_help():
    """With the best of the rows' own answers, a third of three different rows would be right."""
    others = rows(*["somewhere else"] * 16)
    for name in ("narrativeqa", "gov_report"):
        assert chance(build(name), rows("a b c", "d e f", "g h i"), others) == 0


def test_of_classes_it_is_the_commonest():
    task = build("lra_listops")
    assert chance(task, rows("9", "9", "0", "1"), rows("9", "9", "1")) == 50
    assert len(task.constants(rows("9"))) == 10
    assert chance(task, rows("9", "9", "0", "1"), rows("5")) == 10  # at least a guess
    # All of the other rows choose: the first 32 would select the other class.
    pair = rows(*["1"] * 32, *["0"] * 33)
    assert chance(build("lra_text"), rows("0", "0", "1"), pair) == pytest.approx(200 / 3, abs=0.01)


def test_of_choices_it_is_a_place():
    queries = ["Who?\n (A) a\n (B) b\n (C) c\n (D) d", "Where?\n (A) k\n (B) l\n (C) m\n (D) n"]
    given = [Row("1", queries[0], "text", ("c",)), Row("2", queries[1], "text", ("m",))]
    assert chance(build("quality"), given, given[::-1]) == 100
    other = [replace(given[0], references=("b",))]
    assert chance(build("quality"), given, other) == 25  # no better than a guess
    marked = [replace(row, query=task_query) for row, task_query in zip(given, (
        "[question]Who?[/question][ent]a[/ent][ent]c[/ent]",
        "[question]Where?[/question][ent]m[/ent]",
    ), strict=True)]  # fmt: skip
    # A row with fewer choices has its last one at the other positions.
    assert chance(build("quality", query="entities"), marked, marked) == 100


@pytest.mark.parametrize("form", ["t5", "roberta", "plain"])
def test_wikihops_candidates_have_places(form):
    task = build("wikihop", form=form)
    found = task.load(Data(), 8, 512, 0).rows
    answers = task.constants(found)
    assert len(answers) == 8 + len({row.references for row in found})
    for row in found:
        offered = [answer(row) for answer in answers[:8]]
        assert len(set(offered)) == 8 and row.references[0] in offered


def test_an_order_is_the_one_that_is_shown():
    task = build("zeroscrolls_book_sum_sort")
    others = rows("1, 2, 3")
    expected = pytest.approx(100 * (1 + 2 / 3) / 2, abs=0.01)
    assert chance(task, rows("1, 2, 3", "1, 3, 2"), others) == expected
    assert chance(task, rows("3, 2, 1"), rows("3, 2, 1")) == 100


def test_long_answers_are_tried_as_long_as_they_cost_little(monkeypatch):
    task = build("gov_report")
    tried = []
    monkeypatch.setattr(
        type(task), "score", lambda self, given, right: tried.append(given[0]) or {"value": 1.0}
    )
    chance(task, rows("a"), rows(*(f"{i} " * 300 for i in range(40))))
    assert len(tried) == 2  # found, and scored on the rows themselves
    tried.clear()
    chance(task, rows("a"), rows(*(f"{i}" for i in range(40))))
    assert len(tried) == 17
