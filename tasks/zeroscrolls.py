"""ZeroSCROLLS (Shaham et al., 2023, arXiv:2305.14196): ten tasks, each row a complete prompt.

A record of the benchmark is {id, pid, input, output, …} with indices into its input. In a prompt
that is too long, the end of the document is replaced by the record's own separator. Embedded rows
are generated texts in the same layout, with the official instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tasks import scrolls
from tasks.base import CHAT, Constant, Data, DataError, Row
from tasks.generators import seeds
from tasks.loading import prompts, reader, records

INDICES = (
    "document_start_index", "document_end_index", "query_start_index", "query_end_index",
)  # fmt: skip
# The benchmark's own spelling.
SEPARATOR = "truncation_seperator"
KINDS = (
    "summary", "recap", "recaps", "question", "checked", "hops", "options", "reviews", "chapters",
)  # fmt: skip
LABELS = {"Entailment": "Yes", "Contradiction": "No", "Not mentioned": "unanswerable"}


@dataclass(frozen=True)
class ZeroScrolls(reader.Reader):
    """One task of ZeroSCROLLS: <member>.zip holds <member>/<split>.jsonl.

    chat         use the variant for chat models (tasks.loading.prompts.for_chat_model) even without
                 a chat template
    instruction, document_header, query_header, answer_header   parts of the official prompt for
                 embedded rows; the benchmark's rows contain them
    embedded     the kind of embedded rows, one of KINDS
    """

    embedded: str = "question"
    chat: bool = False
    instruction: str = ""
    document_header: str = "Story"
    query_header: str = ""
    answer_header: str = "Answer"

    repeats: ClassVar[bool] = True
    kinds: ClassVar = KINDS

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        return self.zipped(data, split)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> prompts.Prompt:
        text = records.text(record, "input", where)
        *_, start, stop = (_index(record, column, where, len(text)) for column in INDICES)
        if stop < start:
            raise DataError(f"{where}: query_end_index {stop} is before query_start_index {start}")
        head, query, ending = text[:start], text[start:stop], text[stop:]
        if not head.strip():
            raise DataError(f"{where}: column 'input' has nothing before query_start_index {start}")
        row = prompts.Prompt(
            id=records.text(record, "id", where),
            query=query,
            document=head,
            references=(self.answer(record, "output", where, split),),
            ending=ending,
            separator=records.text(record, SEPARATOR, where),
            # The VIP tokens of a task without a query, for which VCC uses the word "summarize".
            instruction=head.partition("\n\n")[0],
        )
        return self._for_chat(row) if self.chat else row

    def prompt_of(self, row: Row) -> prompts.Prompt:
        """The prompt; in a chat its variant for chat models."""
        prompt = super().prompt_of(row)
        return self._for_chat(prompt) if self.decoder == CHAT and not self.chat else prompt

    def constants(self, rows: Sequence[Row]) -> list[Constant]:
        """For a task of ordering, the order of the input and its reverse."""
        if self.metric != "concordance_index":
            return super().constants(rows)
        return [partial(_in_order, reverse) for reverse in (False, True)]

    def count_tokens(self, record: dict[str, Any]) -> int:
        from tasks.generators import stories

        return stories.count_tokens(record["input"]) + 2

    def _for_chat(self, row: prompts.Prompt) -> prompts.Prompt:
        return prompts.for_chat_model(row, may_explain=self.metric == "rouge_geo_mean")

    # --- embedded rows ------------------------------------------------------------------------

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        if self.embedded == "reviews":
            return [self._reviews(split, index, length, seed)]
        if self.embedded == "chapters":
            return [self._chapters(split, index, length, seed)]

        def build(story: Any) -> list[dict[str, Any]]:
            query, outputs = _query_and_outputs(self.embedded, story, index)
            text = _paragraphs(story.text) if self.embedded == "hops" else story.text
            return [self._prompt([text], query, output) for output in outputs]

        def count(built: list[dict[str, Any]]) -> int:
            return self.count_tokens(built[0])

        spare = length - self._room(length)
        return self.fit_story(split, index, length, seed, spare, build, count)

    def _reviews(self, split: str, index: int, length: int, seed: int) -> dict[str, Any]:
        from tasks.generators import aggregates

        reviews = aggregates.reviews(split, index, self._room(length), seed)
        n_positive = sum(positive for _, positive in reviews)
        documents = [f"Review {i}:\n{text}" for i, (text, _) in enumerate(reviews, start=1)]
        share = f"{100 * n_positive / len(reviews):.0f}%"
        return self._checked(self._prompt(documents, "", share), length)

    def _chapters(self, split: str, index: int, length: int, seed: int) -> dict[str, Any]:
        from tasks.generators import aggregates

        chapters = aggregates.chapters(split, index, self._room(length), seed)
        shuffled = list(range(len(chapters)))
        seeds.stream("shuffled", split, seed, index).shuffle(shuffled)
        documents = [f"Summary {i}:\n{chapters[at]}" for i, at in enumerate(shuffled, start=1)]
        order = ", ".join(str(shuffled.index(at) + 1) for at in range(len(chapters)))
        return self._checked(self._prompt(documents, "", order), length)

    def _room(self, length: int) -> int:
        return length - self.count_tokens(self._prompt([""], "", ""))

    def _checked(self, record: dict[str, Any], length: int) -> dict[str, Any]:
        if (tokens := self.count_tokens(record)) > length:
            raise DataError(f"length={length} is too short for {self.name}: {tokens} at least")
        return record

    def _prompt(self, documents: list[str], query: str, output: str) -> dict[str, Any]:
        """A record in the official layout; several documents are its inner documents."""
        instruction = self.instruction.replace("{n}", str(len(documents)))
        start = len(instruction) + 2
        text = f"{instruction}\n\n{self.document_header}:\n"
        inner = []
        for document in documents:
            inner.append(len(text))
            text += f"{document}\n\n"
        stop = len(text) - 2
        query_start = len(text)
        if query:
            text += f"{self.query_header}:\n{query}"
        query_stop = len(text)
        text += ("\n\n" if query else "") + f"{self.answer_header}:\n"
        noun = self.document_header.lower()
        return {
            "input": text,
            "output": output,
            **dict(zip(INDICES, (start, stop, query_start, query_stop), strict=True)),
            SEPARATOR: f"... [The rest of the {noun} is omitted]\n\n",
        } | ({"inner_docs_start_indices": inner} if len(documents) > 1 else {})


def _query_and_outputs(kind: str, story: Any, index: int) -> tuple[str, tuple[str, ...]]:
    """(query, outputs) of a story; several outputs are several references."""
    if kind == "summary":
        return "", (story.summary,)
    question = story.questions[index % len(story.questions)]
    if kind == "options":
        query, _ = scrolls.query_and_output("options", story, index)
        letter = "ABCD"[question.options.index(question.answers[0])]
        return query.replace("\n\n", "\n").strip(), (letter,)
    if kind == "recap":
        return question.text, (f"The answer is {question.answers[0]}.",)
    if kind == "recaps":
        answer = question.answers[0]
        outputs = (f"It is {answer}.", f"The answer is {answer}.")
        return question.text, (*outputs, f"{answer} is the answer.", f"As told, it is {answer}.")
    if kind in ("checked", "hops") and index % 3 == 2:
        # Every third row has a question that the text may not answer, as in Qasper and MuSiQue.
        claim, label = story.claims[2 if kind == "hops" else (index // 3) % len(story.claims)]
        match = re.fullmatch(r"The (.+?) is at (.+) at the end\.", claim)
        assert match is not None
        thing, place = match.groups()
        if kind == "hops":
            return f"Where is the {thing} at the end?", (LABELS[label],)
        return f"Is the {thing} at {place} at the end?", (LABELS[label],)
    return question.text, question.answers


def _paragraphs(text: str) -> str:
    """A story with a blank line after every eighth sentence."""
    every = text.split(". ")
    parts = [". ".join(every[at : at + 8]) for at in range(0, len(every), 8)]
    return ".\n\n".join(parts)


def _in_order(reverse: bool, row: Row) -> str:
    """The parts to be ordered, in the input's order or reversed."""
    parts = sorted(map(int, re.findall(r"\d+", row.references[0])), reverse=reverse)
    return ", ".join(map(str, parts))


def _index(record: dict[str, Any], column: str, where: str, upto: int) -> int:
    index = records.column(record, column, where)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= upto:
        raise DataError(f"{where}: column '{column}' holds {index!r}, expected 0 to {upto}")
    return index
