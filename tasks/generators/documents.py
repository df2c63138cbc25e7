"""Questions on one of many documents, as in RULER (Hsieh et al., 2024, arXiv:2404.06654): qa_1 and
qa_2, on the project's paragraphs and on those of the official question sets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from random import Random

from tasks.generated import Sample
from tasks.generators import filler, linked_paragraphs, stories, story_words
from tasks.loading.ruler_files import Asked


def questions(rng: Random, split: str, linked: bool) -> Sample:
    """A question over documents: qa_1 asks for one fact, qa_2 for two that are linked. The
    paragraphs are the project's; those around the right ones are of the same kind, with other
    people and things, followed by plain prose when these run out."""
    people = rng.sample(stories.names(split), len(stories.names(split)))
    things = [f"{adjective} {noun}" for noun in story_words.NOUNS
              for adjective in story_words.ADJECTIVES]  # fmt: skip
    rng.shuffle(things)
    owner, thing = people.pop(), things.pop()
    home = rng.choice(story_words.PLACES)
    places = [place for place in story_words.PLACES if place != home]
    sentences = filler.prose(rng)
    written = 0

    def paragraph(title: str, fact: str) -> str:
        nonlocal written
        written += 4
        return f"{title}\n{fact} {' '.join(sentences.first(written)[-4:])}"

    def lives(name: str, place: str) -> str:
        return paragraph(name, linked_paragraphs.LIVES.format(name, place))

    def owns(what: str, name: str) -> str:
        return paragraph(f"The {what}", linked_paragraphs.OWNS.format(what, name))

    def other() -> str:
        if people and rng.random() < 0.5:
            return lives(people.pop(), rng.choice(places))
        if people and things:
            return owns(things.pop(), rng.choice(people))
        return paragraph("The day", "")

    gold = [lives(owner, home), *([owns(thing, owner)] if linked else [])]
    asked = linked_paragraphs.WHERE.format(thing) if linked else f"Where does {owner} live?"
    return _among_documents(rng, gold, filler.Endless(other), asked, (home,))


def official_questions(rng: Random, texts: Sequence[str], asked: Asked) -> Sample:
    """A question over documents of `texts`: first those with the answer, then similar ones, then
    any."""
    near = rng.sample(asked.near, len(asked.near))
    taken = {*asked.gold, *near}
    further = filler.different(lambda: rng.randrange(len(texts)), taken)
    others = (texts[number] for number in chain(near, further))
    return _among_documents(
        rng,
        [texts[number] for number in asked.gold],
        filler.Endless(others.__next__),
        asked.question,
        asked.answers,
        len(texts) - len(asked.gold),
    )


def _among_documents(
    rng: Random,
    gold: Sequence[str],
    others: filler.Endless,
    asked: str,
    answers: tuple[str, ...],
    most: int | None = None,
) -> Sample:
    state = rng.random()
    order = (
        "Answer the question based on the given documents. Only give me the answer and do not "
        "output any other words.\n\n"
    )

    def document(units: int) -> str:
        texts = [*gold, *others.first(units)]
        Random(str(state)).shuffle(texts)
        listed = (f"Document {i}:\n{text}" for i, text in enumerate(texts, start=1))
        return f"{order}The following are given documents.\n\n" + "\n\n".join(listed)

    least = 1 if most is None else min(1, most)
    query = f"\n\n{order}Question: {asked}"
    return Sample(document, query, answers, " Answer:", least, most=most)
