"""RULER (Hsieh et al., 2024, arXiv:2404.06654): thirteen tasks that are generated for any length.

Prompts, parameters and metrics are the official repository's (commit of 2025-06, whose example of
variable tracking draws names again). The official essays and question sets can't be shipped;
`data=embedded` uses the project's prose instead. `data=local` takes official rows, as written by
prepare.py, or generates rows from the official essays and question sets. In a chat, the answer
prefix follows the header of the assistant's turn, as in the official templates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import ClassVar

from tasks.base import Data, DataError, Loaded
from tasks.generated import Generated, GeneratedRow, Sample
from tasks.generators import documents, ruler, seeds
from tasks.generators.ruler import NIAH
from tasks.loading import ruler_files, sources

KINDS = (*NIAH, "vt", "cwe", "fwe", "qa_1", "qa_2")
FILES = {
    **{name: ruler_files.ESSAYS for name, kind in NIAH.items() if kind.haystack == "prose"},
    "qa_1": ruler_files.SQUAD,
    "qa_2": ruler_files.HOTPOTQA,
}
"""The official texts of a task that has some."""
OFFICIAL_ROWS = 500


@dataclass(frozen=True)
class TextRow(GeneratedRow):
    """A row made of official texts, which all rows share. `asked` has no answers."""

    texts: tuple[str, ...] = ()
    asked: ruler_files.Asked | None = None


@dataclass(frozen=True)
class Ruler(Generated):
    """One of the tasks: `member` is in KINDS. `turns` is the number of questions on each text, for
    tasks that hide several keys and ask for one; a haystack of needles hides that many."""

    turns: int = 1

    begins_answer: ClassVar = True
    kinds: ClassVar = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("member", KINDS)
        most = NIAH[self.member].most_turns if self.member in NIAH else 1
        if not 1 <= self.turns <= most:
            raise ValueError(f"{self.name}: turns={self.turns}; accepted: 1 to {most}")

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        split, kind = self.requested_split(data, n), FILES.get(self.member)
        if data.source != "local" or kind is None or split not in self.files:
            return super().load(data, n, length, seed)
        try:
            self.parts(data, split, length)
        except DataError as error:
            path = kind.find(data.dir, self.benchmark)
            if data.dir is None or path is None:
                raise DataError(f"{error}, nor {' or '.join(kind.names)}") from None
            texts, official = kind.load(path), self.n.get(split, OFFICIAL_ROWS)
            available = len(texts.asked) or official
            blank = TextRow(
                "", "", "", (), split=split, length=length, texts=texts.texts
            )  # fmt: skip
            rows = [
                self._of_texts(blank, texts, f"{split}-{seed}-{index:03d}", index)
                for index in range(min(n or official, available))
            ]
            digest = hashlib.sha256(f"{sources.sha256(path)} {split} {seed} {length}".encode())
            return Loaded(rows, split, digest.hexdigest(), available)
        return super().load(data, n, length, seed)

    def chosen(self, paths: Sequence[Path], folder: Path, length: int) -> Sequence[Path]:
        """In a tree with a folder for each length, as written by the official scripts, the files of
        the largest length that fits."""
        by_length: dict[int, list[Path]] = {}
        for path in paths:
            numbers = [int(part) for part in path.relative_to(folder).parts if part.isdecimal()]
            by_length.setdefault(numbers[-1] if numbers else 0, []).append(path)
        size = max((each for each in by_length if each <= length), default=-1)
        missing = f"{self.name} has no rows for length={length}"
        return super().chosen(sources.of_size(by_length, size, missing, folder), folder, length)

    def _of_texts(
        self, blank: TextRow, texts: ruler_files.Texts, row_id: str, index: int
    ) -> GeneratedRow:
        """Rows of a question set; sample i is about its question i, as in the official code."""
        row = replace(blank, id=row_id, stream=f"{self.name}/{row_id}")
        if not texts.asked:
            return self.written(row)
        asked = texts.asked[index]
        row = replace(row, asked=replace(asked, answers=()))
        return replace(self.written(row), references=asked.answers)

    def sample(self, row: GeneratedRow) -> Sample:
        if not isinstance(row, TextRow):
            return super().sample(row)
        rng = seeds.stream(row.stream)
        if row.asked:
            return documents.official_questions(rng, row.texts, row.asked)
        return ruler.needles(NIAH[self.member], rng, row.split, self.turns, row.texts)

    def generate(self, rng: Random, split: str, length: int) -> Sample:
        if self.member in NIAH:
            return ruler.needles(NIAH[self.member], rng, split, self.turns)
        if self.member == "vt":
            return ruler.variable_tracking(rng)
        if self.member == "cwe":
            return ruler.common_words(rng, length)
        if self.member == "fwe":
            return ruler.frequent_words(rng)
        return documents.questions(rng, split, linked=self.member == "qa_2")
