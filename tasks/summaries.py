"""Summaries of news, dialogues, papers and groups of articles, used by VCC and FourierTransformer.

CNN/DailyMail (Hermann et al., 2015, arXiv:1506.03340; non-anonymised, See et al., 2017), MediaSum
(Zhu et al., 2021, arXiv:2103.06410), arXiv (Cohan et al., 2018, arXiv:1804.05685), Multi-News
(Fabbri et al., 2019, arXiv:1906.01749): a document, a summary, no query. Their columns are given in
conf/task/*.yaml, so another data set of summaries needs only a YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tasks.base import DataError, Row
from tasks.loading import records
from tasks.loading.reader import Reader

# VCC's query for every task without one; its tokens are VIP.
QUERY = "summarize"
KINDS = ("article", "dialogue", "articles", "gist")
# Multi-News' separator between the articles of a group.
BORDER = "|||||"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[\"'“‘(]?[A-Z0-9])")


@dataclass(frozen=True)
class Summaries(Reader):
    """Documents with summaries.

    columns   document, summary and id in the benchmark's files. Without `id` a row's id is its
              split and number. A document that is a list of turns is joined by blank lines
    embedded  article, dialogue (a list of turns), articles (a group of them), or gist: a text whose
              summary doesn't depend on any single sentence (tasks.generators.gist)
    """

    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    embedded: str = "article"

    kinds: ClassVar = KINDS

    def __post_init__(self) -> None:
        super().__post_init__()
        for required in ("document", "summary"):
            if required not in self.columns:
                raise ValueError(f"{self.name}: columns has no '{required}'")

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        # An empty document is valid: 114 stories of CNN/DailyMail have no article.
        document = self._document(record, where)
        summary = self.answer(record, self.columns["summary"], where, split)
        column = self.columns.get("id")
        row_id = records.text(record, column, where) if column else f"{split}-{at:06d}"
        return Row(row_id, QUERY, document, (summary,))

    def _document(self, record: dict[str, Any], where: str) -> str:
        column = self.columns["document"]
        turns = record.get(column)
        if isinstance(turns, list) and all(isinstance(turn, str) for turn in turns):
            speakers = record.get(self.columns.get("speakers", ""))
            if isinstance(speakers, list) and len(speakers) == len(turns):
                turns = [
                    f"{records.spelled(speaker, self.columns['speakers'], where)}: {turn}"
                    for speaker, turn in zip(speakers, turns, strict=True)
                ]
            record = {column: "\n\n".join(turns)}
        return records.text(record, column, where)

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        if self.embedded == "gist":
            return [self._gist(split, index, length, seed)]

        def build(story: Any) -> dict[str, Any]:
            summary = "\n".join(sentences(story.summary))
            document: str | list[str] = story.text
            if self.embedded == "dialogue":
                document = [f"{'AB'[i % 2]}: {s}" for i, s in enumerate(sentences(story.text))]
            elif self.embedded == "articles":
                every = sentences(story.text)
                half = len(every) // 2
                document = f"{' '.join(every[:half])} {BORDER} {' '.join(every[half:])}"
            record = {self.columns["document"]: document, self.columns["summary"]: summary}
            return record | ({self.columns["id"]: ""} if "id" in self.columns else {})

        # A turn's speaker takes two more tokens, and its blank line another one.
        return [self.fit_story(split, index, length, seed, 4, build, self.count_tokens)]

    def _gist(self, split: str, index: int, length: int, seed: int) -> dict[str, Any]:
        from tasks.generators import gist

        try:
            generated = gist.gist(split, index, length - gist.AROUND, seed)
        except ValueError:
            least = gist.LEAST + gist.AROUND
            raise DataError(f"length={length} is too short for a text: {least} at least") from None
        return {
            self.columns["document"]: generated.text, self.columns["summary"]: generated.summary
        }  # fmt: skip

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, float]:
        """ROUGE-1, 2, L and Lsum, stemmed, with one sentence per line: see `lines`."""
        return super().score([lines(one) for one in predictions], _all_lines(references))

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """Each row's ROUGE-Lsum."""
        return super().score_each([lines(one) for one in predictions], _all_lines(references))


def sentences(text: str) -> list[str]:
    """A text split after `.`, `!` or `?` before a capital or a digit. NLTK's splitter, which
    rouge_score uses, has to be downloaded first; on news the two differ at abbreviations."""
    return [part for part in _SENTENCE_END.split(text.strip()) if part]


def lines(text: str) -> str:
    """A text with one sentence per line, as ROUGE-Lsum expects. Existing lines are kept."""
    return text if "\n" in text.strip() else "\n".join(sentences(text))


def _all_lines(references: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[lines(text) for text in row] for row in references]
