"""MRCR (openai/mrcr on the hub): the n-th answer to a request that occurs several times in a long
conversation. The answer begins with a random text that the question gives."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import CHAT, Data, DataError, Row
from tasks.loading import json_text, prompts, records
from tasks.loading.reader import Reader
from tasks.metrics.retrieval import References

START = "random_string_to_prepend"
NUMBER = re.compile(r"(\d+)needle")


@dataclass(frozen=True)
class Mrcr(Reader):
    """Official rows: {prompt: a JSON list of messages, answer, random_string_to_prepend,
    n_needles}. `needles` selects the files with this number of similar requests, such as
    8needle_0.parquet; None takes all. The official figures are means for each number."""

    default_split: str = "test"
    needles: int | None = None

    has_embedded: ClassVar = False

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
        turns = _turns(records.text(record, "prompt", where), where)
        start, answer = (records.text(record, name, where) for name in (START, "answer"))
        if not answer.startswith(start):
            raise DataError(f"{where}: column 'answer' holds {answer!r:.40}, expected {start}…")
        number = records.spelled(record.get("n_needles", ""), "n_needles", where)
        return prompts.Prompt(
            id=f"{number}needle-{at:04d}" if number else f"{at:04d}",
            query=f"\n\n{turns[-1]}",
            document="\n\n".join(turns[:-1]),
            references=References((answer,), labels=(start,)),
            ending="\n\nassistant:",
        )

    def prompt_of(self, row: Row) -> prompts.Prompt:
        """In a chat the transcript is one turn, and its last line the assistant's header."""
        prompt = super().prompt_of(row)
        return replace(prompt, ending="") if self.decoder == CHAT else prompt


def _turns(prompt: str, where: str) -> list[str]:
    """The messages of a conversation as lines of a transcript; the last one is the question."""
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
    return [f"{role}: {content}" for role, content in messages]
