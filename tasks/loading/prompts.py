"""Encoding and truncation: of rows that ask first, and of prompts that ask at their end, as in
ZeroSCROLLS and LongEval."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.base import DataError, Encoded, Row, Tokenizer
from tasks.loading import truncation


@dataclass(frozen=True)
class Prompt(Row):
    """A row that asks at its end: `document` is everything before the query, `ending` what follows
    the query, `separator` is inserted where the document is truncated, and `further` are later
    questions on the same document."""

    ending: str = ""
    separator: str = ""
    further: tuple[Prompt, ...] = ()

    @property
    def text(self) -> str:
        return super().text + self.ending


def encode_query_first(
    row: Row, tokenizer: Tokenizer, length: int, side: str = "right", vip_after: int = 0
) -> Encoded:
    """Query, document and the end-of-sequence token (if the tokenizer has one); the document is
    truncated on its `side` to `length` ids in all. `tokens_in` counts all three before truncation.
    The VIP tokens are the query and `vip_after` more. Raises DataError if the query alone is too
    long."""
    query = list(tokenizer(row.query, add_special_tokens=False)["input_ids"])
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    room = length - len(query) - len(end)
    if room < 0:
        raise DataError(
            f"row {row.id}: its query has {len(query)} tokens, "
            f"more than fit in length={length} with {len(end)} for the end"
        )
    from_left, removed = side == "left", None
    part = truncation.part(row.document, tokenizer, room, special=False, end=from_left)
    document = part.ids
    if (excess := len(document) - room) > 0:
        document = document[excess:] if from_left else document[:room]
        ends = (0, room) if from_left else (room, 0)
        removed = truncation.removed(row.document, tokenizer, *ends, False, part.chars)
    ids = query + document + end
    tokens_in, estimated = part.tokens_in(row.document)
    n_vip = min(len(query) + vip_after, len(ids))
    vip = [True] * n_vip + [False] * (len(ids) - n_vip)
    tokens_in += len(query) + len(end)
    return Encoded(ids, vip, tokens_in, removed=removed, estimated=estimated)


def encode(row: Row, tokenizer: Tokenizer, length: int, instruction: str = "") -> Encoded:
    """Encode a prompt into at most `length` ids. If it is longer, the end of its document is
    replaced by `separator`.

    A prompt that fits is tokenized in one piece with the tokenizer's special tokens; a truncated
    one in two pieces, each with them (ZeroSCROLLS run_hf_model.py). The VIP tokens are the query,
    or without a query the `instruction` at the start of the document. Raises DataError if the part
    after the document doesn't fit.
    """
    assert isinstance(row, Prompt)
    query, ending = row.query, row.ending

    def tokenize(text: str, special: bool = True) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    whole, removed = truncation.part(row.text, tokenizer, length), None
    ids = whole.ids
    if len(ids) > length:
        tail = tokenize(row.separator + query + ending)
        if len(tail) > length:
            raise DataError(
                f"row {row.id}: what follows its document has {len(tail)} tokens, "
                f"more than fit in length={length}"
            )
        room = length - len(tail)
        document = truncation.part(row.document, tokenizer, room)
        ids = document.ids[:room] + tail
        removed = truncation.removed(row.document, tokenizer, room, 0, chars=document.chars)
    has_eos = int(bool(ids) and ids[-1] == tokenizer.eos_token_id)
    if query:
        # Tokenized on its own, a text may begin with one more (blank) token. Then both bounds are
        # one token early or the span one token long; the whole query is still inside.
        start = max(0, len(ids) - has_eos - len(tokenize(query + ending, False)))
        stop = min(start + len(tokenize(query, False)), len(ids) - has_eos)
    else:
        size = len(tokenize(instruction, False))
        start = len(tokenize(instruction)) - size - has_eos
        stop = start + size
    vip = [start <= position < stop for position in range(len(ids))]
    tokens_in, estimated = whole.tokens_in(row.text)
    return Encoded(ids, vip, tokens_in, removed=removed, estimated=estimated)


def question(row: Row, tokenizer: Tokenizer) -> list[int]:
    """The ids of a prompt's question alone, to be read after what came before it."""
    assert isinstance(row, Prompt)
    return list(tokenizer(row.query + row.ending, add_special_tokens=False)["input_ids"])


def encode_middle(row: Row, tokenizer: Tokenizer, length: int) -> Encoded:
    """Encode a prompt into at most `length` ids. One that is longer keeps its first and its last
    half, which are decoded and tokenized again, as in LongBench's and InfiniteBench's pred.py; the
    count may then differ by a token or two, and what is over is cut. The VIP tokens are the query,
    where there is one."""
    assert isinstance(row, Prompt)
    whole, removed = truncation.part(row.text, tokenizer, length), None
    ids = whole.ids
    if len(ids) > length:
        half = length // 2
        last = whole
        if whole.chars < len(row.text):
            last = truncation.part(row.text, tokenizer, half, end=True)
        chars = max(whole.chars, last.chars)
        removed = truncation.removed(row.text, tokenizer, half, half, chars=chars)
        kept = "".join(
            tokenizer.decode(part, skip_special_tokens=True)
            for part in (ids[:half], last.ids[-half:])
        )
        ids = list(tokenizer(kept)["input_ids"])[:length]
    asked = len(tokenizer(row.query + row.ending, add_special_tokens=False)["input_ids"])
    first = len(ids) - asked if row.query else len(ids)
    vip = [at >= first for at in range(len(ids))]
    tokens_in, estimated = whole.tokens_in(row.text)
    return Encoded(ids, vip, tokens_in, removed=removed, estimated=estimated)
