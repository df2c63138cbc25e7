"""Training rows of the span and choice heads: answers and looks are where they should be."""

import pytest

from tools.embedded.rows import marked


@pytest.mark.parametrize("index", range(4))
def test_paragraphs_hold_their_answer_and_where_to_look(index):
    row = marked.paragraphs(index, 0, 200, 4)
    text = row.query + row.document
    assert row.query.startswith("[cls][qs]") and row.query.endswith("[qe]")
    assert row == marked.paragraphs(index, 0, 200, 4)
    if index % 2:
        assert row.kind == int(index % 4 == 1 or _homes_agree(row)) and not row.spans
    else:
        ((first, last),) = row.spans
        thing = row.query.split(" of the ")[1].removesuffix(" live?[qe]")
        owner = text.split(f"The {thing} belongs to ")[1].split(".")[0]
        assert row.kind == marked.SPAN
        assert f"{owner} lives at the {text[first : last + 1]}." in text
        noun = row.query.index(thing) + len(thing) - 1
        assert {look.start for look in row.looks if look.layer == marked.FETCH} == {noun}


def _homes_agree(row):
    one, other = row.query.removeprefix("[cls][qs]Do ").split(" live ")[0].split(" and ")
    home = [row.document.split(f"{name} lives at the ")[1].split(".")[0] for name in (one, other)]
    return home[0] == home[1]


@pytest.mark.parametrize("index", range(4))
def test_choices_are_compared_with_what_the_story_says(index):
    row = marked.choices(index, 0, 200, 6)
    text = row.query + row.document
    option = row.query.split("[ent]")[row.right + 1].removesuffix("[/ent]")
    assert row.kind == -1 and row.query.count("[ent]") == 4
    fetched = [look for look in row.looks if look.layer == marked.FETCH]
    for first, last in zip(fetched[::2], fetched[1::2], strict=True):
        assert first.start == last.start < len(row.query) <= first.end
        assert text[first.end : last.end + 1] in option
    assert all(text[look.start :].startswith("[ent]") for look in row.looks if look.layer == 3)
    # Other options don't find what was fetched.
    apart = [look for look in row.looks if look.layer == marked.HOP and look.end == 0]
    here = range(text.index(f"[ent]{option}"), text.index(f"[ent]{option}") + len(option) + 5)
    assert apart and not any(look.start in here for look in apart)
