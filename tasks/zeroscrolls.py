"""ZeroSCROLLS (Shaham et al., 2023, arXiv:2305.14196): ten tasks, each row a complete prompt.

A row of the benchmark is {id, pid, input, output, …} with indices into its input; a prompt that is
too long loses the end of its document, and the row's own separator says so. Embedded rows are
texts of this project in the same layout, with the official instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tasks import prompts, rows, scrolls, seeds, sources
from tasks.base import Data, DataError, Encoded, Row, Tokenizer

INDICES = (
    "document_start_index", "document_end_index", "query_start_index", "query_end_index",
)  # fmt: skip
# The benchmark spells it so.
SEPARATOR = "truncation_seperator"
CHAT_REQUEST = "Do not provide any explanation."
KINDS = (
    "summary", "recap", "recaps", "question", "checked", "hops", "options", "reviews", "chapters",
)  # fmt: skip
LABELS = {"Entailment": "Yes", "Contradiction": "No", "Not mentioned": "unanswerable"}


@dataclass(frozen=True)
class ZeroScrolls(rows.Reader):
    """One task of ZeroSCROLLS: <member>.zip holds <member>/<split>.jsonl.

    chat         the variant for chat models: no answer header, and, but for summaries, a request
                 to explain nothing (experiments/api/openai_api.py)
    instruction, document_header, query_header, answer_header   the official prompt's parts. Real
                 rows bring their own; embedded ones are made with these
    embedded     one of KINDS: what embedded rows are made of
    """

    embedded: str = "question"
    chat: bool = False
    instruction: str = ""
    document_header: str = "Story"
    query_header: str = ""
    answer_header: str = "Answer"

    splits: ClassVar[tuple[str, ...]] = rows.SPLITS
    repeats: ClassVar[bool] = True
    kinds: ClassVar = KINDS

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        return self.zipped(data, split)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> prompts.Prompt:
        text = sources.text(record, "input", where)
        *_, start, stop = (_index(record, column, where, len(text)) for column in INDICES)
        if stop < start:
            raise DataError(f"{where}: query_end_index {stop} is before query_start_index {start}")
        head, query, ending = text[:start], text[start:stop], text[stop:]
        if not head.strip():
            raise DataError(f"{where}: column 'input' has nothing before query_start_index {start}")
        if self.chat:
            head, ending = self._asking_chat(head), ""
        return prompts.Prompt(
            id=sources.text(record, "id", where),
            query=query,
            document=head,
            references=(self.answer(record, "output", where, split),),
            ending=ending,
            separator=sources.text(record, SEPARATOR, where),
        )

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """The official truncation: see tasks.prompts.encode. VIP is the query with its header;
        a task without query has its instruction instead, as VCC has the word "summarize"."""
        instruction = row.document.partition("\n\n")[0]
        return prompts.encode(row, tokenizer, length, instruction)

    def constants(self, rows: Sequence[Row]) -> list[list[str]]:
        """Of an order to be found, the one in which things are shown, and its reverse."""
        if self.metric != "concordance_index":
            return super().constants(rows)
        shown = [sorted(map(int, re.findall(r"\d+", row.references[0]))) for row in rows]
        orders = (shown, [ids[::-1] for ids in shown])
        return [[", ".join(map(str, ids)) for ids in order] for order in orders]

    def count(self, record: dict[str, Any]) -> int:
        from tasks import stories

        return stories.count_tokens(record["input"]) + 2

    def _asking_chat(self, head: str) -> str:
        if self.metric == "rouge_geo_mean":
            return head
        instruction, blank, rest = head.partition("\n\n")
        return f"{instruction.strip()} {CHAT_REQUEST}{blank}{rest}"

    # --- embedded rows ------------------------------------------------------------------------

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        if self.embedded == "reviews":
            return [self._reviews(split, index, length, seed)]
        if self.embedded == "chapters":
            return [self._chapters(split, index, length, seed)]

        def build(story: Any) -> list[dict[str, Any]]:
            query, outputs = _asked(self.embedded, story, index)
            text = _paragraphs(story.text) if self.embedded == "hops" else story.text
            return [self._prompt([text], query, output) for output in outputs]

        def tokens(made: list[dict[str, Any]]) -> int:
            return self.count(made[0])

        spare = self.count(self._prompt([""], "", ""))
        return self.fitted(split, index, length, seed, spare, build, tokens)

    def _reviews(self, split: str, index: int, length: int, seed: int) -> dict[str, Any]:
        from tasks import aggregates

        room = self._room(length)
        found = aggregates.reviews(split, index, room, seed)
        good = sum(positive for _, positive in found)
        documents = [f"Review {i}:\n{text}" for i, (text, _) in enumerate(found, start=1)]
        return self._fits(self._prompt(documents, "", f"{100 * good / len(found):.0f}%"), length)

    def _chapters(self, split: str, index: int, length: int, seed: int) -> dict[str, Any]:
        from tasks import aggregates

        told = aggregates.chapters(split, index, self._room(length), seed)
        shown = list(range(len(told)))
        seeds.stream("shuffled", split, seed, index).shuffle(shown)
        documents = [f"Summary {i}:\n{told[at]}" for i, at in enumerate(shown, start=1)]
        order = ", ".join(str(shown.index(at) + 1) for at in range(len(told)))
        return self._fits(self._prompt(documents, "", order), length)

    def _room(self, length: int) -> int:
        return length - self.count(self._prompt([""], "", ""))

    def _fits(self, record: dict[str, Any], length: int) -> dict[str, Any]:
        if (tokens := self.count(record)) > length:
            raise DataError(f"length={length} is too short for {self.name}: {tokens} at least")
        return record

    def _prompt(self, documents: list[str], query: str, output: str) -> dict[str, Any]:
        """A record in the official layout; several documents become inner ones."""
        instruction = self.instruction.replace("{n}", str(len(documents)))
        start = len(instruction) + 2
        text = f"{instruction}\n\n{self.document_header}:\n"
        inner = []
        for document in documents:
            inner.append(len(text))
            text += f"{document}\n\n"
        stop = len(text) - 2
        asks = len(text)
        if query:
            text += f"{self.query_header}:\n{query}"
        asked = len(text)
        text += ("\n\n" if query else "") + f"{self.answer_header}:\n"
        noun = self.document_header.lower()
        return {
            "input": text,
            "output": output,
            **dict(zip(INDICES, (start, stop, asks, asked), strict=True)),
            SEPARATOR: f"... [The rest of the {noun} is omitted]\n\n",
        } | ({"inner_docs_start_indices": inner} if len(documents) > 1 else {})


def _asked(kind: str, story: Any, index: int) -> tuple[str, tuple[str, ...]]:
    """(query, outputs) of a story; several outputs are several references."""
    if kind == "summary":
        return "", (story.summary,)
    question = story.questions[index % len(story.questions)]
    if kind == "options":
        asked, _ = scrolls.asked("options", story, index)
        return asked.replace("\n\n", "\n").strip(), (
            "ABCD"[question.options.index(question.answers[0])],
        )
    if kind == "recap":
        return question.text, (f"The answer is {question.answers[0]}.",)
    if kind == "recaps":
        answer = question.answers[0]
        said = (f"It is {answer}.", f"The answer is {answer}.")
        return question.text, (*said, f"{answer} is the answer.", f"As told, it is {answer}.")
    if kind in ("checked", "hops") and index % 3 == 2:
        # Every third row asks what the text may not answer, as Qasper and MuSiQue do.
        claim, label = story.claims[2 if kind == "hops" else (index // 3) % len(story.claims)]
        matched = re.fullmatch(r"The (.+?) is at (.+) at the end\.", claim)
        assert matched is not None
        thing, place = matched.groups()
        if kind == "hops":
            return f"Where is the {thing} at the end?", (LABELS[label],)
        return f"Is the {thing} at {place} at the end?", (LABELS[label],)
    return question.text, question.answers


def _paragraphs(text: str) -> str:
    """A story with a blank line after every eighth sentence."""
    said = text.split(". ")
    parts = [". ".join(said[at : at + 8]) for at in range(0, len(said), 8)]
    return ".\n\n".join(parts)


def _index(record: dict[str, Any], column: str, where: str, upto: int) -> int:
    if column not in record:
        raise DataError(f"{where}: no column '{column}'; found {', '.join(record) or 'none'}")
    found = record[column]
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= upto:
        raise DataError(f"{where}: column '{column}' holds {found!r}, expected 0 to {upto}")
    return found
