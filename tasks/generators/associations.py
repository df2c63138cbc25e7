"""Needles that share no word with their question: the answer follows from common knowledge.

Modelled on the idea of NoLiMa (Modarressi et al., 2025, arXiv:2502.05167), whose texts can't be
shipped; these are the project's own.
"""

from __future__ import annotations

from random import Random

from tasks.generated import Sample
from tasks.generators import filler, stories

FACTS = {
    "{} keeps bees behind the barn.": "Who can offer homemade honey?",
    "{} plays the violin every evening.": "Who is a musician?",
    "{} repairs shoes by the window.": "Who works as a cobbler?",
    "{} has a small vineyard near the hill.": "Who grows grapes?",
    "{} never learned to swim.": "Who would drown in deep water?",
    "{} writes with the left hand.": "Who isn't right-handed?",
    "{} was born on the first of January.": "Whose birthday is New Year's Day?",
    "{} climbed up to the crater and saw the lava.": "Who has visited a volcano?",
    "{} eats neither meat nor fish.": "Who is a vegetarian?",
    "{} shaved the heads of all recruits.": "Who knows how to cut hair?",
    "{} rode a camel across the dunes.": "Who has been to a desert?",
    "{} stood below the Eiffel Tower last spring.": "Who has been in Paris?",
    "{} photographed the pyramids at sunrise.": "Who has travelled through Egypt?",
    "{} measures fever and writes prescriptions.": "Who is a doctor?",
    "{} bakes bread before dawn.": "Who handles flour and dough at work?",
    "{} can't tell red from green.": "Who is colour-blind?",
    "{} owns a telescope on the roof.": "Who likes to watch stars and planets?",
    "{} feeds four kittens and their mother.": "Who is a cat lover?",
    "{} sails out with nets and returns at noon.": "Who catches fish for a living?",
    "{} teaches children to read and to count.": "Who is employed at a school?",
}


def needle(rng: Random, split: str) -> Sample:
    """A question about the person of one fact, between facts about other people."""
    chosen = rng.sample(list(FACTS), 8)
    names = rng.sample(stories.names(split), len(chosen))
    facts = [fact.format(name) for fact, name in zip(chosen, names, strict=True)]
    depths = sorted(rng.random() for _ in facts)
    asked, person = FACTS[chosen[0]], names[0]
    told = rng.sample(facts, len(facts))
    sentences = filler.prose(rng)

    def document(units: int) -> str:
        text = sentences.first(units)
        for depth, fact in reversed(list(zip(depths, told, strict=True))):
            text.insert(round(depth * units), fact)
        return "Read the following text. A question about it follows.\n\n" + " ".join(text)

    ending = " Answer with the name only.\nAnswer:"
    return Sample(document, f"\n\nQuestion: {asked}", (person,), ending)
