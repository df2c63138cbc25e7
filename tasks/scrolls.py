"""SCROLLS (Shaham et al., 2022, arXiv:2201.03533): seven tasks over long documents, one reader.

A record of the benchmark is {id, pid, input, output}; the input contains the query, if any, and the
document, and records with the same id are several references of it. The settings of each task are
in conf/task/*.yaml. Embedded rows are stories in the benchmark's layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import CHAT, Constant, Data, DataError, Encoded, Row, Tokenizer
from tasks.loading import formats, records
from tasks.loading.prompts import Prompt, for_chat_model
from tasks.loading.reader import Reader

# Tokens reserved for an embedded row's query; a longer query makes the story shorter.
QUERY_TOKENS = {"question": 16, "recap": 16, "claim": 16, "options": 88, "summary": 2}
OPTION = re.compile(r"\n *\([A-D]\) ?")


def paragraph(text: str) -> tuple[str, str]:
    """(query, document): the query is the text before the first blank line."""
    query, separator, document = text.partition("\n\n")
    if not separator or not query.strip():
        raise ValueError("no query before a blank line")
    return query.strip(), document.lstrip("\n")


def options(text: str) -> tuple[str, str]:
    """(query, document): the query is the question and its four option lines, (A) to (D)."""
    end = 0
    for letter in "ABCD":
        match = re.compile(rf"\n *\({letter}\) ?").search(text, end)
        if not match:
            raise ValueError(f"no option line ({letter}) after the question")
        end = match.end()
    # The last option ends with its line; the article follows.
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    return text[:line_end].strip(), text[line_end:].lstrip("\n")


def none(text: str) -> tuple[str, str]:
    """(query, document): the whole input is the document; VCC's query is "summarize"."""
    return "summarize", text


def entities(text: str) -> tuple[str, str]:
    """`options` in the format of VCC's multiple-choice head: each option between markers."""
    query, document = options(text)
    question, *candidates = OPTION.split(query)
    return formats.choice_query(question.strip(), candidates), document


QUERIES = {"paragraph": paragraph, "options": options, "entities": entities, "none": none}
CHOICES = {"options": lambda query: OPTION.split(query)[1:], "entities": formats.query_choices}
"""The options in a query."""


LETTER = re.compile(r"\b[A-D]\b")


def _chosen(choices: Sequence[str], answer: str) -> str:
    """The option of an answer's first letter from A to D, which ZeroSCROLLS scores; the answer
    itself if it is an option or has no such letter."""
    letter = LETTER.search(answer)
    if letter is None or answer.strip() in choices:
        return answer
    return choices["ABCD".index(letter[0])]


@dataclass(frozen=True)
class Scrolls(Reader):
    """One task of SCROLLS: <member>.zip holds <member>/<split>.jsonl.

    query     the query in an input: paragraph, options or none (see QUERIES); entities is options
              for an encoder with a multiple-choice head
    embedded  the request about a story in embedded rows: question, recap, options, summary or claim
    """

    query: str = "paragraph"
    embedded: str = "question"

    repeats: ClassVar[bool] = True
    kinds: ClassVar = QUERY_TOKENS

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("query", QUERIES)

    @property
    def answers(self) -> str:
        return "choice" if self.query == "entities" else "text"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return formats.SPECIAL["quality/roberta"] if self.query == "entities" else ()

    def spell(self, row: Row, answer: str) -> str:
        if self.query == "entities":
            return formats.query_choices(row.query)[int(answer)]
        if self.query == "options" and self.decoder:
            return _chosen(CHOICES["options"](row.query), answer)
        return answer

    def prompt_of(self, row: Row) -> Prompt:
        """ZeroSCROLLS' prompt; in a chat its variant for chat models."""
        prompt = super().prompt_of(row)
        if self.decoder != CHAT:
            return prompt
        return for_chat_model(prompt, may_explain=self.metric == "rouge_geo_mean")

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        return formats.choice_target(row)

    def options(self, rows: Sequence[Row]) -> list[Constant]:
        choices = CHOICES.get(self.query)
        return formats.by_position(choices, rows) if choices else super().options(rows)

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        return self.zipped(data, split)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        row_id = records.text(record, "id", where)
        text = records.text(record, "input", where)
        output = self.answer(record, "output", where, split)
        try:
            query, document = QUERIES[self.query](text)
        except ValueError as error:
            raise DataError(f"{where}: column 'input' has {error}") from None
        if not document.strip():
            raise DataError(f"{where}: column 'input' has no document")
        return Row(row_id, query, document, (output,))

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        """A story in the benchmark's layout, after its query and a blank line."""

        def build(story: Any) -> dict[str, Any]:
            head, output = query_and_output(self.embedded, story, index)
            return {"input": head + story.text, "output": output}

        spare = 2 + QUERY_TOKENS[self.embedded]
        return [self.fit_story(split, index, length, seed, spare, build, self.count_tokens)]


def query_and_output(kind: str, story: Any, index: int) -> tuple[str, str]:
    """(text before the story, output) in the benchmark's layout; `kind` is one of QUERY_TOKENS."""
    if kind == "summary":
        return "", story.summary
    if kind == "claim":
        hypothesis, label = story.claims[index % len(story.claims)]
        return f"{hypothesis}\n\n", label
    question = story.questions[index % len(story.questions)]
    if kind == "recap":
        return f"{question.text}\n\n", f"The answer is {question.answers[0]}."
    if kind == "options":
        pairs = zip("ABCD", question.options, strict=True)
        lines = "\n".join(f" ({letter}) {option}" for letter, option in pairs)
        return f"{question.text}\n\n{lines}\n\n\n", question.answers[0]
    return f"{question.text}\n\n", question.answers[0]
