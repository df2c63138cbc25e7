"""Texts whose question concerns the whole document: hotel reviews to count, chapters to sort.

They are modelled on ZeroSCROLLS' SpaceDigest and BookSumSort. Words and names are those of
tasks.generators.stories, so the splits have no name in common.
"""

from __future__ import annotations

import itertools
import random

from tasks.generators import seeds, stories, story_words

GOOD = (
    "The {room} was {fine}, and we would come again.",
    "The {folk} at the desk were {kind} to us all {day}.",
    "There was fresh {food} every {day}, more than we could eat.",
    "We slept well in the {room}, and the {room} was {fine} too.",
    "For this money we have never had a better {room}.",
)
BAD = (
    "The {room} was {poor}, and we won't come again.",
    "The {folk} at the desk were {rude} to us all {day}.",
    "There was old {food} every {day}, and too little of it.",
    "We hardly slept in the {room}, and the {room} was {poor} too.",
    "For this money we have never had a worse {room}.",
)
PLAIN = (
    "We came with {name} in the {day}.",
    "The hotel is not far from the {place}.",
    "From the window one sees the {place}.",
    "{name} had told us about it.",
    "It was a {fair} {day}.",
)
WORDS = {
    "room": "room bed bath kitchen garden bar".split(),
    "fine": "clean bright quiet lovely spotless warm".split(),
    "poor": "dirty dark noisy damp smelly cold".split(),
    "kind": "kind helpful friendly patient".split(),
    "rude": "rude lazy unfriendly impatient".split(),
}
CHAPTER = "{hero} leaves the {start} and travels to the {goal}."
KEEPS = "From there on {hero} has the {thing}."


def reviews(split: str, index: int, tokens: int, seed: int = 0) -> list[tuple[str, bool]]:
    """(review, whether it is positive) of one hotel: 2 to 50 reviews with at most `tokens` tokens
    if two fit. The share of positive ones is about uniform."""
    rng = seeds.stream("reviews", split, seed, index)
    share, names = rng.random(), stories.names(split)
    result: list[tuple[str, bool]] = []
    left = tokens
    while len(result) < 50:
        positive = rng.random() < share
        templates = rng.sample(GOOD if positive else BAD, 2) + rng.sample(PLAIN, rng.randint(1, 3))
        rng.shuffle(templates)
        text = " ".join(_fill(rng, template, names) for template in templates)
        # 14 for its heading and the blank line after it.
        left -= stories.count_tokens(text) + 14
        if left < 0 and len(result) >= 2:
            break
        result.append((text, positive))
    return result


def chapters(split: str, index: int, tokens: int, seed: int = 0) -> list[str]:
    """Summaries of a novel's 3 to 20 chapters, in order. Each begins at the place where the
    previous one ended, which determines the order. At most `tokens` tokens if three fit."""
    rng = seeds.stream("chapters", split, seed, index)
    names = stories.names(split)
    hero = rng.choice(names)
    n = max(3, min(20, tokens // 160))
    places = rng.sample(story_words.PLACES, n + 1)
    room = tokens // n - 14
    summaries = []
    for start, goal in itertools.pairwise(places):
        thing = f"{rng.choice(story_words.ADJECTIVES)} {rng.choice(story_words.NOUNS)}"
        ends = KEEPS.format(hero=hero, thing=thing)
        sentences = [CHAPTER.format(hero=hero, start=start, goal=goal)]
        left = room - stories.count_tokens(sentences[0]) - stories.count_tokens(ends)
        while True:
            sentence = _fill(rng, rng.choice(story_words.PROSE), names)
            left -= stories.count_tokens(sentence)
            if left < 0:
                break
            sentences.append(sentence)
        summaries.append(" ".join([*sentences, ends]))
    return summaries


def _fill(rng: random.Random, template: str, names: list[str]) -> str:
    return stories.fill(rng, template, **WORDS, name=names, place=story_words.PLACES)
