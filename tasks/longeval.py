"""LongEval (Li et al., 2023, lmsys.org/blog/2023-06-29-longchat): find a line, or the first topic.

Rows are complete prompts with the question at the end. The official files are sets of one size
(200 lines, 5 topics); `lines` or `topics` chooses one, and without it the largest that fits the
length is taken. Nothing is cut officially; here a row that is longer than the length loses the end
of its record, and says how much.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from tasks import prompts, rows, seeds, sources
from tasks.base import Data, DataError, Encoded, Row, Tokenizer

# What stands before a prompt, after one on lines, and after one on topics, as FastChat's templates
# and model code compose them; {asked} is the line that is asked for. mpt and storywriter add a
# hint, as longeval/utils.py does.
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions. USER: "
)
CHATML = (
    "<|im_start|>system\nA conversation between a user and an LLM-based AI assistant. The "
    "assistant gives helpful and honest answers.<|im_end|>\n<|im_start|>user\n"
)
TEMPLATES = {
    "none": ("", "", ""),
    "vicuna": (VICUNA, " ASSISTANT:", " ASSISTANT:"),
    "llama-2": ("[INST] ", " [/INST]", " [/INST]"),
    "chatglm2": ("[Round 1]\n\n问：", "\n\n答：", "\n\n答："),
    "mpt-30b-chat": (
        CHATML,
        "Answer in the format <{asked}> <REGISTER_CONTENT>.<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "storywriter": (
        "", "Line <{asked}>: <REGISTER_CONTENT> is", "\n ASSISTANT: The first topic is",
    ),
}  # fmt: skip
STYLES = ("LRT", "LRT-ABCindex", "LRT-UUID", "LRT-NL")
LINES_HEADER = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' "
    "and contains a '<REGISTER_CONTENT>' at the end of the line as a numerical value. For each "
    "line index, memorize its corresponding <REGISTER_CONTENT>. At the end of the record, I will "
    "ask you to retrieve the corresponding <REGISTER_CONTENT> of a certain line index. Now the "
    "record start:\n\n"
)
LINE = "line {}: REGISTER_CONTENT is <{}>\n"
NAMELESS = 16
"""Tokens of a line without its name, as Llama's tokenizer counts."""
LINES_OVER = "\nNow the record is over."
LINES_ASK = " Tell me what is the <REGISTER_CONTENT> in line {}? I need the number."
TOPICS_HEADER = (
    "Below is a record of our previous conversation on {} different topics. You are the ASSISTANT, "
    "and I am the USER. At the beginning of each topic, the USER will say 'I would like to discuss "
    "the topic of <TOPIC>'. Memorize each <TOPIC>. At the end of the record, I will ask you to "
    "retrieve the first topic. Now the record start. "
)
TOPICS_OVER = " Now the record ends."
TOPICS_ASK = (
    " What is the first topic(s) we discussed? Only give me the topic name. Do not summarize "
    "yourself."
)


