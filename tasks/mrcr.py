"""MRCR (openai/mrcr on the hub): the n-th answer to a request that occurs several times in a long
conversation. The answer begins with a random text that the question gives."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import CHAT, PLAIN, Data, DataError, Encoded, Row, Tokenizer
from tasks.loading import json_text, prompts, records
from tasks.loading.reader import Reader
from tasks.metrics.retrieval import References

START = "random_string_to_prepend"
NUMBER = re.compile(r"(\d+)needle")


@dataclass(frozen=True)
class Conversation(prompts.Prompt):
    """A transcript, and its messages as (role, content); the last one is the question."""

    messages: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Mrcr(Reader):
    """Official rows: {prompt: a JSON list of messages, answer, random_string_to_prepend,
    n_needles}. `needles` selects the files with this number of similar requests, such as
    8needle_0.parquet; None takes all. The official figures are means for each number.

    A chat template gets the messages as turns, as OpenAI's script sends them; a base model and an
    encoder–decoder read a transcript."""

    default_split: str = "test"
    needles: int | None = None

    has_embedded: ClassVar = False
    can_chat: ClassVar = True

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        found = super().parts(data, split, length)
        if self.needles is None:
            return found
        numbers = {path: NUMBER.search(path.name) or NUMBER.search(path.parent.name)
                   for path, _ in found}  # fmt: skip
        kept = [part for part in found if (n := numbers[part[0]]) and int(n[1]) == self.needles]
        if not kept:
            there = sorted({n[1] for n in numbers.values() if n}, key=int)
            raise DataError(
                f"{found[0][0].parent}: no file of needles={self.needles}; "
                f"accepted: {', '.join(there) or 'null, since no name has a number'}"
            )
        return kept

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        messages = _messages(records.text(record, "prompt", where), where)
        turns = [f"{role}: {content}" for role, content in messages]
        start, answer = (records.text(record, name, where) for name in (START, "answer"))
        if not answer.startswith(start):
            raise DataError(f"{where}: column 'answer' holds {answer!r:.40}, expected {start}…")
        number = records.spelled(record.get("n_needles", ""), "n_needles", where)
        return Conversation(
            id=f"{number}needle-{at:04d}" if number else f"{at:04d}",
            query=f"\n\n{turns[-1]}",
            document="\n\n".join(turns[:-1]),
            references=References((answer,), labels=(start,)),
            ending="\n\nassistant:",
            messages=tuple(messages),
        )

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """In a chat, a prompt that is too long loses the end of the messages before the question;
        their removed characters are not known, since the template's text is between them."""
        if self.decoder != CHAT or not isinstance(row, Conversation):
            return super().encode(row, tokenizer, length)
        rendered = replace(self, decoder=PLAIN).encode(_in_turns(row, tokenizer), tokenizer, length)
        return replace(rendered, removed=None)


def _in_turns(row: Conversation, tokenizer: Tokenizer) -> prompts.Prompt:
    """The messages in the tokenizer's chat template, up to the header of the answer."""
    turns = [{"role": role, "content": content} for role, content in row.messages]
    question = row.messages[-1][1]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template may raise any exception
        raise DataError(f"the chat template fails: {' '.join(str(error).split())}") from error
    before, found, after = text.rpartition(question)
    if not found:
        raise DataError("the chat template leaves out or changes the text of the last message")
    return replace(row, query=question, document=before, ending=after)


def _messages(prompt: str, where: str) -> list[tuple[str, str]]:
    """The messages of a conversation; the last one is the question."""
    try:
        found = json_text.value(prompt.encode(), f"{where}: column 'prompt'")
        messages = [(one["role"], one["content"]) for one in found]
    except (TypeError, KeyError):
        messages = []
    if not messages or not all(isinstance(part, str) for one in messages for part in one):
        raise DataError(
            f"{where}: column 'prompt' holds {prompt!r:.40}, "
            "expected a JSON list of messages with role and content"
        )
    if messages[-1][0] != "user":
        raise DataError(f"{where}: the last message is of {messages[-1][0]}, expected user")
    return messages
