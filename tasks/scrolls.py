"""SCROLLS (Shaham et al., 2022, arXiv:2201.03533): seven tasks over long documents, one reader.

A row of the benchmark is {id, pid, input, output}; the input holds the query, if there is one,
and the document, and rows with one id are several references of it. What differs between tasks
stands in conf/task/*.yaml. Embedded rows are stories laid out like the benchmark's rows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks import metrics, sources
from tasks.base import Data, DataError, Encoded, Loaded, Row, Task, Tokenizer

SPLITS = ("train", "validation", "test")
# Test outputs are withheld by the benchmark, so validation is what can be scored.
DEFAULT_SPLIT = "validation"
EMBEDDED_ROWS = 128
# Splits up to this size are read to the end, which counts their rows and checks all of them.
READ_WHOLE_BYTES = 200_000_000
# Tokens kept for an embedded row's query at first; a longer one makes the story shorter.
QUERY_TOKENS = {"question": 16, "recap": 16, "claim": 16, "options": 88, "summary": 2}
_WITHHELD = {
    True: "the benchmark withholds the answers of its test split: use data.split=validation",
    False: "there is nothing to score against",
}


def paragraph(text: str) -> tuple[str, str]:
    """(query, document): the query is what stands before the first blank line."""
    query, found, document = text.partition("\n\n")
    if not found or not query.strip():
        raise ValueError("no query before a blank line")
    return query.strip(), document.lstrip("\n")


def options(text: str) -> tuple[str, str]:
    """(query, document): the query is the question and its four option lines, (A) to (D)."""
    end = 0
    for letter in "ABCD":
        found = re.compile(rf"\n *\({letter}\) ?").search(text, end)
        if not found:
            raise ValueError(f"no option line ({letter}) after the question")
        end = found.end()
    # The last option ends with its line: what follows is the article.
    line_end = text.find("\n", end)
    line_end = len(text) if line_end < 0 else line_end
    return text[:line_end].strip(), text[line_end:].lstrip("\n")


def none(text: str) -> tuple[str, str]:
    """(query, document): the whole input is the document, and VCC asks to "summarize" it."""
    return "summarize", text


QUERIES = {"paragraph": paragraph, "options": options, "none": none}


@dataclass(frozen=True)
class Scrolls(Task):
    """One task of SCROLLS.

    member    its name in the benchmark: <member>.zip holds <member>/<split>.jsonl
    query     where the query stands in an input: paragraph, options or none (see QUERIES)
    embedded  what of a story makes its embedded rows: question, recap, options, summary, claim
    hub       repo, file and revision of its zip
    n         official number of ids in each split
    """

    member: str = ""
    query: str = "paragraph"
    embedded: str = "question"
    hub: Mapping[str, Any] = field(default_factory=dict, hash=False)
    n: Mapping[str, int] = field(default_factory=dict, hash=False)
    licence: str = ""

    def __post_init__(self) -> None:
        for name, accepted in (
            ("query", QUERIES),
            ("embedded", QUERY_TOKENS),
            ("truncation_side", ("left", "right")),
        ):
            if (given := getattr(self, name)) not in accepted:
                raise ValueError(f"{self.name}: {name}={given}; accepted: {', '.join(accepted)}")

    @property
    def metric_version(self) -> int:
        return metrics.version(self._official, self.metric)

    def load(self, data: Data, n: int | None, length: int, seed: int) -> Loaded:
        """The first n ids of a split; None takes all, or 128 stories. `length` and `seed` shape
        embedded rows only. Raises DataError."""
        if n is not None and n < 1:
            raise DataError(f"n={n}; expected 1 or more")
        split = data.split or DEFAULT_SPLIT
        if split not in SPLITS:
            raise DataError(f"{self.name} has no split '{split}'; it has {', '.join(SPLITS)}")
        if data.source == "embedded":
            return self._stories(split, n or EMBEDDED_ROWS, length, seed)
        if data.source == "local":
            path = sources.local_file(data.dir, self.benchmark, f"{self.member}.zip")
        elif data.source == "hub":
            path = sources.fetched(self)
        else:
            raise DataError(f"no source '{data.source}'; accepted: embedded, local, hub")
        return self._archive(path, split, n)

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
        vip = [True] * len(query) + [False] * (len(ids) - len(query))
        return Encoded(ids, vip, tokens_in)

    def score(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> Mapping[str, float]:
        """SCROLLS' figures under their official names, and `value` in 0…100."""
        return metrics.compute(self._official, self.metric, predictions, references)

    def score_each(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> list[float]:
        """One score a row in 0…100. For ROUGE it is the row's own geometric mean, and their mean
        isn't `value`, the geometric mean of means: use them for intervals only."""
        return metrics.each(self._official, self.metric, predictions, references)

    @property
    def _official(self) -> str:
        return f"{self.benchmark}/{self.member}"

    # --- the benchmark's own rows -------------------------------------------------------------

    def _archive(self, path: Path, split: str, n: int | None) -> Loaded:
        member = f"{self.member}/{split}.jsonl"
        whole = n is None or sources.member_bytes(path, member) <= READ_WHOLE_BYTES
        what = f"{path}: {member}"
        rows, seen = self._merged(sources.records(path, member), split, n, whole)
        if not rows:
            raise DataError(f"{what} has no rows")
        if not any(reference.strip() for row in rows for reference in row.references):
            raise DataError(f"{what} has empty outputs only; {_WITHHELD[split == 'test']}")
        # A reading that stopped early knows no more than the benchmark says of itself.
        available = seen if whole else max(seen, self.n.get(split, 0))
        return Loaded(rows, split, sources.sha256(path), available)

    def _merged(
        self, records: Iterable[tuple[str, dict[str, Any]]], split: str, n: int | None, whole: bool
    ) -> tuple[list[Row], int]:
        """The first n ids as rows with all their references in order, and the number of ids read.
        Rows of one id follow each other in the benchmark; one that comes back later still counts
        if the split is read to its end, and must have the same input."""
        kept: dict[str, tuple[str, str, list[str]]] = {}
        seen: dict[str, int] = {}
        documents: dict[str, str] = {}
        for where, record in records:
            row_id = sources.text(record, "id", where)
            if not whole and row_id not in seen and len(seen) == n:
                break
            text = sources.text(record, "input", where)
            if record.get("output") is None and split == "test":
                raise DataError(f"{where}: no output; {_WITHHELD[True]}")
            output = sources.text(record, "output", where)
            if seen.setdefault(row_id, hash(text)) != hash(text):
                raise DataError(f"{where}: id '{row_id}' came before with another input")
            if row_id in kept:
                kept[row_id][2].append(output)
            elif n is None or len(kept) < n:
                try:
                    query, document = QUERIES[self.query](text)
                except ValueError as error:
                    raise DataError(f"{where}: column 'input' has {error}") from None
                if not document.strip():
                    raise DataError(f"{where}: column 'input' has no document")
                # NarrativeQA asks some thirty questions of each book; one copy is enough.
                kept[row_id] = (query, documents.setdefault(document, document), [output])
        rows = [Row(i, query, text, tuple(out)) for i, (query, text, out) in kept.items()]
        return rows, len(seen)

    # --- embedded rows ------------------------------------------------------------------------

    def _stories(self, split: str, n: int, length: int, seed: int) -> Loaded:
        from tasks import stories

        digest = hashlib.sha256(f"stories {stories.VERSION}".encode())
        records = []
        for index in range(n):
            text, output = self._story(split, index, length, seed)
            record = {"id": f"embedded-{split}-{seed}-{index:03d}", "input": text, "output": output}
            records.append((record["id"], record))
            digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
        rows, _ = self._merged(records, split, None, whole=True)
        return Loaded(rows, split, digest.hexdigest(), max(n, EMBEDDED_ROWS))

    def _story(self, split: str, index: int, length: int, seed: int) -> tuple[str, str]:
        """(input, output) of a story that fits into `length` tokens with its query, a blank line
        and the end."""
        from tasks import stories

        room = length - 2 - QUERY_TOKENS[self.embedded]
        while True:
            try:
                story = stories.story(split, index, room, seed)
            except ValueError as error:
                raise DataError(f"length={length} is too short for a story: {error}") from None
            head, output = self._asked(story, index)
            text = head + story.text
            query, document = QUERIES[self.query](text)
            over = stories.count_tokens(query) + stories.count_tokens(document) + 2 - length
            if over <= 0:
                return text, output
            # The facts move with the story's size, so its next question may be another one.
            room -= over

    def _asked(self, story: Any, index: int) -> tuple[str, str]:
        """(what stands before the story, output) in the benchmark's layout."""
        if self.embedded == "summary":
            return "", story.summary
        if self.embedded == "claim":
            hypothesis, label = story.claims[index % len(story.claims)]
            return f"{hypothesis}\n\n", label
        question = story.questions[index % len(story.questions)]
        if self.embedded == "recap":
            return f"{question.text}\n\n", f"The answer is {question.answers[0]}."
        if self.embedded == "options":
            pairs = zip("ABCD", question.options, strict=True)
            lines = "\n".join(f" ({letter}) {option}" for letter, option in pairs)
            return f"{question.text}\n\n{lines}\n\n\n", question.answers[0]
        return f"{question.text}\n\n", question.answers[0]
