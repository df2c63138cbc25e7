"""LongEval (Li et al., 2023, lmsys.org/blog/2023-06-29-longchat): find a line, or the first topic.

Rows are complete prompts with the question at the end. Each official file has records of one size
(200 lines, 5 topics); `lines` or `topics` selects one, by default the largest that fits the length.
The official code doesn't truncate; here a row that is longer than the length loses the end of its
record, and the share is reported.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import Data, DataError, Row
from tasks.generators import seeds
from tasks.generators.line_names import STYLES, line_names
from tasks.loading import prompts, reader, records, sources

# The text before a prompt, after a prompt on lines, and after one on topics, as composed by
# FastChat's templates and model code; {asked} is the name of the requested line. mpt and
# storywriter add a hint, as longeval/utils.py does.
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
LINES_HEADER = (
    "Below is a record of lines I want you to remember. Each line begins with 'line <line index>' "
    "and contains a '<REGISTER_CONTENT>' at the end of the line as a numerical value. For each "
    "line index, memorize its corresponding <REGISTER_CONTENT>. At the end of the record, I will "
    "ask you to retrieve the corresponding <REGISTER_CONTENT> of a certain line index. Now the "
    "record start:\n\n"
)
LINE = "line {}: REGISTER_CONTENT is <{}>\n"
NAMELESS = 16
"""Tokens of a line without its name, by Llama's tokenizer."""
LINE_FOUND = re.compile(r"^line (.+): REGISTER_CONTENT is <(\d+)>$", re.MULTILINE)
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
class LongEval(reader.Reader):
    """Base class of lines and topics. `template`, one of TEMPLATES, is the chat format."""

    template: str = "none"
    default_split: str = "test"

    # Tokens of an official row: a constant and the tokens per line or topic, by Llama's tokenizer
    # (prompt lengths in the official prediction files).
    official_tokens: ClassVar[tuple[int, float]] = (0, 0)
    unit: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("template", TEMPLATES)
        if self.size is not None and self.size < 1:
            raise ValueError(f"{self.name}: {self.unit}={self.size}; accepted: 1 and more")

    @property
    def size(self) -> int | None:
        """Number of lines or topics; None if the length decides."""
        raise NotImplementedError

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        paths = {
            int(match[1]): path
            for path, _ in super().parts(data, split, length)
            if (match := re.match(rf"(\d+)_{self.unit}\.jsonl(\.gz)?$", path.name))
        }
        constant, per_unit = self.official_tokens
        fitting = [n for n in paths if constant + per_unit * n <= length]
        size = self.size or max(fitting, default=0)
        request = f"{self.unit}={self.size}" if self.size else f"length={length}"
        hint = f": task.{self.unit}=N takes one, however much of it the length cuts off"
        missing = f"{self.name} has no set for {request}"
        return [(sources.of_size(paths, size, missing, data.dir, hint), "")]

    def read_outputs(self, path: Path) -> tuple[list[str], list[tuple[str, ...]]]:
        """Predictions and references of an official output file, N_response.txt."""
        labels, predictions, _ = official_output(path)
        return predictions, [(label,) for label in labels]

    @property
    def chats(self) -> bool:
        """False: `template` already contains the turns of a chat."""
        return self.template == "none" and super().chats

    def _prompt(
        self, where: str, row_id: str, text: str, over: str, answer: str, ending: str, **fields: str
    ) -> prompts.Prompt:
        """The row of a complete prompt, whose query begins with `over`."""
        document, separator, question = text.rpartition(over)
        if not separator:
            raise DataError(f"{where}: column 'prompt' has no '{over.strip()}'")
        return prompts.Prompt(
            id=row_id,
            query=over + question,
            document=TEMPLATES[self.template][0] + document,
            references=(answer,),
            ending=ending.format(**fields),
        )