@dataclass(frozen=True)
class LongEval(rows.Reader):
    """What lines and topics share. `template` is one of TEMPLATES: how a model is talked to."""

    template: str = "none"
    default_split: str = "test"

    # How many tokens an official row has: the first number and the second one a line or topic, as
    # Llama's tokenizer counts (prompt lengths in the official prediction files).
    official_tokens: ClassVar[tuple[int, float]] = (0, 0)
    unit: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("template", TEMPLATES)
        if self.size is not None and self.size < 1:
            raise ValueError(f"{self.name}: {self.unit}={self.size}; accepted: 1 and more")

    @property
    def size(self) -> int | None:
        """How many lines or topics, None where the length decides."""
        raise NotImplementedError

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        held = {
            int(found[1]): path
            for path, _ in super().parts(data, split, length)
            if (found := re.match(rf"(\d+)_{self.unit}\.jsonl(\.gz)?$", path.name))
        }
        first, more = self.official_tokens
        fit = [n for n in held if first + more * n <= length]
        size = self.size or max(fit, default=0)
        if size not in held:
            sizes = ", ".join(map(str, sorted(held)))
            asked = f"{self.unit}={self.size}" if self.size else f"length={length}"
            raise DataError(
                f"{self.name} has no set for {asked}; {data.dir} has {sizes}: "
                f"task.{self.unit}=N takes one, however much of it the length cuts off"
            )
        return [(held[size], "")]

    def read_outputs(self, path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
        """Predictions and references of an official file of outputs, N_response.txt."""
        labels, given, _ = official_output(path)
        return given, [(label,) for label in labels]

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        return prompts.encode(row, tokenizer, length)

    def _prompt(
        self, where: str, row_id: str, text: str, over: str, answer: str, ending: str, **asked: str
    ) -> prompts.Prompt:
        """A row of a whole prompt; its query is what stands from `over` on."""
        record, found, question = text.rpartition(over)
        if not found:
            raise DataError(f"{where}: column 'prompt' has no '{over.strip()}'")
        before = TEMPLATES[self.template][0]
        return prompts.Prompt(
            id=row_id,
            query=over + question,
            document=before + record,
            references=(answer,),
            ending=ending.format(**asked),
        )


@dataclass(frozen=True)
class Lines(LongEval):
    """Which number stands in a line.

    lines   how many (None: as many as the length has room for)
    style   how lines are named, of STYLES: 1, 2, …; AAAAAA, AAAAAB, …; a UUID; words (the default)
    """

    lines: int | None = None
    style: str = "LRT-NL"

    official_tokens: ClassVar[tuple[int, float]] = (130, 23.5)
    unit: ClassVar[str] = "lines"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("style", STYLES)

    @property
    def size(self) -> int | None:
        return self.lines

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        number, line = record.get("expected_number"), record.get("random_idx")
        if isinstance(number, bool) or not isinstance(number, int):
            raise DataError(
                f"{where}: column 'expected_number' holds {number!r}, expected a number"
            )
        if not isinstance(line, list) or not line:
            raise DataError(f"{where}: column 'random_idx' holds {line!r}, expected [name, place]")
        text = sources.text(record, "prompt", where)
        row_id = f"{record.get('num_lines', 0)}-{at:03d}"
        ending = TEMPLATES[self.template][1]
        return self._prompt(
            where, row_id, text, LINES_OVER, str(number), ending, asked=str(line[0])
        )

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        from tasks import stories

        rng = seeds.stream("lines", self.style, split, seed, index)
        names = line_names(self.style, split, rng, self.lines)
        over, (before, after, _) = LINES_OVER + LINES_ASK, TEMPLATES[self.template]
        first, each = self.official_tokens
        # 32 for the name of the line in the question.
        left: float = length - first - stories.count_tokens(before + after) - 32
        made: list[tuple[str, int]] = []
        for name in itertools.islice(names, self.lines):
            number = rng.randint(1, 50000)
            left -= max(each, NAMELESS + stories.count_tokens(name))
            if left < 0 and self.lines is None:
                break
            made.append((name, number))
        if not made:
            raise DataError(f"length={length} is too short for a line of {self.name}")
        place = rng.randrange(len(made))
        name, number = made[place]
        record = "".join(LINE.format(*one) for one in made)
        return [
            {
                "random_idx": [name, place],
                "expected_number": number,
                "num_lines": len(made),
                "correct_line": LINE.format(name, number),
                "prompt": LINES_HEADER + record + over.format(name),
            }
        ]


@dataclass(frozen=True)
class Topics(LongEval):
    """Which topic a record of conversations began with. `topics` is how many there are (None: as
    many as the length has room for)."""

    topics: int | None = None

    official_tokens: ClassVar[tuple[int, float]] = (130, 670)
    unit: ClassVar[str] = "topics"

    @property
    def size(self) -> int | None:
        return self.topics

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        topics = record.get("topics")
        if not isinstance(topics, list) or not topics or not isinstance(topics[0], str):
            raise DataError(f"{where}: column 'topics' holds {topics!r}, expected a list of text")
        text = sources.text(record, "prompt", where)
        row_id = f"{len(topics)}-{at:03d}"
        ending = TEMPLATES[self.template][2]
        return self._prompt(where, row_id, text, TOPICS_OVER, topics[0], ending)

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        from tasks import conversations, stories

        before, _, after = TEMPLATES[self.template]
        fixed = stories.count_tokens(before + TOPICS_HEADER + TOPICS_OVER + TOPICS_ASK + after) + 8
        found = conversations.conversations(split, index, length - fixed, self.topics, seed)
        said = "".join(text for _, text in found)
        if self.topics is None and (needed := fixed + stories.count_tokens(said)) > length:
            raise DataError(f"length={length} is too short for {self.name}: {needed} at least")
        if self.topics and len(found) < self.topics:
            raise DataError(f"topics={self.topics}; accepted: 1 to {len(found)} in split {split}")
        return [
            {
                "test_id": index,
                "prompt": TOPICS_HEADER.format(len(found)) + said + TOPICS_OVER + TOPICS_ASK,
                "topics": [topic for topic, _ in found],
                "prompt_length": -1,
            }
        ]


def line_names(style: str, split: str, rng: Random, n: int | None) -> Iterator[str]:
    """Names of lines without end, in one of STYLES (generate_line_index of longeval/utils.py).
    Those of words differ between splits."""
    if style == "LRT":
        return map(str, itertools.count(1))
    if style == "LRT-UUID":
        return (str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in itertools.count())
    if style == "LRT-ABCindex":
        # Six letters name 46656 lines; the official code takes more letters for more lines.
        width = 6
        while n and 6**width < n:
            width += 1
        return map("".join, itertools.product("ABCDEF", repeat=width))
    return _word_names(split, rng)


def _word_names(split: str, rng: Random) -> Iterator[str]:
    """adjective-noun, each once; then with two adjectives."""
    from tasks import story_words as words

    adjectives = [*words.ADJECTIVES, *words.PLACE_ADJECTIVES, *words.SLOTS["fair"]]
    nouns = [*words.NOUNS, *words.PLACE_NOUNS, *words.PLACE_NAMES, *words.SLOTS["land"]]
    adjectives, nouns = list(dict.fromkeys(adjectives)), list(dict.fromkeys(nouns))
    parts = {"train": (0, 1, 2), "validation": (3,), "test": (4,)}[split]
    heads = adjectives
    while True:
        pairs = [
            f"{head}-{noun}"
            for i, head in enumerate(heads)
            for j, noun in enumerate(nouns)
            if (i + 2 * j) % 5 in parts
        ]
        rng.shuffle(pairs)
        yield from pairs
        heads = [f"{one}-{head}" for one in adjectives for head in heads]


OUTPUT_LINE = re.compile(
    r"Label: (?P<label>.*?), Predict: (?P<given>.*?)"
    r"(?:, Parsed: -?\d+)?, prompt length: -?\d+"
)


def official_output(path: Path) -> tuple[list[str], list[str], float | None]:
    """(labels, predictions, accuracy) of an official prediction file, N_response.txt; accuracy is
    the last line's, in 0…1, where there is one. DataError with the line that isn't one."""
    labels, given, accuracy = [], [], None
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if found := OUTPUT_LINE.fullmatch(line):
            labels.append(found["label"])
            given.append(found["given"])
        elif line.startswith("Accuracy: "):
            accuracy = float(line.removeprefix("Accuracy: "))
        elif line.strip():
            raise DataError(f"{path} line {number}: expected 'Label: …, Predict: …'")
    return labels, given, accuracy
