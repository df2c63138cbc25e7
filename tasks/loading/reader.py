"""The base class of tasks on text: reads rows from a source, encodes and scores them.

A benchmark's module defines how a record becomes a row (`parse`) and, if the project has embedded
rows for it, how records in the same layout are generated (`make`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tasks import metrics
from tasks.base import (
    Data,
    DataError,
    Encoded,
    Loaded,
    NoEmbeddedRows,
    Row,
    Task,
    Tokenizer,
    Unanswerable,
)
from tasks.generators.seeds import SPLITS
from tasks.loading import prompts, records, sources
from tasks.loading.hub import fetched
from tasks.loading.merging import merged

EMBEDDED_ROWS = 128
# Splits up to this size are read completely, to count and validate all rows.
READ_WHOLE_BYTES = 200_000_000
_WITHHELD = "the benchmark withholds the answers of its test split: use data.split=validation"
OMITTED = "... [The rest of the text is omitted]"
_LEFT_OUT = "skip_unanswerable=true leaves such rows out"
CUTS = {"end": prompts.encode, "middle": prompts.encode_middle, "start": prompts.encode_end}
Records = TypeVar("Records")


@dataclass(frozen=True)
class Reader(Task):
    """A task whose rows are texts.

    member         its name within the benchmark
    embedded       the kind of embedded rows; each module lists its own kinds
    files          split → glob pattern of local files, or a list of patterns whose first match
                   counts; {length} in a pattern is 4k for inputs of 4,096 tokens
    hub            repo, revision and `file` or `files`: see tasks.loading.hub.fetch
    n              official number of ids in each split
    default_split  the split that is scored
    vip_after      tokens after the query that are VIP too. VCC's code for T5 has 1, since it
                   encodes the query separately with an end-of-sequence token
    decoder_prompt  the prompt of a decoder, for rows whose query comes first: a text with
                   {document} and, after it, {query}. Rows that are prompts (tasks.loading.prompts)
                   need none
    """

    member: str = ""
    embedded: str = ""
    files: Mapping[str, Any] = field(default_factory=dict, hash=False)
    hub: Mapping[str, Any] = field(default_factory=dict, hash=False)
    n: Mapping[str, int] = field(default_factory=dict, hash=False)
    licence: str = ""
    default_split: str = "validation"
    vip_after: int = 0
    decoder_prompt: str = "{document}\n\n{query}\n\nAnswer:"

    can_chat: ClassVar[bool] = True
    splits: ClassVar[tuple[str, ...]] = SPLITS
    # Whether `make` generates rows; if not, all rows are local or from the hub.
    has_embedded: ClassVar[bool] = True
    # Whether rows with the same id are several references of one row; otherwise they are an error.
    repeats: ClassVar[bool] = False
    kinds: ClassVar[Iterable[str]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass that overrides `encode` isn't expected to support chat templates."""
        super().__init_subclass__(**options)
        if "encode" in vars(cls):
            cls.can_chat = vars(cls).get("can_chat", False)

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
            fetched_paths = fetched(replace(self, length=length), split)
            return [(path, self.zip_member(path, split)) for path in fetched_paths]
        if split not in self.files:
            splits = ", ".join(self.files)
            raise DataError(f"{self.name} has no local files of split '{split}'; it has {splits}")
        patterns = sources.named_for(self.files[split], length)
        found = sources.local_files(data.dir, self.benchmark, patterns)
        paths = self.chosen(found, Path(data.dir or ""), length)
        return [(path, self.zip_member(path, split)) for path in paths]

    def chosen(self, paths: Sequence[Path], folder: Path, length: int) -> Sequence[Path]:
        """The files to read among those found in `folder`. Raises DataError for copies."""
        return sources.each_once(paths)

    def zip_member(self, path: Path, split: str) -> str:
        """The file to read in a zip, "" for any other file."""
        return records.member_of(path, split)

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
        left_out: list[str] = []
        answerable = self._parsed(parts, split, left_out if data.skip_unanswerable else None)
        rows, n_read = merged(answerable, n, whole, self.repeats)
        if not rows:
            source = ": ".join(filter(None, map(str, parts[0])))
            among = f"; {len(left_out)} without a right answer" if left_out else ""
            raise DataError(f"{source} has no rows; expected one or more{among}")
        # If reading stopped early, only the YAML's official number is known.
        n_read += len(left_out)
        available = n_read if whole else max(n_read, self.n.get(split, 0))
        sha256 = sources.sha256_of([path for path, _ in parts])
        return Loaded(rows, split, sha256, available, len(left_out))

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

    def _parsed(
        self, parts: list[tuple[Path, str]], split: str, left_out: list[str] | None
    ) -> Iterator[tuple[str, Row]]:
        """Rows with their locations. Rows without a right answer are added to `left_out`; if it is
        None, they raise DataError."""
        located = (pair for part in parts for pair in records.read(*part))
        for at, (where, record) in enumerate(located):
            try:
                row = self.parse(record, where, split, at)
                if not any(str(one).strip() for one in row.references) and not self.takes_empty:
                    raise Unanswerable(f"{where}: no right answer")
            except Unanswerable as error:
                if left_out is None:
                    is_withheld = split == "test" != self.default_split
                    hint = _WITHHELD if is_withheld else _LEFT_OUT
                    raise DataError(f"{error}; {hint}") from None
                left_out.append(where)
            else:
                yield where, row

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
        """The reference in a column. Raises Unanswerable if it is null or if it is missing in a
        test split, and DataError otherwise."""
        if record.get(column) is None and (column in record or split == "test"):
            raise Unanswerable(f"{where}: no {column}")
        return records.text(record, column, where)

    def right_answers(self, record: dict[str, Any], column: str, where: str) -> tuple[str, ...]:
        """The references in a column of one or more. Raises Unanswerable for a column without any,
        unless the metric accepts that, and DataError."""
        answers = records.texts(record, column, where)
        if not answers and not self.takes_empty:
            raise Unanswerable(f"{where}: column '{column}' has no right answer")
        return answers

    def fit_story(
        self, split: str, index: int, length: int, seed: int, spare: int,
        build: Callable[[Any], Records], count: Callable[[Records], int],
    ) -> Records:  # fmt: skip
        """The records that `build` makes of the longest story for which their `count` of tokens is
        at most `length`. At first `spare` tokens are reserved for a query; if it needs more, the
        story is shortened. Raises DataError if no story fits."""
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
            # A story of another size is a different one, whose query may have another length.
            room -= excess

    def count_tokens(self, record: dict[str, Any]) -> int:
        """Tokens of a record's row: query, document, the border between them and the end."""
        from tasks.generators import stories

        row = self.parse({"id": ""} | record, "an embedded row", self.default_split, 0)
        return stories.count_tokens(row.query) + stories.count_tokens(row.document) + 2

    # --- encoding and scores ------------------------------------------------------------------

    @property
    def cut(self) -> str:
        """The part that a prompt that is too long loses, one of CUTS."""
        return "start" if self.truncation_side == "left" else "end"

    def prompt_of(self, row: Row) -> prompts.Prompt:
        """The prompt of a row for a decoder."""
        if isinstance(row, prompts.Prompt):
            return row
        return prompts.from_template(row, self.decoder_prompt, OMITTED)

    def encode(self, row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
        """Rows whose query comes first are encoded by tasks.loading.prompts.encode_query_first;
        prompts, and all rows for a decoder, by the function of CUTS. A decoder has room for the new
        tokens."""
        if self.decoder:
            encode, room = CUTS[self.cut], length - self.max_new_tokens
            if room < 1:
                raise DataError(
                    f"length={length} is too short for {self.name}: {self.max_new_tokens} new "
                    "tokens follow the prompt (task.max_new_tokens)"
                )
            return encode(self.prompt_of(row), tokenizer, room, self.decoder)
        if isinstance(row, prompts.Prompt):
            return CUTS[self.cut](row, tokenizer, length)
        return prompts.encode_query_first(
            row, tokenizer, length, self.truncation_side, self.vip_after
        )

    @property
    def metric_version(self) -> int:
        return metrics.version(self.official, self.metric)

    @property
    def takes_empty(self) -> bool:
        """Whether its metric defines the score of a row without a right answer. A subclass's own
        metric, which isn't in tasks.metrics, doesn't."""
        try:
            return metrics.takes_empty(self.official, self.metric)
        except ValueError:
            return False

    @property
    def missing_package(self) -> str:
        """One line about what its metric needs and this machine lacks; "" if nothing."""
        return metrics.missing_package(self.official, self.metric)

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, Any]:
        """The official figures under their official names, and `value` in 0…100."""
        return metrics.compute(self.official, self.metric, predictions, references)

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """One number per row; their mean is `value`: see tasks.metrics.each."""
        return metrics.each(self.official, self.metric, predictions, references)
