"""The contract of a task: rows, what of them a model sees, and how predictions are scored.

Nothing here or in a task's module imports torch: rows are checked before a model is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

COMMON = 16
"""So many of the commonest right answers are tried as the answer to all rows."""


class DataError(ValueError):
    """Data that can't be used: one line with the file, the line, what was found and expected."""


class FetchError(DataError):
    """Data that is right to ask for, but that didn't come: no network, a hub that doesn't answer,
    a disk that is full."""


@dataclass(frozen=True)
class Row:
    """One sample. `query` is what a user asks (its tokens are the VIP tokens), `document` the
    long text; several references are several right answers. `second` is the other text of a pair
    that an encoder reads twice (LRA Retrieval). `support`, for training alone, says which sentences
    the answer rests on: the title of a paragraph and the sentence's number in it."""

    id: str
    query: str
    document: str
    references: tuple[str, ...]
    second: str | None = None
    support: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Data:
    """Where rows come from. `source` ∈ {embedded, local, hub}; `dir` is the local folder in the
    benchmark's official layout; `split` None takes the task's own evaluation split."""

    source: str = "embedded"
    dir: Path | None = None
    split: str | None = None


@dataclass(frozen=True)
class Loaded:
    """Rows ready to run, and what they are: the sha256 covers every row of the source."""

    rows: Sequence[Row]
    split: str
    sha256: str
    n_available: int


@dataclass(frozen=True)
class Encoded:
    """One row as a model reads it: token ids, which of them are VIP, and how many tokens the row
    had before it was cut to the length. `valid` None: all ids are; `second` is the other text of
    a pair."""

    ids: Sequence[int]
    vip: Sequence[bool]
    tokens_in: int
    valid: Sequence[bool] | None = None
    second: Encoded | None = None


class Tokenizer(Protocol):
    """The little of a Hugging Face tokenizer that an encoding needs."""

    eos_token_id: int | None

    def __call__(
        self, text: str, *, add_special_tokens: bool = ..., return_offsets_mapping: bool = ...
    ) -> Any: ...


@dataclass(frozen=True)
class Task:
    """A task of a benchmark. Fields come from its YAML; subclasses say how rows are found.

    length           tokens of input at which the benchmark or its paper is measured
    max_new_tokens   the generation limit
    metric           the name of the official metric in tasks.metrics
    truncation_side  which end of the document is dropped when a row is too long
    labels           classes of a classification task: a prediction is a class number as text
    vocabulary       number of ids of a task that has its own, and needs no tokenizer
    """

    name: str
    benchmark: str
    version: int
    metric: str
    max_new_tokens: int
    length: int
    truncation_side: str = "right"
    higher_is_better: bool = True
    labels: int | None = None
    vocabulary: int | None = None

    @property
    def answers(self) -> str:
        """What a model answers with: text, class (its number), choice (the number of one of the
        choices in the query) or span (a piece of the document, or yes or no)."""
        return "text" if self.labels is None else "class"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Markers of the inputs that should be tokens of their own."""
        return ()

    def spell(self, row: Row, answer: str) -> str:
        """The prediction that a model's answer stands for: of a choice its text."""
        return answer

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        """What a head learns to answer to an encoded row, from its first reference:

        class   its number
        choice  its number, from 0 in the order of the query
        span    0 no, 1 yes or 2 a span; the span's first and last token; and for each token whether
                what begins there is needed (0, 1). -100 where nothing is known: a span that was cut
                off, a token that begins nothing.

        Raises DataError for a reference that is no such answer."""
        if self.labels is None:
            raise NotImplementedError(f"{self.name} answers with {self.answers}")
        return [int(row.references[0])]

    def constants(self, rows: Sequence[Row]) -> list[list[str]]:
        """Answers to these rows that need no reading, one list for each way: each class, or each of
        the commonest right answers, to all of them. The best of them is the level of chance."""
        if self.labels is not None:
            answers = [str(label) for label in range(self.labels)]
        else:
            counted = Counter(answer for row in rows for answer in dict.fromkeys(row.references))
            answers = [answer for answer, _ in counted.most_common(COMMON)]
        return [[answer] * len(rows) for answer in answers]

    @property
    def metric_version(self) -> int:
        """Changes whenever the metric's definition could give another number."""
        raise NotImplementedError

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first n rows (None: all) for inputs of `length` tokens. Raises DataError."""
        raise NotImplementedError

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """At most `length` ids, query first and never cut, end-of-sequence last."""
        raise NotImplementedError

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, float]:
        """The official metric's figures; `value` is the one that ranks."""
        raise NotImplementedError

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """One number a row whose mean is `value`, for intervals and paired tests."""
        raise NotImplementedError
