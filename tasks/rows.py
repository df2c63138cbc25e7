"""What tasks of texts share: rows read from a source, encoded with their query, and scored.

A benchmark's own module says how one of its records becomes a row (`parse`), and how embedded
records in the same layout are made (`make`); everything else is here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tasks import metrics, records, sources
from tasks.base import Data, DataError, Encoded, Loaded, Row, Task, Tokenizer

SPLITS = ("train", "validation", "test")
EMBEDDED_ROWS = 128
# Splits up to this size are read to the end, which counts their rows and checks all of them.
READ_WHOLE_BYTES = 200_000_000
_WITHHELD = {
    True: "the benchmark withholds the answers of its test split: use data.split=validation",
    False: "there is nothing to score against",
}
Made = TypeVar("Made")


@dataclass(frozen=True)
class Reader(Task):
    """A task whose rows are texts.

    member         its name within the benchmark
    embedded       what its embedded rows are made of; each module lists its own kinds
    files          split → pattern (or several, the first that matches counts) of local files
    hub            repo, revision and `file` or `files`: see tasks.sources.fetch
    n              official number of ids in each split
    default_split  the split that can be scored
    vip_after      tokens behind the query that are VIP too; 1 is what VCC's code for T5 does, which
                   counts the end of a query encoded alone
    """

    member: str = ""
    embedded: str = ""
    files: Mapping[str, Any] = field(default_factory=dict, hash=False)
    hub: Mapping[str, Any] = field(default_factory=dict, hash=False)
    n: Mapping[str, int] = field(default_factory=dict, hash=False)
    licence: str = ""
    default_split: str = "validation"
    vip_after: int = 0

    splits: ClassVar[tuple[str, ...]] = SPLITS
    # Whether rows of one id are several references of it; otherwise an id twice is an error.
    repeats: ClassVar[bool] = False
    kinds: ClassVar[Iterable[str]] = ()

    def __post_init__(self) -> None:
        self.check_choice("truncation_side", ("left", "right"))
        if self.kinds:
            self.check_choice("embedded", self.kinds)

    def check_choice(self, name: str, accepted: Iterable[Any]) -> None:
        """ValueError unless a field holds one of the accepted values."""
        if (given := getattr(self, name)) not in accepted:
            known = ", ".join(map(str, accepted))
            raise ValueError(f"{self.name}: {name}={given}; accepted: {known}")

    # --- what a benchmark's module says -------------------------------------------------------

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        """The row of one record; `at` is its number in the split. DataError says `where`."""
        raise NotImplementedError

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        """Embedded records of row `index`, in the benchmark's columns; several of them are
        several references. The row fits into `length` tokens."""
        raise NotImplementedError

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        """Files of a split, each with the member to read where it is a zip."""
        if data.source == "hub":
            return [(path, "") for path in sources.fetched(self, split)]
        if split not in self.files:
            held = ", ".join(self.files)
            raise DataError(f"{self.name} has no local files of split '{split}'; it has {held}")
        found = sources.local_files(data.dir, self.benchmark, self.files[split])
        return [(path, "") for path in found]

    def zipped(self, data: Data, split: str) -> list[tuple[Path, str]]:
        """`parts` of a benchmark whose <member>.zip holds <member>/<split>.jsonl."""
        if data.source == "hub":
            (path,) = sources.fetched(self)
        else:
            path = sources.local_file(data.dir, self.benchmark, f"{self.member}.zip")
        return [(path, f"{self.member}/{split}.jsonl")]

    @property
    def official(self) -> str:
        """The benchmark, and the member after a slash, as tasks.metrics wants it."""
        return f"{self.benchmark}/{self.member}" if self.member else self.benchmark

    # --- rows ---------------------------------------------------------------------------------

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first n ids of a split; None takes all, or 128 embedded rows. `length` and `seed`
        shape embedded rows only. Raises DataError."""
        if n is not None and n < 1:
            raise DataError(f"n={n}; expected 1 or more")
        split = self._split(data)
        if data.source == "embedded":
            return self._embedded(split, n or EMBEDDED_ROWS, length, seed)
        parts = self.parts(data, split, length)
        whole = n is None or sum(records.size(*part) for part in parts) <= READ_WHOLE_BYTES
        rows, seen = merged(self._parsed(parts, split), n, whole, self.repeats)
        what = f"{parts[0][0]}{': ' if parts[0][1] else ''}{parts[0][1]}"
        if not rows:
            raise DataError(f"{what} has no rows; expected one or more")
        if not any(reference.strip() for row in rows for reference in row.references):
            raise DataError(f"{what} has empty outputs only; {_WITHHELD[split == 'test']}")
        # A reading that stopped early knows no more than the benchmark says of itself.
        available = seen if whole else max(seen, self.n.get(split, 0))
        return Loaded(rows, split, sources.sha256_of([path for path, _ in parts]), available)

    def ids(self, data: Data) -> list[str]:
        """Every id of a split in order, also of one whose answers are withheld."""
        split = self._split(data)
        if data.source == "embedded":
            return [row.id for row in self._embedded(split, EMBEDDED_ROWS, self.length, 0).rows]
        found: dict[str, None] = {}
        for part in self.parts(data, split, self.length):
            for where, record in records.read(*part):
                found[sources.text(record, "id", where)] = None
        return list(found)

    def _split(self, data: Data) -> str:
        if data.source not in ("embedded", "local", "hub"):
            raise DataError(f"no source '{data.source}'; accepted: embedded, local, hub")
        split = data.split or self.default_split
        if split not in self.splits:
            raise DataError(f"{self.name} has no split '{split}'; it has {', '.join(self.splits)}")
        return split

    def _parsed(self, parts: list[tuple[Path, str]], split: str) -> Iterator[tuple[str, Row]]:
        at = 0
        for part in parts:
            for where, record in records.read(*part):
                yield where, self.parse(record, where, split, at)
                at += 1

    def _embedded(self, split: str, n: int, length: int, seed: int) -> Loaded:
        from tasks import stories

        digest = hashlib.sha256(f"stories {stories.VERSION}".encode())
        rows = []
        for index in range(n):
            name = f"embedded-{split}-{seed}-{index:03d}"
            for made in self.make(split, index, length, seed):
                record = {"id": name} | made
                row = self.parse(record, f"embedded row {index}", split, index)
                rows.append((name, replace(row, id=name)))
                digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
        kept, _ = merged(rows, None, True, True)
        return Loaded(kept, split, digest.hexdigest(), max(n, EMBEDDED_ROWS))

    def answer(self, record: dict[str, Any], column: str, where: str, split: str) -> str:
        """A column with a reference. DataError says so where the benchmark withholds it."""
        if record.get(column) is None and split == "test":
            raise DataError(f"{where}: no {column}; {_WITHHELD[True]}")
        return sources.text(record, column, where)

    def fitted(
        self, split: str, index: int, length: int, seed: int, spare: int,
        build: Callable[[Any], Made], tokens: Callable[[Made], int],
    ) -> Made:  # fmt: skip
        """What `build` makes of a story, the longest that fits: `tokens` of it are at most
        `length`. `spare` tokens are kept for a query at first; if it needs more, the story gives
        them. DataError if no story is short enough."""
        from tasks import stories

        room = length - spare
        while True:
            try:
                story = stories.story(split, index, room, seed)
            except ValueError as error:
                raise DataError(f"length={length} is too short for a story: {error}") from None
            made = build(story)
            over = tokens(made) - length
            if over <= 0:
                return made
            # The facts move with the story's size, so its next question may be another one.
            room -= over

    def count(self, record: dict[str, Any]) -> int:
        """Tokens of a record as a row with query, document, their border and the end."""
        from tasks import stories

        row = self.parse({"id": ""} | record, "an embedded row", self.default_split, 0)
        return stories.count_tokens(row.query) + stories.count_tokens(row.document) + 2

    # --- encoding and scores ------------------------------------------------------------------

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """Query, document and end-of-sequence (where the tokenizer has one); the document is cut
        so that all is at most `length` ids. `tokens_in` counts all three before the cut.
        DataError if the query alone is too long."""
        query = list(tokenizer(row.query, add_special_tokens=False)["input_ids"])
        document = list(tokenizer(row.document, add_special_tokens=False)["input_ids"])
        end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        room = length - len(query) - len(end)
        if room < 0:
            raise DataError(
                f"row {row.id}: its query has {len(query)} tokens, "
                f"more than fit in length={length} with {len(end)} for the end"
            )
        tokens_in = len(query) + len(document) + len(end)
        if len(document) > room:
            cut = len(document) - room
            document = document[cut:] if self.truncation_side == "left" else document[:room]
        ids = query + document + end
        first = min(len(query) + self.vip_after, len(ids))
        vip = [True] * first + [False] * (len(ids) - first)
        return Encoded(ids, vip, tokens_in)

    @property
    def metric_version(self) -> int:
        return metrics.version(self.official, self.metric)

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, Any]:
        """The official figures under their official names, and `value` in 0…100."""
        return metrics.compute(self.official, self.metric, predictions, references)

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """One number a row whose mean is `value`: see tasks.metrics.each."""
        return metrics.each(self.official, self.metric, predictions, references)


