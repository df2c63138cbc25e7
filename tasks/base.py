"""The interface of a task: its rows, their encoding for a model, and the scoring of predictions.

Neither this module nor a task's module imports torch: rows are validated before a model is loaded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

ANSWERS = {
    "text": "text",
    "class": "a class",
    "choice": "one of the choices that a question gives",
    "span": "a span of the context",
}
"""The kinds of answers that a task asks for and a model gives: see Task.answers."""
PLAIN, CHAT = "plain", "chat"
"""How a decoder is asked: by a text that it continues, or by a turn of its chat template."""
COMMON = 16
"""How many of the most common right answers are tried as constant answers."""


class DataError(ValueError):
    """Data that can't be used. The message is one line: file, line, found and expected contents."""


class Unanswerable(DataError):
    """A row without a right answer, where the metric needs one."""


class FetchError(DataError):
    """A valid request for data that failed: no network, no answer from the hub, a full disk."""


class NoEmbeddedRows(DataError):
    """data=embedded for a task that has no embedded rows."""


@dataclass(frozen=True)
class Row:
    """One sample.

    query       the question; its tokens are the VIP tokens
    document    the long text
    references  the right answers, one or more
    second      the other text of a pair, which is encoded separately (LRA Retrieval)
    support     for training only: the sentences that support the answer, each as the title of a
                paragraph and the sentence's number in it
    """

    id: str
    query: str
    document: str
    references: tuple[str, ...]
    second: str | None = None
    support: tuple[tuple[str, int], ...] = ()

    @property
    def text(self) -> str:
        """The document and all text that follows it in a prompt."""
        return self.document + self.query


Constant = Callable[[Row], str]
"""The answer to a row, found without reading its document."""


def _always(answer: str, row: Row) -> str:
    return answer


@dataclass(frozen=True)
class Data:
    """The source of rows. `source` is embedded, local or hub; `dir` is the local folder in the
    benchmark's official layout; `split` None means the split on which the task is evaluated.
    `skip_unanswerable` leaves out rows without a right answer, which otherwise are an error."""

    source: str = "embedded"
    dir: Path | None = None
    split: str | None = None
    skip_unanswerable: bool = False


@dataclass(frozen=True)
class Loaded:
    """Rows of a split. `sha256` covers all rows of the source, `n_available` is their number;
    `n_unanswerable` of the rows that were read had no right answer and were left out."""

    rows: Sequence[Row]
    split: str
    sha256: str
    n_available: int
    n_unanswerable: int = 0


@dataclass(frozen=True)
class Encoded:
    """One row as the input of a model.

    ids        token ids
    vip        for each id whether it is a VIP token
    tokens_in  number of tokens before truncation to the length
    valid      for each id whether it isn't padding; None: no padding
    second     the other text of a pair
    removed    the range of characters that truncation removed from the row's text, end exclusive.
               None: nothing was removed, or it isn't known
    estimated  whether `tokens_in` is an estimate: see tasks.loading.truncation.part
    """

    ids: Sequence[int]
    vip: Sequence[bool]
    tokens_in: int
    valid: Sequence[bool] | None = None
    second: Encoded | None = None
    removed: tuple[int, int] | None = None
    estimated: bool = False


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that encoding uses."""

    eos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...

    def __call__(
        self, text: str, *, add_special_tokens: bool = ..., return_offsets_mapping: bool = ...
    ) -> Any: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = ...) -> str: ...


@dataclass(frozen=True)
class Task:
    """A task of a benchmark. The fields are set in its YAML; subclasses load rows.

    length           input length in tokens at which the benchmark or its paper is evaluated
    max_new_tokens   the generation limit
    metric           the name of the official metric in tasks.metrics
    truncation_side  which end of the document is dropped if a row is too long
    labels           number of classes of a classification task: a prediction is a class number as
                     text
    vocabulary       number of ids of a task with its own ids, which needs no tokenizer
    stop             strings that end an answer, as in the official evaluator
    decoder          the form of a decoder's prompt, PLAIN or CHAT; None: the model isn't a decoder.
                     Set for each cell, not in a YAML
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
    stop: Sequence[str] = field(default=(), hash=False)
    decoder: str | None = None

    # Whether `encode` supports CHAT.
    can_chat: ClassVar[bool] = False

    @property
    def chats(self) -> bool:
        """Whether the official prompts belong in a chat template, if the model has one."""
        return self.can_chat

    @property
    def answers(self) -> str:
        """The kind of answer: text, class (its number), choice (the number of one of the choices in
        the query) or span (a part of the document, or yes or no)."""
        return "text" if self.labels is None else "class"

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Markers in the inputs that should be single tokens."""
        return ()

    def spell(self, row: Row, answer: str) -> str:
        """The prediction for a model's answer; for a choice it is the choice's text."""
        return answer

    def ended(self, text: str) -> str:
        """A generated text up to the first of the strings in `stop`."""
        for stop in filter(None, self.stop):
            text = text.partition(stop)[0]
        return text

    def target(self, row: Row, encoded: Encoded, tokenizer: Tokenizer) -> Sequence[int]:
        """The training target of a head for an encoded row, from its first reference:

        class   its number
        choice  its number, from 0 in the order of the query
        span    0 no, 1 yes or 2 a span; the span's first and last token; and for each token whether
                the title or sentence that begins there is needed (0, 1). -100 if unknown: for a
                span that was truncated, for a token at which neither begins

        Raises DataError if the reference isn't an answer of this kind."""
        if self.labels is None:
            raise NotImplementedError(f"{self.name} answers with {self.answers}")
        return [int(row.references[0])]

    def options(self, rows: Sequence[Row]) -> list[Constant]:
        """The possible answers of a guess: each class, or the choice at each position of a row; []
        where answers are free text."""
        return [partial(_always, str(label)) for label in range(self.labels or 0)]

    def constants(self, rows: Sequence[Row]) -> list[Constant]:
        """Answers that don't depend on the document: the options, and without classes the most
        common right answers of `rows`. The best of them is chance level (tasks.metrics.chance)."""
        options = self.options(rows)
        if self.labels is not None:
            return options
        answers = (dict.fromkeys(row.references or ("",)) for row in rows)
        counts = Counter(answer for each in answers for answer in each)
        return options + [partial(_always, answer) for answer, _ in counts.most_common(COMMON)]

    @property
    def metric_version(self) -> int:
        """Incremented with every change of the metric that could change a number."""
        raise NotImplementedError

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first n rows (None: all) for inputs of `length` tokens. `length` and `seed` affect
        embedded rows only. Raises DataError, NoEmbeddedRows if there are none."""
        raise NotImplementedError

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """At most `length` ids: the query first and never truncated, end-of-sequence last. With
        `decoder`, a prompt before the answer: its ids and the new tokens together are at most
        `length`."""
        raise NotImplementedError

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, float]:
        """The official metric's figures; `value` is the one used for ranking."""
        raise NotImplementedError

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """One number per row, for intervals and paired tests; their mean is `value`."""
        raise NotImplementedError
