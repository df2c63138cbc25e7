"""ZeroSCROLLS: official prompts, their truncation and chat variant."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from bench.request import plugins
from tasks.base import Data, DataError
from tasks.loading.prompts import Prompt
from tasks.zeroscrolls import ZeroScrolls
from tests.tasks.words import Words

NAMES = sorted(name for name in plugins.available("task") if name.startswith("zeroscrolls_"))
DOCUMENT = "Do this.\n\nStory:\none two three four\n\n"
QUERY, ENDING, CUT = "Question:\nwho ?", "\n\nAnswer:\n", "[omitted]\n\n"


def build(member: str, **given) -> ZeroScrolls:
    task = plugins.build(plugins.conf("task", f"zeroscrolls_{member.replace('tive_qa', 'tiveqa')}"))
    return replace(task, **given)


def record(**given) -> dict:
    start, stop = len(DOCUMENT), len(DOCUMENT + QUERY)
    return {
        "id": "a", "pid": "a_0", "input": DOCUMENT + QUERY + ENDING, "output": "me",
        "document_start_index": 10, "document_end_index": start - 2, "query_start_index": start,
        "query_end_index": stop, "truncation_seperator": CUT,
    } | given  # fmt: skip


def parse(**given) -> Prompt:
    return build("narrative_qa", **given).parse(record(), "here", "validation", 0)


def test_ten_tasks_with_the_official_limits():
    tasks = [build(name.removeprefix("zeroscrolls_")) for name in NAMES]
    assert {task.member: task.max_new_tokens for task in tasks} == {
        "gov_report": 1024, "summ_screen_fd": 512, "qmsum": 512, "squality": 512, "qasper": 128,
        "narrative_qa": 64, "quality": 10, "musique": 32, "space_digest": 36, "book_sum_sort": 256,
    }  # fmt: skip
    with pytest.raises(ValueError, match="embedded=x; accepted: summary, recap"):
        build("qmsum", embedded="x")


@pytest.mark.parametrize("start", [False, True])
def test_the_end_of_the_document_is_cut_as_in_the_official_code(start):
    words = Words(start=start)
    head, tail = words(DOCUMENT)["input_ids"], words(CUT + QUERY + ENDING)["input_ids"]
    for length in range(len(tail), 12):
        found = build("narrative_qa").encode(parse(), words, length)
        assert found.ids == head[: length - len(tail)] + tail
        assert words.vip(found) == "Question: who ?" and found.tokens_in == 12
    with pytest.raises(DataError, match="row a: what follows its document has 6 tokens"):
        build("narrative_qa").encode(parse(), words, len(tail) - 1)


@pytest.mark.parametrize("start", [False, True])
def test_without_a_query_the_instruction_is_vip(start):
    words, start_of = Words(start=start), len(DOCUMENT)
    places = dict.fromkeys(("query_start_index", "query_end_index"), start_of)
    given = record(**places, input=DOCUMENT + "Summary:\n")
    row = build("gov_report").parse(given, "here", "validation", 0)
    for length in (64, 9):
        assert words.vip(build("gov_report").encode(row, words, length)) == "Do this."


def test_shares_of_reviews_are_true():
    for row in build("space_digest").load(Data(), 6, 4096, 0).rows:
        texts = re.split(r"Review \d+:\n", row.document)[1:]
        good = sum(
            "better" in t or "fine" in t or ("come again" in t and "won't" not in t) for t in texts
        )
        share = float(row.references[0].rstrip("%"))
        assert 0 <= share <= 100 and 100 * good / len(texts) <= share + 1
    assert len({row.references for row in build("space_digest").load(Data(), 9, 4096, 0).rows}) > 4


def test_chapters_can_be_put_in_order():
    for row in build("book_sum_sort").load(Data(), 6, 4096, 0).rows:
        told = re.split(r"Summary (\d+):\n", row.document)[1:]
        ways = {
            int(number): re.search(r"leaves the (.+?) and travels to the (.+?)\.", text).groups()
            for number, text in zip(told[::2], told[1::2], strict=True)
        }
        order = [int(one) for one in row.references[0].split(", ")]
        assert sorted(order) == sorted(ways)
        assert row.document.startswith(f"You are given {len(order)}")
        for one, other in pairwise(order):
            assert ways[one][1] == ways[other][0]


COUNTS = {"squality": 65, "qasper": 86, "gov_report": 7}


@pytest.mark.parametrize("member", COUNTS)
def test_real_rows_run_end_to_end(member, real_rows):
    task = build(member)
    loaded = task.load(Data("local", real_rows), None, 8192, 0)
    print(f"{task.name}: {loaded.n_available} ids of {loaded.split}")
    assert len(loaded.rows) == loaded.n_available == COUNTS[member]
    assert {len(row.references) for row in loaded.rows} == {4 if member == "squality" else 1}
    letters = Words(cut=list)
    for row in loaded.rows[:3]:
        short = replace(row, document=row.document[:900] + "\n\n")
        for length in (16384, 800):
            found = task.encode(short, letters, length)
            vip = row.query or row.document.partition("\n\n")[0]
            assert letters.vip(found, "") == vip and len(found.ids) <= length
    references = [row.references for row in loaded.rows[:4]]
    assert task.score([right[-1] for right in references], references)["value"] == 100
