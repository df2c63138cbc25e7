"""HotpotQA and WikiHop: their layouts, VCC's formats, which tokens are VIP, and linked facts."""

import re

import pytest

from bench.errors import RequestError
from tasks import scrolls
from tasks.base import Data
from tasks.generators import linked_paragraphs, stories
from tasks.loading import formats
from tests.made import task as build
from tests.tasks.words import Words

PARAGRAPHS = [("One", ["A b.", " C d."]), ("Two", ["E f."])]
WIKI = {
    "id": "w1", "query": "country x", "answer": "oz", "candidates": ["oz", "ur"],
    "supports": ["X is in Oz.", "Ur is far."],
}  # fmt: skip


def pieces(text: str) -> list[str]:
    """Markers as single tokens, as after they were added to a tokenizer."""
    return re.findall(r"\[/?\w+\]|[^\s\[\]]+", text)


def hotpot() -> dict:
    context = {"title": [t for t, _ in PARAGRAPHS], "sentences": [s for _, s in PARAGRAPHS]}
    return {"id": "h1", "question": "Who?", "answer": "me", "context": context}


def test_hotpotqa_forms():
    context = "[ts]One[te][ss]A b.[ss] C d.[ts]Two[te][ss]E f."
    assert formats.hotpotqa("t5", "Who?", PARAGRAPHS) == ("[qs]Who?[qe]", context)
    assert formats.hotpotqa("roberta", "Who?", PARAGRAPHS) == ("[cls][qs]Who?[qe]", context)
    assert formats.hotpotqa("plain", "Who?", PARAGRAPHS) == ("Who?", "One\nA b. C d.\n\nTwo\nE f.")


def test_wikihop_forms():
    given = ("country x", ["oz", "ur"], ["X is in Oz."])
    assert formats.wikihop("t5", *given) == (
        "[question]country x[candidate]oz[candidate]ur", "[support]X is in Oz.",
    )  # fmt: skip
    query, _ = formats.wikihop("roberta", *given)
    assert query == "[question]country x[/question][ent]oz[/ent][ent]ur[/ent]"
    assert formats.wikihop("plain", *given) == ("country x\noz\nur", "X is in Oz.")


def test_quality_for_a_multiple_choice_head():
    text = "Which?\n\n (A) one\n (B) two\n (C) three\n (D) four\n\n\nText"
    assert scrolls.entities(text) == (
        "[question]Which?[/question][ent]one[/ent][ent]two[/ent][ent]three[/ent][ent]four[/ent]",
        "Text",
    )
    row = build("quality", query="entities").load(Data(), 1, 1024, 0).rows[0]
    assert row.query.count("[ent]") == 4 and row.references[0] in row.query


def test_every_marker_is_listed():
    for name in ("hotpotqa", "wikihop"):
        for form in formats.FORMS:
            task = build(name, form=form)
            row = task.load(Data(), 1, 1024, 0).rows[0]
            used = set(re.findall(r"\[/?[a-z]+\]", row.query + row.document))
            assert used == set(task.special_tokens)
    with pytest.raises(RequestError, match="form=bert; accepted: t5, roberta, plain"):
        build("hotpotqa", form="bert")


@pytest.mark.parametrize(
    ("name", "settings", "vip"),
    [
        ("hotpotqa", {}, "[qs] Who? [qe]"),
        ("hotpotqa", {"vip_after": 1}, "[qs] Who? [qe] [ts]"),
        ("hotpotqa", {"form": "roberta", "vip_context": True},
         "[cls] [qs] Who? [qe] [ts] [ss] [ss] [ts] [ss]"),
        ("wikihop", {"form": "roberta"},
         "[question] country x [/question] [ent] oz [/ent] [ent] ur [/ent]"),
    ],
)  # fmt: skip
def test_the_question_is_vip_and_what_a_setting_adds(name, settings, vip):
    """A token behind the question; the marks of titles and sentences."""
    words, task = Words(cut=pieces), build(name, **settings)
    row = task.parse({"hotpotqa": hotpot(), "wikihop": WIKI}[name], "here", "validation", 0)
    found = task.encode(row, words, 64)
    assert words.vip(found) == vip
    if not settings:
        assert words.spell(found.ids).endswith("[ts] Two [te] [ss] E f. </s>")


@pytest.mark.parametrize("index", range(4))
def test_answers_follow_from_two_facts(index):
    found = linked_paragraphs.links("validation", index, 1024)
    said = dict(found.paragraphs)
    facts = [said[title][number] for title, number in found.supporting]
    if found.answer in ("yes", "no"):
        homes = [re.search(r"lives at the (.+)\.", fact)[1] for fact in facts]
        assert (homes[0] == homes[1]) == (found.answer == "yes")
    else:
        owner = re.fullmatch(rf"The {found.subject} belongs to (\w+)\.", facts[0])[1]
        assert facts[1] == f"{owner} lives at the {found.answer}."
    assert found.home in found.candidates
    assert len(set(found.candidates)) == linked_paragraphs.CANDIDATES
    tokens = sum(stories.count_tokens(" ".join([t, *s])) for t, s in found.paragraphs)
    assert 600 < tokens <= 1024


def test_real_hotpotqa_runs_end_to_end(real_rows):
    task = build("hotpotqa")
    loaded = task.load(Data("local", real_rows), None, 4096, 0)
    print(f"hotpotqa: {loaded.n_available} rows")
    assert len(loaded.rows) == loaded.n_available == 50
    words = Words(cut=pieces)
    for row in loaded.rows[:9]:
        found = task.encode(row, words, 512)
        assert words.vip(found).startswith("[qs]") and len(found.ids) <= 512
        assert row.document.count("[ts]") >= 2
    references = [row.references for row in loaded.rows]
    figures = task.score([right[0] for right in references], references)
    assert figures["exact_match"] == figures["f1"] == figures["value"] == 100
