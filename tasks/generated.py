"""Tasks whose prompts are generated for a length in tokens of the model's tokenizer.

A row defines the hidden facts and the question; `encode` writes them with as much filler as fits.
So a row has the same answer at every length and for every model.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

from tasks.base import DataError, Encoded, Row, Tokenizer
from tasks.generators import seeds
from tasks.loading import prompts, records, truncation
from tasks.loading.reader import Reader

SHORT_FRAC = 0.01
"""Of the length: how much a prompt may fall short of it. It may fall short by one unit too."""
FIRST_PART = 0.2
"""Of the filler: what is tokenized to find out how much of it fits."""


@dataclass(frozen=True)
class Question:
    """A later question on the text of a sample."""

    query: str
    answers: tuple[str, ...]
    ending: str = ""


@dataclass(frozen=True)
class Sample:
    """The product of a generator. `document(units)` is the text before the query with this number
    of units of filler: sentences, lines, edges; from `least` to `most`, None: no limit."""

    document: Callable[[int], str]
    query: str
    answers: tuple[str, ...]
    ending: str = ""
    least: int = 1
    further: tuple[Question, ...] = ()
    most: int | None = None


Generate = Callable[[Random, str, int], Sample]
"""`Generated.generate` of a task."""


@dataclass(frozen=True)
class GeneratedRow(prompts.Prompt):
    """The sample of a random stream for inputs of `length` tokens; `document` is its shortest
    form."""

    stream: str = ""
    split: str = ""
    length: int = 0


@dataclass(frozen=True)
class Generated(Reader):
    """A task with generated rows, and with official rows if `files` names any."""

    default_split: str = "test"

    can_chat: ClassVar = True
    # Whether the text after the query begins the answer: see tasks.loading.prompts.
    begins_answer: ClassVar[bool] = False

    def generate(self, rng: Random, split: str, length: int) -> Sample:
        """The sample of this random stream, which is the same for most lengths."""
        raise NotImplementedError

    def sample(self, row: GeneratedRow) -> Sample:
        """The sample of a row."""
        return _sample(self.generate, row.stream, row.split, row.length)

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        stream = f"{self.name}/{split}/{seed}/{index}"
        sample = _sample(self.generate, stream, split, length)
        answers = {"query": sample.query, "answers": list(sample.answers)}
        return [{"stream": stream, "length": length, **answers}]

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        if "stream" not in record:
            return self.official_row(record, where, at)
        row = GeneratedRow(
            record["id"], "", "", (),
            stream=record["stream"], split=split, length=record["length"],
        )  # fmt: skip
        return self.written(row)

    def written(self, row: GeneratedRow) -> GeneratedRow:
        """A row of a stream with its sample's question and shortest text."""
        sample = self.sample(row)
        document = sample.document(sample.least)
        return replace(
            row,
            query=sample.query,
            document=document,
            references=sample.answers,
            ending=sample.ending,
            begins_answer=self.begins_answer,
            further=tuple(
                prompts.Prompt(
                    f"{row.id}-turn-{turn}",
                    q.query,
                    document,
                    q.answers,
                    ending=q.ending,
                    begins_answer=self.begins_answer,
                )
                for turn, q in enumerate(sample.further, start=2)
            ),
        )

    def perfect(self, row: Row) -> str:
        """An answer that scores 100."""
        return " ".join(row.references)

    def official_row(self, record: dict[str, Any], where: str, at: int) -> Row:
        """A row of the benchmark's files: `input` and `outputs` unless a subclass differs."""
        text = records.text(record, "input", where)
        ending = records.optional_text(record, "answer_prefix", where)
        return prompts.Prompt(
            id=str(at),
            query="",
            document=text,
            references=self.right_answers(record, "outputs", where),
            ending=ending if not text.endswith(ending) else "",
            begins_answer=self.begins_answer,
        )

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """The prompt and its generated answer have at most `length` tokens, as in RULER. A
        generated prompt is written for that length. An official prompt that is longer is truncated
        in the middle, since its question is at the end. Raises DataError for a length that is too
        short."""
        if not isinstance(row, GeneratedRow):
            return self._shortened(row, tokenizer, length)
        room = min(length, row.length) - self.max_new_tokens
        sample = self.sample(row)
        tokenizer = _Remembering(tokenizer)

        document = functools.cache(sample.document)
        written = functools.partial(replace, row)

        def tokens(units: int) -> int:
            return prompts.size(written(document=document(units)), tokenizer, self.decoder)

        if (shortest := tokens(sample.least)) > room:
            raise self.too_short(length, shortest)
        units = most_units(
            tokens, room, sample.least, sample.most, size=lambda units: len(document(units))
        )
        return prompts.encode(written(document=document(units)), tokenizer, room, self.decoder)

    def too_short(self, length: int, shortest: int) -> DataError:
        """The error for a length that doesn't hold a prompt of `shortest` tokens and the answer."""
        return DataError(
            f"length={length} is too short for {self.name}: with the {self.max_new_tokens} new "
            f"tokens its shortest prompt takes {shortest + self.max_new_tokens}"
        )

    def _shortened(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """A row of the benchmark's files; one that is too long loses its middle. The rest has at
        least its question, or, where that isn't separate, a token of each half."""
        assert isinstance(row, prompts.Prompt)
        room, text = length - self.max_new_tokens, row.text
        is_short = len(truncation.part(text, tokenizer, room).ids) <= room
        if is_short and prompts.size(row, tokenizer, self.decoder) <= room:
            return prompts.encode(row, tokenizer, room, self.decoder)
        asked = text[len(row.document) :] if row.query else ""
        least = 2 * len(tokenizer(asked, add_special_tokens=False)["input_ids"]) or 2
        if room < least:
            raise self.too_short(length, least)
        return prompts.encode_middle(row, tokenizer, room, self.decoder)


@functools.lru_cache(maxsize=1)
def _sample(generate: Generate, stream: str, split: str, length: int) -> Sample:
    """The sample of a stream, cached: a row is made right after its record, from the same
    sample."""
    return generate(seeds.stream(stream), split, length)


class _Remembering:
    """A tokenizer that caches the ids of each text, since a prompt is counted and then encoded."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._made = tokenizer, dict[tuple[str, bool], Any]()
        self.eos_token_id = tokenizer.eos_token_id

    def __call__(self, text: str, *, add_special_tokens: bool = True, **options: bool) -> Any:
        key = (text, add_special_tokens)
        if key not in self._made:
            made = self._tokenizer(text, add_special_tokens=add_special_tokens, **options)
            self._made[key] = made
        return self._made[key]

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        return self._tokenizer.apply_chat_template(conversation, **options)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


def most_units(
    tokens: Callable[[int], int],
    room: int,
    least: int = 1,
    most: int | None = None,
    size: Callable[[int], int] = int,
) -> int:
    """The most units that fit into `room` tokens, at most `most`; fewer if less than SHORT_FRAC of
    the room, or less than a unit, stays empty. `tokens(units)` grows about like `size(units)`, the
    characters, which are cheaper to count. Raises ValueError if `least` don't fit."""
    low, low_tokens = least, tokens(least)
    if low_tokens > room:
        raise ValueError(f"it takes {low_tokens} tokens and has room for {room}")
    high = sys.maxsize if most is None else most + 1
    probe = min(least + 4, high - 1)
    per_unit = max((size(probe) - size(low)) / max(probe - low, 1), 1)
    rate = max((tokens(probe) - low_tokens) / max(size(probe) - size(low), 1), 0.01)
    least_rate = rate / 4  # one more unit may even take fewer tokens
    # A first part of the text gives the tokens per character well enough for a good first guess.
    part = low_tokens + (room - low_tokens) * FIRST_PART
    aims = [part] if part < room / 2 else []
    while high - low > 1:
        short = max(SHORT_FRAC * room, rate * per_unit)
        if room - low_tokens <= short:
            break
        aim = aims.pop() if aims else room - short / 2
        guess = low
        for _ in range(3):
            target = size(low) + (aim - low_tokens) / rate
            step = round((target - size(guess)) / per_unit)
            # The rate of a few units may be far too low.
            guess = min(max(guess + step, low + 1), high - 1, 16 * low + 64)
        guessed, more = tokens(guess), size(guess) - size(low)
        per_unit = max(more / (guess - low), 1)
        if guessed > room:
            high = guess
            rate = (guessed - low_tokens) / max(more, 1)
        else:
            rate = max((guessed - low_tokens) / max(more, 1), least_rate)
            low, low_tokens = guess, guessed
    return low


def spread(rng: Random, facts: Sequence[str], filler: Sequence[str]) -> list[str]:
    """The facts, in order, at random positions in the filler."""
    places = sorted(rng.randrange(len(filler) + 1) for _ in facts)
    lines, done = [], 0
    for place, fact in zip(places, facts, strict=True):
        lines += [*filler[done:place], fact]
        done = place
    return [*lines, *filler[done:]]
