"""Chance level: the best prediction that doesn't depend on the document."""

from dataclasses import replace

import pytest

from bench.request import plugins
from tasks.base import Data, Row
from tasks.metrics.chance import chance


def build(name: str, **given):
    return replace(plugins.build(plugins.conf("task", name)), **given)


def rows(*references: str, query: str = "") -> list[Row]:
    return [Row(str(i), query, "text", (one,)) for i, one in enumerate(references)]


def test_the_commonest_right_answer_counts():
    assert chance(build("narrativeqa"), rows("oz", "ur", "ur", "ur")) == 75
    # Words that answers have in common count too: "red hat" to all gives 100, 66.7 and 0.
    shared = chance(build("narrativeqa"), rows("red hat", "red cap", "sea"))
    assert shared == pytest.approx(100 * (1 + 0.5) / 3, abs=0.01)


def test_of_classes_it_is_the_commonest():
    task = build("lra_listops")
    assert chance(task, rows("9", "9", "0", "1")) == 50
    assert len(task.constants(rows("9"))) == 10
    # A sample of every fourth row would select the other class.
    pair = ["1", "0", "0", "0"] * 64
    assert chance(build("lra_text"), rows(*pair)) == 75


def test_of_choices_it_is_a_place():
    queries = ["Who?\n (A) a\n (B) b\n (C) c\n (D) d", "Where?\n (A) k\n (B) l\n (C) m\n (D) n"]
    given = [Row("1", queries[0], "text", ("c",)), Row("2", queries[1], "text", ("m",))]
    assert chance(build("quality"), given) == 100
    marked = [replace(row, query=task_query) for row, task_query in zip(given, (
        "[question]Who?[/question][ent]a[/ent][ent]c[/ent]",
        "[question]Where?[/question][ent]m[/ent]",
    ), strict=True)]  # fmt: skip
    # A row with fewer choices has its last one at the other positions.
    assert chance(build("quality", query="entities"), marked) == 100


@pytest.mark.parametrize("form", ["t5", "roberta", "plain"])
def test_wikihops_candidates_have_places(form):
    task = build("wikihop", form=form)
    found = task.load(Data(), 8, 512, 0).rows
    lists = task.constants(found)
    assert len(lists) == 8 + len({row.references for row in found})
    for at, row in enumerate(found):
        offered = [answers[at] for answers in lists[:8]]
        assert len(set(offered)) == 8 and row.references[0] in offered


def test_an_order_is_the_one_that_is_shown():
    task = build("zeroscrolls_book_sum_sort")
    assert chance(task, rows("1, 2, 3", "1, 3, 2")) == pytest.approx(
        100 * (1 + 2 / 3) / 2, abs=0.01
    )
    assert chance(task, rows("3, 2, 1")) == 100


def test_long_answers_are_tried_as_long_as_they_cost_little(monkeypatch):
    task = build("gov_report")
    tried = []
    monkeypatch.setattr(
        type(task), "score", lambda self, given, right: tried.append(given[0]) or {"value": 1.0}
    )
    chance(task, rows(*(f"{i} " * 300 for i in range(40))))
    assert len(tried) == 2  # found, and scored on all rows
    tried.clear()
    chance(task, rows(*(f"{i}" for i in range(40))))
    assert len(tried) == 17


def test_rows_from_all_over_choose_and_all_are_scored():
    task = build("narrativeqa")
    assert chance(task, rows(*["oz"] * 100, *["ur"] * 201)) == pytest.approx(
        100 * 201 / 301, abs=0.01
    )
