"""The base class of tasks on text: reads rows from a source, encodes and scores them.

A benchmark's module says how one of its records becomes a row (`parse`) and, if the project has
embedded rows for it, how records in the same layout are generated (`make`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tasks import metrics
from tasks.base import Data, DataError, Encoded, Loaded, NoEmbeddedRows, Row, Task, Tokenizer
from tasks.generators.seeds import SPLITS
from tasks.loading import records, sources, truncation
from tasks.loading.hub import fetched

EMBEDDED_ROWS = 128
# Splits up to this size are read completely, to count and validate all rows.
READ_WHOLE_BYTES = 200_000_000
_WITHHELD = {
    True: "the benchmark withholds the answers of its test split: use data.split=validation",
    False: "there is nothing to score against",
}
Records = TypeVar("Records")


@dataclass(frozen=True)
class Reader(Task):
    """A task whose rows are texts.

    member         its name within the benchmark
    embedded       the kind of embedded rows; each module lists its own kinds
    files          split → glob pattern of local files, or a list of which the first match counts;
                   {length} in one is 4k for inputs of 4,096 tokens
    hub            repo, revision and `file` or `files`: see tasks.loading.hub.fetch
    n              official number of ids in each split
    default_split  the split that is scored
    vip_after      tokens after the query that are VIP too. VCC's code for T5 has 1: it counts the
                   end-of-sequence token of a query that is encoded alone
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
    # Whether `make` gives rows: else all rows are local or the hub's.
    has_embedded: ClassVar[bool] = True
    # Whether rows with the same id are several references of one row; otherwise they are an error.
    repeats: ClassVar[bool] = False
    kinds: ClassVar[Iterable[str]] = ()

    def __post_init__(self) -> None:
        self.check_choice("truncation_side", ("left", "right"))
        if self.kinds:
            self.check_choice("embedded", self.kinds)

    def check_choice(self, name: str, accepted: Iterable[Any]) -> None:
        """Raise ValueError unless the field `name` has one of the accepted values."""
        if (value := getattr(self, name)) not in accepted:
            choices = ", ".join(map(str, accepted))
            raise ValueError(f"{self.name}: {name}={value}; accepted: {choices}")

    # --- for subclasses -----------------------------------------------------------------------

    def parse(self, record: dict[str, Any], where: str, split: str, at: int) -> Row:
        """The row of record number `at` of the split. DataErrors give the location `where`."""
        raise NotImplementedError

    def make(self, split: str, index: int, length: int, seed: int) -> list[dict[str, Any]]:
        """Generated records of embedded row `index`, in the benchmark's columns; several records
        are several references. The row has at most `length` tokens. A task without embedded rows
        doesn't override this."""
        raise NoEmbeddedRows(
            f"{self.name} has no embedded rows: use data=local data.dir=FOLDER"
            + (" or data=hub" if self.hub else "")
        )

    def parts(self, data: Data, split: str, length: int) -> list[tuple[Path, str]]:
        """Files of a split, each with the member to read if it is a zip."""
        if data.source == "hub":
            return [(path, "") for path in fetched(replace(self, length=length), split)]
        if split not in self.files:
            splits = ", ".join(self.files)
            raise DataError(f"{self.name} has no local files of split '{split}'; it has {splits}")
        patterns = sources.named_for(self.files[split], length)
        paths = sources.local_files(data.dir, self.benchmark, patterns)
        return [(path, "") for path in paths]

    def zipped(self, data: Data, split: str) -> list[tuple[Path, str]]:
        """`parts` for a benchmark whose <member>.zip holds <member>/<split>.jsonl."""
        if data.source == "hub":
            (path,) = fetched(self)
        else:
            path = sources.local_file(data.dir, self.benchmark, f"{self.member}.zip")
        return [(path, f"{self.member}/{split}.jsonl")]

    @property
    def official(self) -> str:
        """The name that tasks.metrics expects: the benchmark, and the member after a slash."""
        return f"{self.benchmark}/{self.member}" if self.member else self.benchmark

    # --- rows ---------------------------------------------------------------------------------

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first n ids of a split. None takes all, or 128 embedded rows. `length` and `seed`
        affect embedded rows only. Raises DataError."""
        split = self.requested_split(data, n)
        if data.source == "embedded":
            return self._embedded(split, n or EMBEDDED_ROWS, length, seed)
        if self.missing_package:
            raise DataError(f"{self.name}: {self.missing_package}")
        parts = self.parts(data, split, length)
        whole = n is None or sum(records.size(*part) for part in parts) <= READ_WHOLE_BYTES
        rows, n_read = merged(self._parsed(parts, split), n, whole, self.repeats)
        source = f"{parts[0][0]}{': ' if parts[0][1] else ''}{parts[0][1]}"
        if not rows:
            raise DataError(f"{source} has no rows; expected one or more")
        if not any(reference.strip() for row in rows for reference in row.references):
            raise DataError(f"{source} has empty outputs only; {_WITHHELD[split == 'test']}")
        # If reading stopped early, the YAML's official number is all that is known.
        available = n_read if whole else max(n_read, self.n.get(split, 0))
        return Loaded(rows, split, sources.sha256_of([path for path, _ in parts]), available)

    def ids(self, data: Data) -> list[str]:
        """All ids of a split in order, also where the answers are withheld."""
        split = self.requested_split(data)
        if data.source == "embedded":
            return [row.id for row in self._embedded(split, EMBEDDED_ROWS, self.length, 0).rows]
        ids: dict[str, None] = {}
        for part in self.parts(data, split, self.length):
            for where, record in records.read(*part):
                ids[records.text(record, "id", where)] = None
        return list(ids)

    def requested_split(self, data: Data, n: int | None = None) -> str:
        """The split of a request. Raises DataError unless its source, split and n exist."""
        if n is not None and n < 1:
            raise DataError(f"n={n}; expected 1 or more")
        if data.source not in ("embedded", "local", "hub"):
            raise DataError(f"no source '{data.source}'; accepted: embedded, local, hub")
        split = data.split or self.default_split
        if split not in self.splits:
            raise DataError(f"{self.name} has no split '{split}'; it has {', '.join(self.splits)}")
        return split

    def _parsed(self, parts: list[tuple[Path, str]], split: str) -> Iterator[tuple[str, Row]]:
        located = (pair for part in parts for pair in records.read(*part))
        for at, (where, record) in enumerate(located):
            yield where, self.parse(record, where, split, at)

    def _embedded(self, split: str, n: int, length: int, seed: int) -> Loaded:
        from tasks.generators import stories

        digest = hashlib.sha256(f"stories {stories.VERSION}".encode())
        rows = []
        for index in range(n):
            row_id = f"embedded-{split}-{seed}-{index:03d}"
            for generated in self.make(split, index, length, seed):
                record = {"id": row_id} | generated
                row = self.parse(record, f"embedded row {index}", split, index)
                rows.append((row_id, replace(row, id=row_id)))
                digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
        kept, _ = merged(rows, None, True, True)
        return Loaded(kept, split, digest.hexdigest(), max(n, EMBEDDED_ROWS))

    def answer(self, record: dict[str, Any], column: str, where: str, split: str) -> str:
        """The reference in a column. The DataError says if the benchmark withholds it."""
        if record.get(column) is None and split == "test":
            raise DataError(f"{where}: no {column}; {_WITHHELD[True]}")
        return records.text(record, column, where)

    def fit_story(
        self, split: str, index: int, length: int, seed: int, spare: int,
        build: Callable[[Any], Records], count: Callable[[Records], int],
    ) -> Records:  # fmt: skip
        """The records that `build` makes of a story, with the longest story for which their
        `count` of tokens is at most `length`. `spare` tokens are reserved for a query at first; if
        it needs more, the story is shortened. Raises DataError if no story fits."""
        from tasks.generators import stories

        room = length - spare
        while True:
            try:
                story = stories.story(split, index, room, seed)
            except ValueError:
                least = length - room + stories.LEAST
                raise DataError(
                    f"length={length} is too short for a story: {least} at least"
                ) from None
            built = build(story)
            excess = count(built) - length
            if excess <= 0:
                return built
            # Another size is another story, so its query may have another length too.
            room -= excess

    def count_tokens(self, record: dict[str, Any]) -> int:
        """Tokens of a record's row: query, document, the border between them and the end."""
        from tasks.generators import stories

        row = self.parse({"id": ""} | record, "an embedded row", self.default_split, 0)
        return stories.count_tokens(row.query) + stories.count_tokens(row.document) + 2

    # --- encoding and scores ------------------------------------------------------------------

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """Query, document and the end-of-sequence token (if the tokenizer has one); the document is
        truncated to `length` ids in all. `tokens_in` counts all three before truncation. Raises
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
        tokens_in, removed = len(query) + len(document) + len(end), None
        if (excess := len(document) - room) > 0:
            from_left = self.truncation_side == "left"
            document = document[excess:] if from_left else document[:room]
            ends = (0, room) if from_left else (room, 0)
            removed = truncation.removed(row.document, tokenizer, *ends, special=False)
        ids = query + document + end
        n_vip = min(len(query) + self.vip_after, len(ids))
        vip = [True] * n_vip + [False] * (len(ids) - n_vip)
        return Encoded(ids, vip, tokens_in, removed=removed)

    @property
    def metric_version(self) -> int:
        return metrics.version(self.official, self.metric)

    @property
    def missing_package(self) -> str:
        """What its metric lacks on this machine, in one line; "" if nothing."""
        return metrics.missing_package(self.official, self.metric)

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, Any]:
        """The official figures under their official names, and `value` in 0…100."""
        return metrics.compute(self.official, self.metric, predictions, references)

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """One number per row whose mean is `value`: see tasks.metrics.each."""
        return metrics.each(self.official, self.metric, predictions, references)


def merged(
    rows: Iterable[tuple[str, Row]], n: int | None, whole: bool, repeats: bool
) -> tuple[list[Row], int]:
    """The first n ids as rows with all their references in order, and the number of ids read.

    Rows with the same id are adjacent in the benchmarks. One that occurs again later is merged if
    the split is read completely (`whole`), and must have the same input.
    """
    kept: dict[str, list[Row]] = {}
    inputs: dict[str, int] = {}
    documents: dict[str, str] = {}
    for where, row in rows:
        if not whole and row.id not in inputs and len(inputs) == n:
            break
        content = hash((row.query, row.document))
        if row.id in inputs and not repeats:
            raise DataError(f"{where}: id '{row.id}' came before; expected each id once")
        if inputs.setdefault(row.id, content) != content:
            raise DataError(
                f"{where}: id '{row.id}' came before with another input; expected the same input "
                "(a further reference), or another id"
            )
        if row.id in kept:
            kept[row.id].append(row)
        elif n is None or len(kept) < n:
            # NarrativeQA asks about thirty questions per book; keep one copy of its text.
            kept[row.id] = [replace(row, document=documents.setdefault(row.document, row.document))]
    result = [
        group[0]
        if len(group) == 1
        else replace(group[0], references=tuple(text for row in group for text in row.references))
        for group in kept.values()
    ]
    return result, len(inputs)
