"""LongBench (Bai et al., 2023, arXiv:2308.14508) and LongBench v2 (Bai et al., 2024,
arXiv:2412.15204): the official rows with the official prompts.

The prompts are read from the repository's files next to the rows: `config/dataset2prompt.json` of
v1 and `prompts/0shot.txt` of v2; for rows of the hub, `prompt_file` is the path of that file. A
prompt that is too long loses its middle. In a chat the user's turn is the whole prompt; the
official code adds no chat template to some data sets.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.base import Data, DataError, Loaded, Row
from tasks.loading import json_text, sources
from tasks.prompted import Prompted

PLACEHOLDERS = {
    "$DOC$": "{context}", "$Q$": "{question}", "$C_A$": "{choice_A}", "$C_B$": "{choice_B}",
    "$C_C$": "{choice_C}", "$C_D$": "{choice_D}",
}  # fmt: skip

WITHOUT_CHAT = ("trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p")
"""Members of v1 around whose prompts pred.py puts no chat template."""


@dataclass(frozen=True)
class LongBench(Prompted):
    """One data set of v1, or v2. `prompt_file` is the official file of prompts."""

    truncate: str = "middle"
    prompt_file: str = ""

    @property
    def chats(self) -> bool:
        return self.member not in WITHOUT_CHAT and super().chats

    def ended(self, text: str) -> str:
        """An answer doesn't end before its first token (pred.py: min_length)."""
        start = len(text) - len(text.lstrip("\n"))
        return text[:start] + super().ended(text[start:])

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        if self.prompt or data.source == "embedded":
            return super().load(data, n, length, seed)
        path = self._prompt_path(data)
        prompt = self._read_prompt(path)
        try:
            prompted = replace(self, prompt=prompt)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from None
        loaded = prompted.load(data, n, length, seed)
        digest = hashlib.sha256(f"{loaded.sha256} {prompt}".encode()).hexdigest()
        return replace(loaded, sha256=digest)

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        row = super().parse(record, where, split, at)
        if self.metric == "choice" and not set(row.references) <= set("ABCD"):
            raise DataError(
                f"{where}: column '{self.answers_in}' holds {', '.join(row.references)!r:.40}, "
                "expected A, B, C or D"
            )
        return row

    def zip_member(self, path: Path, split: str) -> str:
        return f"data/{self.member}.jsonl" if path.suffix == ".zip" else ""

    def _prompt_path(self, data: Data) -> Path:
        if data.source == "local":
            return sources.local_file(data.dir, self.benchmark, self.prompt_file)
        if not (path := Path(self.prompt_file)).is_absolute() or not path.is_file():
            raise DataError(
                f"{self.name}: the hub has the rows without prompts: give task.prompt_file=/PATH/"
                f"{path.name} of the benchmark's repository; given: {self.prompt_file}"
            )
        return path

    def _read_prompt(self, path: Path) -> str:
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
        if path.suffix != ".json":
            text = text.replace("{", "{{").replace("}", "}}")
            for mark, column in PLACEHOLDERS.items():
                text = text.replace(mark, column)
            return text
        found = json_text.value(text.encode(), str(path))
        if not isinstance(found, dict) or not isinstance(found.get(self.member), str):
            raise DataError(
                f"{path}: no prompt for {self.member}; found {', '.join(found)[:200] or 'none'}"
                if isinstance(found, dict)
                else f"{path}: found {type(found).__name__}, expected an object of prompts"
            )
        return str(found[self.member])
