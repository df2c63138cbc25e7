"""Training rows of the causal model: LongEval's lines, RULER's needles, and InfiniteBench's hidden
numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from random import Random

from tasks import infinitebench
from tasks.generators import filler, line_names, ruler, seeds, story_words
from tools.embedded.rows import line_pairs, list_pairs
from tools.embedded.rows.line_pairs import Question

LINE_TOKENS = 15
UNIT_TOKENS = {"noise": 26, "prose": 14, "needles": 24}
"""Approximate tokens of one unit of each haystack."""
NIAH = [
    name
    for name, kind in ruler.NIAH.items()
    if (kind.key, kind.values, kind.queries) == ("words", 1, 1)
]
HIDDEN = ("passkey", "number_string")
KINDS = ("lines", *NIAH, *HIDDEN)


def asked(
    index: int, seed: int, tokens: int, questions: int, kinds: Sequence[str] = KINDS
) -> list[Question]:
    """Questions about one text of about `tokens` tokens, in turn of each of the kinds KINDS and
    list_pairs.LISTS."""
    kind = kinds[index % len(kinds)]
    if kind in list_pairs.LISTS:
        return list_pairs.asked_list(kind, index, seed, tokens)
    if kind == "lines":
        return line_pairs.asked_lines(index, seed, tokens // LINE_TOKENS, questions)
    rng = seeds.stream("needle pair", kind, seed, index, tokens, questions)
    if kind in HIDDEN:
        return asked_number(rng, kind, tokens)
    return asked_needles(rng, ruler.NIAH[kind], tokens, questions)


def asked_needles(rng: Random, kind: ruler.Needles, tokens: int, questions: int) -> list[Question]:
    """A haystack with a needle for each question, and in half of the texts with twice this number.
    Each question asks for one of them."""
    words = {"kind": kind.value[:-1], "Some": "A", "are": "is", "all": ""}
    keys = line_names.line_names("LRT-NL", "train", rng, None)

    def needle(key: str) -> tuple[str, str, str]:
        value = filler.number(rng) if kind.value == "numbers" else filler.identifier(rng)
        return key, value, ruler.NEEDLE.format(kind=kind.value, key=key, value=value)

    hidden = [needle(key) for key in islice(keys, questions * rng.choice((1, 2)))]
    count = max(1, tokens // UNIT_TOKENS[kind.haystack] - len(hidden))
    if kind.haystack == "prose":
        text = filler.prose(rng).first(count)
    elif kind.haystack == "noise":
        text = [filler.NOISE] * count
    else:
        text = [needle(key)[2] for key in islice(keys, count)]
    for _, _, sentence in hidden:
        text.insert(rng.randrange(len(text) + 1), sentence)
    between = " " if kind.haystack == "prose" else "\n"
    prompt = ruler.ANNOUNCED.format(**words) + between.join(text)
    before, pairs = prompt, []
    for key, value, sentence in hidden[:questions]:
        source = prompt.index(sentence) + sentence.rindex(f" {value}")
        question = (ruler.ASKED + ruler.PREFIX).format(keys=key, **words)
        pairs.append(Question(before + question, f" {value}", source))
        before = ""
    return pairs


def asked_number(rng: Random, kind: str, tokens: int) -> list[Question]:
    """The only question about a text of InfiniteBench."""
    task = infinitebench.InfiniteBench(
        kind, "infinitebench", 1, metric="", max_new_tokens=0, length=tokens, member=kind
    )
    sample = task.generate(rng, "train", tokens)
    prompt = sample.document(max(1, tokens // UNIT_TOKENS["noise"])) + sample.query + sample.ending
    answer = f" {sample.answers[0]}"
    return [Question(prompt, answer, prompt.index(answer))]


def vocabulary() -> tuple[list[str], list[str]]:
    """The words of all prompts, and the words that name a line or are a key."""
    words, naming = line_pairs.vocabulary()
    texts = [ruler.ANNOUNCED, ruler.ASKED, ruler.PREFIX, ruler.NEEDLE, filler.NOISE]
    texts += ["A Some is are all number numbers uuid uuids", *story_words.PROSE]
    texts += [word for slot in story_words.SLOTS.values() for word in slot]
    texts += [infinitebench.HIDDEN, infinitebench.KEY, infinitebench.NUMBER]
    texts += [*infinitebench.ASKED.values(), *infinitebench.ENDING.values()]
    found = {*re.findall(r"[A-Za-z]+", re.sub(r"\{\w+\}", " ", " ".join(texts)))}
    return sorted({*words, *found} - {*naming}), naming