@dataclass(frozen=True)
class Lines(LongEval):
    """Asks for the number in a line.

    lines   number of lines (None: as many as fit the length)
    style   how lines are named, one of STYLES: 1, 2, …; AAAAAA, AAAAAB, …; a UUID; words (default)
    turns   questions on each record, for other lines
    """

    lines: int | None = None
    style: str = "LRT-NL"
    turns: int = 1

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
        text = records.text(record, "prompt", where)
        row_id = f"{records.spelled(record.get('num_lines', 0), 'num_lines', where)}-{at:03d}"
        ending = TEMPLATES[self.template][1]
        asked = records.spelled(line[0], "random_idx", where)
        row = self._prompt(where, row_id, text, LINES_OVER, str(number), ending, asked=asked)
        others = [found for found in LINE_FOUND.findall(row.document) if found[0] != asked]
        chosen = seeds.stream("turns", asked, number).sample(
            others, min(self.turns - 1, len(others))
        )
        further = tuple(
            prompts.Prompt(
                id=f"{record.get('id', row_id)}-turn-{turn}",
                query=LINES_ASK.format(name),
                document=row.document,
                references=(value,),
                ending=ending.format(asked=name),
            )
            for turn, (name, value) in enumerate(chosen, start=2)
        )
        return replace(row, further=further)

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        from tasks.generators import stories

        rng = seeds.stream("lines", self.style, split, seed, index)
        names = line_names(self.style, split, rng, self.lines)
        ending, (before, after, _) = LINES_OVER + LINES_ASK, TEMPLATES[self.template]
        constant, per_line = self.official_tokens
        # 32 for the name of the line in the question.
        room: float = length - constant - stories.count_tokens(before + after) - 32
        lines: list[tuple[str, int]] = []
        for name in itertools.islice(names, self.lines):
            number = rng.randint(1, 50000)
            room -= max(per_line, NAMELESS + stories.count_tokens(name))
            if room < 0 and self.lines is None:
                break
            lines.append((name, number))
        if not lines:
            raise DataError(f"length={length} is too short for a line of {self.name}")
        place = rng.randrange(len(lines))
        name, number = lines[place]
        text = "".join(LINE.format(*line) for line in lines)
        return [
            {
                "random_idx": [name, place],
                "expected_number": number,
                "num_lines": len(lines),
                "correct_line": LINE.format(name, number),
                "prompt": LINES_HEADER + text + ending.format(name),
            }
        ]


@dataclass(frozen=True)
class Topics(LongEval):
    """Asks for the first topic of a record of conversations. `topics` is their number (None: as
    many as fit the length)."""

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
        text = records.text(record, "prompt", where)
        row_id = f"{len(topics)}-{at:03d}"
        ending = TEMPLATES[self.template][2]
        return self._prompt(where, row_id, text, TOPICS_OVER, topics[0], ending)

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        from tasks.generators import conversations, stories

        before, _, after = TEMPLATES[self.template]
        fixed = stories.count_tokens(before + TOPICS_HEADER + TOPICS_OVER + TOPICS_ASK + after) + 8
        pairs = conversations.conversations(split, index, length - fixed, self.topics, seed)
        text = "".join(conversation for _, conversation in pairs)
        if self.topics is None and (needed := fixed + stories.count_tokens(text)) > length:
            raise DataError(f"length={length} is too short for {self.name}: {needed} at least")
        if self.topics and len(pairs) < self.topics:
            raise DataError(f"topics={self.topics}; accepted: 1 to {len(pairs)} in split {split}")
        return [
            {
                "test_id": index,
                "prompt": TOPICS_HEADER.format(len(pairs)) + text + TOPICS_OVER + TOPICS_ASK,
                "topics": [topic for topic, _ in pairs],
                "prompt_length": -1,
            }
        ]


OUTPUT_LINE = re.compile(
    r"Label: (?P<label>.*?), Predict: (?P<prediction>.*?)"
    r"(?:, Parsed: -?\d+)?, prompt length: -?\d+"
)


def official_output(path: Path) -> tuple[list[str], list[str], float | None]:
    """(labels, predictions, accuracy) of an official output file, N_response.txt; accuracy, in 0…1,
    is the one in its last line, if any. DataError names a line that can't be read."""
    labels, predictions, accuracy = [], [], None
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if match := OUTPUT_LINE.fullmatch(line):
            labels.append(match["label"])
            predictions.append(match["prediction"])
        elif line.startswith("Accuracy: "):
            accuracy = float(line.removeprefix("Accuracy: "))
        elif line.strip():
            raise DataError(f"{path} line {number}: expected 'Label: …, Predict: …'")
    return labels, predictions, accuracy
