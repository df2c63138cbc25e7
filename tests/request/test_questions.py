"""`question=after` and `turns=N`: supported models, the cell's key, a row for each question."""

import re

import pytest

import bench
from bench.execution.arms import rows_without_references
from bench.request.cell import Cell

LLAMA = ("model=embedded-llama", "task=ruler_niah_multikey_2", "length=1024", "n=2", "threads=1")


def test_the_options_are_in_the_key_where_they_are_given():
    plain = bench.compose(*LLAMA)
    assert bench.compose(*LLAMA, "question=null", "turns=1").key == plain.key
    assert not {"question", "turns"} & plain._content().keys()
    others = [bench.compose(*LLAMA, *more) for more in (
        ["question=after"], ["turns=3"], ["question=after", "turns=3"], ["turns=2"])]  # fmt: skip
    assert len({cell.key for cell in (plain, *others)}) == 5
    assert len({cell.prediction_key for cell in (plain, *others)}) == 5
    assert [plain.columns[name] for name in ("question", "turns")] == [None, None]
    assert [others[2].columns[name] for name in ("question", "turns")] == ["after", 3]
    assert Cell.from_json(others[2].to_json()) == others[2]


@pytest.mark.parametrize("task", ["ruler_niah_multikey_1", "ruler_niah_multikey_2",
                                  "ruler_niah_multikey_3", "longeval_lines"])  # fmt: skip
def test_each_turn_asks_for_another_answer_that_its_text_holds(task):
    cell = bench.compose("model=embedded-llama", f"task={task}", "length=1024", "n=2", "turns=3")
    rows = cell.rows().rows
    assert len(rows) == 6 and len({row.id for row in rows}) == 6
    for text in (rows[:3], rows[3:]):
        assert len({row.document for row in text}) == 1
        assert len({row.query for row in text}) == len({row.references for row in text}) == 3
        for row in text:
            (asked,) = re.findall(r"(?:line|for) (\S+?)(?:\?| mentioned)", row.query)
            said = [line for line in re.split(r"(?<=\.) |\n", row.document) if asked in line]
            assert len(said) == 1 and row.references[0] in said[0]
    assert all(not (row.references or row.further) for row in rows_without_references(cell))


def test_the_first_turn_is_what_a_single_one_asks():
    for task in ("longeval_lines", "ruler_niah_multikey_1"):
        words = ("model=embedded-llama", f"task={task}", "length=1024", "n=1")
        one, three = (bench.compose(*words, *more).rows().rows for more in ([], ["turns=3"]))
        (single,), (first, *_) = one, three
        for name in ("id", "query", "document"):
            assert getattr(first, name) == getattr(single, name)