def merged(
    rows: Iterable[tuple[str, Row]], n: int | None, whole: bool, repeats: bool
) -> tuple[list[Row], int]:
    """The first n ids as rows with all their references in order, and the number of ids read.

    Rows of one id follow each other in the benchmark; one that comes back later still counts if
    the split is read to its end (`whole`), and must have the same input.
    """
    kept: dict[str, list[Row]] = {}
    seen: dict[str, int] = {}
    documents: dict[str, str] = {}
    for where, row in rows:
        if not whole and row.id not in seen and len(seen) == n:
            break
        content = hash((row.query, row.document))
        if row.id in seen and not repeats:
            raise DataError(f"{where}: id '{row.id}' came before; expected each id once")
        if seen.setdefault(row.id, content) != content:
            raise DataError(
                f"{where}: id '{row.id}' came before with another input; expected the same input "
                "(a further reference), or another id"
            )
        if row.id in kept:
            kept[row.id].append(row)
        elif n is None or len(kept) < n:
            # NarrativeQA asks some thirty questions of each book; one copy is enough.
            kept[row.id] = [replace(row, document=documents.setdefault(row.document, row.document))]
    found = [
        replace(same[0], references=tuple(text for row in same for text in row.references))
        for same in kept.values()
    ]
    return found, len(seen)
