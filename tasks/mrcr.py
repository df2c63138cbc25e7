"""MRCR (openai/mrcr on the hub): which answer to a request, asked for several times in a long
conversation, was the n-th. The answer begins with a random text that the question gives."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tasks.base import DataError, Encoded, Row, Tokenizer
from tasks.loading import prompts, records
from tasks.loading.reader import Reader
from tasks.metrics.retrieval import References

START = "random_string_to_prepend"


@dataclass(frozen=True)
class Mrcr(Reader):
    """Official rows: {prompt: a JSON list of messages, answer, random_string_to_prepend}."""

    default_split: str = "test"

    has_embedded: ClassVar = False

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        turns = _turns(records.text(record, "prompt", where), where)
        start, answer = (records.text(record, name, where) for name in (START, "answer"))
        if not answer.startswith(start):
            raise DataError(f"{where}: column 'answer' holds {answer!r:.40}, expected {start}…")
        return prompts.Prompt(
            id=f"{at:04d}",
            query=f"\n\n{turns[-1]}",
            document="\n\n".join(turns[:-1]),
            references=References((answer,), labels=(start,)),
            ending="\n\nassistant:",
        )

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        return prompts.encode(row, tokenizer, length)


def _turns(prompt: str, where: str) -> list[str]:
    """The messages of a conversation, of which the last one asks, as lines of a transcript."""
    try:
        messages = [(one["role"], one["content"]) for one in json.loads(prompt)]
    except (ValueError, TypeError, KeyError):
        messages = []
    if not messages or not all(isinstance(part, str) for one in messages for part in one):
        raise DataError(
            f"{where}: column 'prompt' holds {prompt!r:.40}, "
            "expected a JSON list of messages with role and content"
        )
    if messages[-1][0] != "user":
        raise DataError(f"{where}: the last message is of {messages[-1][0]}, expected user")
    return [f"{role}: {content}" for role, content in messages]
