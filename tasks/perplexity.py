"""Perplexity of real text after a prompt that the method has compressed.

A row is a stretch of a document. Its first `length` tokens are read: all but the last
`continuation` tokens as a prompt, the last ones one by one through the method's cache, each scored
by its negative log-likelihood in nats. The text has no template; it starts with a
beginning-of-sequence token if the tokenizer adds one.

Stretches of one document aren't independent samples: they have the same `document`, by which
intervals are clustered.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tasks.base import Constant, Data, DataError, Loaded, NoEmbeddedRows, Row, Tokenizer
from tasks.generators import seeds
from tasks.loading import records, sources
from tasks.loading.continuation import Continued
from tasks.loading.reader import Reader
from tasks.zeroscrolls import INDICES

CHARS_PER_TOKEN = 5
"""Characters of a stretch for each token that is read: English has 4 to 5."""
TEXTS = (".txt", ".md")


@dataclass(frozen=True)
class Stretch(Row):
    """`document` from character `start` to `stop`. An embedded stretch may continue into the topics
    after its own; then the document includes these characters too."""

    start: int = 0
    stop: int = 0


@dataclass(frozen=True)
class Perplexity(Reader):
    """Embedded text is the English of Python's help, `pydoc_data.topics`, which differs between
    versions of Python: the topics in the order of their names, one after the other. A stretch
    belongs to the topic in which it begins. Local text consists of the *.txt and *.md files in a
    folder, each a document.

    continuation  number of tokens that are scored, the last ones of `length`
    """

    continuation: int = 256
    default_split: str = "test"

    splits: ClassVar[tuple[str, ...]] = ("test",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.continuation < 1:
            raise ValueError(f"{self.name}: continuation={self.continuation}; it takes 1 or more")

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first stretches of all documents, then the second ones, …; embedded documents are in
        a random order. Raises DataError."""
        split = self.requested_split(data, n)
        if length <= self.continuation:
            raise DataError(
                f"length={length} is too short for {self.name}: it has a prompt and "
                f"task.continuation={self.continuation} tokens after it"
            )
        size = CHARS_PER_TOKEN * length
        stretches: list[Stretch]
        if data.source == "embedded":
            text, stretches = self.embedded_text(size)
            digest = hashlib.sha256(f"seed {seed}\n{text}".encode()).hexdigest()
            order = [*dict.fromkeys(row.document for row in stretches)]
            seeds.stream("perplexity", seed).shuffle(order)
        else:
            documents, digest = self.documents(data, split)
            stretches = [*cut(documents, size)]
            order = [*dict.fromkeys(row.document for row in stretches)]
        if not stretches:
            raise DataError(
                f"{self.name}: no document has the {size:,} characters that length={length} needs, "
                f"{CHARS_PER_TOKEN} for each token"
            )
        return Loaded(_in_turns(stretches, order)[:n], split, digest, len(stretches))

    def embedded_text(self, size: int) -> tuple[str, list[Stretch]]:
        """The whole text and its stretches of `size` characters."""
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise NoEmbeddedRows(
                f"{self.name}: this Python ({sys.version.split()[0]}) has no pydoc_data; use "
                "data=local data.dir=FOLDER"
            ) from None
        names = sorted(topics)
        texts = [f"{topics[name].strip()}\n\n\n" for name in names]
        text = "".join(texts)
        bounds = [*itertools.accumulate(map(len, texts), initial=0)]
        stretches = []
        for at in range(0, len(text) - size + 1, size):
            topic = bisect_right(bounds, at) - 1
            first, after = bounds[topic : topic + 2]
            document, start = text[first : after + size], at - first
            row_id = f"{names[topic]}@{start}"
            stretches.append(Stretch(row_id, "", document, (), start=start, stop=start + size))
        return text, stretches

    def documents(self, data: Data, split: str) -> tuple[Iterable[tuple[str, str]], str]:
        """Name and text of each document of a source that isn't embedded, and its sha256."""
        if data.source != "local" or data.dir is None:
            raise DataError(f"{self.name} reads data=local data.dir=FOLDER, or embedded text")
        folder = Path(data.dir)
        paths = sorted(path for path in folder.rglob("*") if path.suffix in TEXTS)
        if not paths:
            raise DataError(f"no file {' or '.join(f'*{end}' for end in TEXTS)} in {folder}")
        texts = ((str(path.relative_to(folder)), _text(path)) for path in paths)
        return texts, sources.sha256_of(paths)

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Continued:
        """The first `length` tokens of a stretch, or all if it has fewer. Raises DataError if none
        is left for the prompt."""
        assert isinstance(row, Stretch)
        text = row.document[row.start : row.stop]
        first = tokenizer("", add_special_tokens=True)["input_ids"][:1]
        begin = first if first == [getattr(tokenizer, "bos_token_id", None)] else []
        ids = [*begin, *tokenizer(text, add_special_tokens=False)["input_ids"]][:length]
        prompt, continuation = ids[: -self.continuation], ids[-self.continuation :]
        if not prompt:
            raise DataError(
                f"row {row.id} has {len(ids)} tokens, no more than task.continuation="
                f"{self.continuation}"
            )
        return Continued(prompt, [False] * len(prompt), len(prompt), continuation=continuation)

    def constants(self, rows: Sequence[Row]) -> list[Constant]:
        """No constants, since no text is an answer."""
        return []

    def perfect(self, row: Row) -> str:
        """The prediction with the best score."""
        return '{"nll": [0.0]}'

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, Any]:
        """See tasks.metrics.likelihood; `perplexity` is exp(value)."""
        figures = dict(super().score(predictions, references))
        return figures | {"perplexity": math.exp(figures["value"])}


