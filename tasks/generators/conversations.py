"""Conversations on topics in LongEval's layout, which ask for the first topic.

The splits have different topics but the same sentences.
"""

from __future__ import annotations

from tasks.generators import seeds, stories

ASPECTS = (
    "The history of {}", "The care of {}", "The price of {}", "The making of {}",
    "The future of {}", "The colours of {}", "The names of {}", "The use of {}",
    "The sound of {}", "The trade in {}",
)  # fmt: skip
SUBJECTS = (
    "lighthouses", "beehives", "canal boats", "glass bottles", "village fairs", "kites",
    "wooden bridges", "church bells", "market gardens", "street maps", "windmills", "harbours",
    "clocks", "bread ovens", "sailing ropes", "mountain huts", "theatre masks", "violins",
    "printed books", "night trains", "stone walls", "apple orchards", "puppets", "ferries",
    "letters", "old coins", "city parks", "rain barrels", "school songs", "winter coats",
)  # fmt: skip
OPENING = (
    "USER: I would like to discuss the topic of {topic}. \n"
    " ASSISTANT: With pleasure. What do you want to know about it? \n"
)
EXCHANGES = (
    ("Who was the first to care about that?",
     "Nobody knows for certain, but it began in a small village near the sea."),
    ("Is it the same everywhere?",
     "In the north it is done by hand, in the south hardly anyone does it at all."),
    ("What has changed over the years?",
     "It used to take a whole winter. Now it takes an afternoon."),
    ("Why do people like it so much?",
     "It is quiet work, and there is something to show for it at the end."),
    ("What do most people get wrong?",
     "Most think that it needs much money. It needs time and two good hands."),
    ("Where can one see it today?",
     "There is a small museum for it, open in summer, and a fair every other autumn."),
    ("Is it as hard as they say?",
     "The first steps are easy. After that each year teaches something new."),
    ("What would you tell a child about it?",
     "I would say: look at it closely, then close your eyes and draw it."),
)  # fmt: skip
CLOSING = (
    " USER: Great, this is the end of our discussion on the topic {topic}, "
    "let's talk about the next topic."
)


def topics(split: str) -> list[str]:
    """The topics of a split: three fifths of all, or one fifth."""
    return [aspect.format(subject) for aspect, subject in seeds.in_split(split, ASPECTS, SUBJECTS)]


def conversations(
    split: str, index: int, tokens: int, n: int | None, seed: int = 0
) -> list[tuple[str, str]]:
    """(topic, conversation) of n different topics; without n, as many as fit into `tokens` tokens,
    at least two. Each has one to four questions."""
    rng = seeds.stream("conversations", split, seed, index)
    chosen = rng.sample(topics(split), len(topics(split)))
    pairs: list[tuple[str, str]] = []
    left = tokens
    for topic in chosen[:n]:
        text = OPENING.format(topic=topic[0].lower() + topic[1:])
        for question, answer in rng.sample(EXCHANGES, rng.randint(1, 4)):
            text += f" USER: {question} \n ASSISTANT: {answer} \n"
        text += CLOSING.format(topic=topic)
        left -= stories.count_tokens(text)
        if n is None and left < 0 and len(pairs) >= 2:
            break
        pairs.append((topic, text))
    return pairs