@dataclass(frozen=True)
class ZeroScrollsPerplexity(Perplexity):
    """The documents of a task of ZeroSCROLLS, <member>.zip with <member>/<split>.jsonl, without the
    prompts around them; a document with several questions is read once."""

    default_split: str = "validation"

    has_embedded: ClassVar = False
    splits: ClassVar = ("validation", "test")

    def embedded_text(self, size: int) -> tuple[str, list[Stretch]]:
        raise NoEmbeddedRows(
            f"{self.name} has no embedded rows: use data=local data.dir=FOLDER or data=hub"
        )

    def documents(self, data: Data, split: str) -> tuple[Iterable[tuple[str, str]], str]:
        ((path, member),) = replace(self, benchmark="zero_scrolls").zipped(data, split)
        names: dict[str, str] = {}
        for where, record in records.read(path, member):
            text = records.text(record, "input", where)
            start, stop = (records.column(record, name, where) for name in INDICES[:2])
            if not (isinstance(start, int) and isinstance(stop, int)):
                raise DataError(f"{where}: {INDICES[:2]} hold {start!r}, {stop!r}, not numbers")
            names.setdefault(text[start:stop], records.text(record, "id", where))
        return ((name, document) for document, name in names.items()), sources.sha256(path)


def cut(documents: Iterable[tuple[str, str]], size: int) -> Iterator[Stretch]:
    """Stretches of `size` characters of documents, given by name and text. Shorter documents and
    shorter remainders are left out."""
    for name, text in documents:
        for at in range(0, len(text) - size + 1, size):
            yield Stretch(f"{name}@{at}", "", text, (), start=at, stop=at + size)


def _in_turns(stretches: Sequence[Stretch], order: Sequence[str]) -> list[Stretch]:
    """The first stretch of each document, in this order, then the second ones, …"""
    place = {document: at for at, document in enumerate(order)}
    seen: Counter[str] = Counter()
    keyed = []
    for row in stretches:
        keyed.append(((seen[row.document], place[row.document]), row))
        seen[row.document] += 1
    return [row for _, row in sorted(keyed, key=lambda pair: pair[0])]


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 at byte {error.start}") from None
