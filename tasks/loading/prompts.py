"""Encoding and truncation of rows whose query comes first, and of prompts whose question is at the
end, as in ZeroSCROLLS and LongEval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tasks.base import CHAT, DataError, Encoded, Row, Tokenizer
from tasks.loading import truncation

MARKS = ("[[first text]]", "[[answer]]", "[[second text]]")
"""Contents of the turns with which a chat template is rendered, to find the text around them."""
CHAT_REQUEST = "Do not provide any explanation."


@dataclass(frozen=True)
class Prompt(Row):
    """A row whose question is at the end: `document` is the text before the query, `ending` the
    text after it, `separator` is inserted where the document is truncated, and `further` are later
    questions on the same document.

    instruction     the beginning of the document whose tokens are VIP if there is no query
    begins_answer   `ending` is the beginning of the answer: in a chat it follows the header of the
                    assistant's turn, as RULER's answer prefix does
    offset          number of characters of `document` before those of the original row
    """

    ending: str = ""
    separator: str = ""
    further: tuple[Prompt, ...] = ()
    instruction: str = ""
    begins_answer: bool = False
    offset: int = 0

    @property
    def text(self) -> str:
        return super().text + self.ending


def from_template(row: Row, template: str, separator: str) -> Prompt:
    """The prompt of a row whose query comes first: `template` has {document} and, after it,
    {query}, unless the row has no query. The instruction is the first paragraph."""
    before, _, rest = template.partition("{document}")
    between, asks, after = rest.partition("{query}")
    if not asks:
        between, after = "", rest
    document = f"{before}{row.document}{between}".lstrip("\n")
    return Prompt(
        id=row.id,
        query=row.query if asks else "",
        document=document,
        references=row.references,
        ending=after,
        separator=separator + between,
        instruction=before.partition("\n\n")[0],
        offset=len(before),
    )


def for_chat_model(row: Prompt, may_explain: bool) -> Prompt:
    """ZeroSCROLLS' variant of a prompt for chat models: no answer header and, unless the answer
    `may_explain`, a request not to explain (experiments/api/openai_api.py)."""
    if may_explain:
        return replace(row, ending="")
    instruction, blank, rest = row.document.partition("\n\n")
    document = f"{instruction.strip()} {CHAT_REQUEST}{blank}{rest}"
    longer = len(document) - len(row.document)
    return replace(row, document=document, ending="", offset=row.offset + longer)


def encode_query_first(
    row: Row, tokenizer: Tokenizer, length: int, side: str = "right", vip_after: int = 0
) -> Encoded:
    """Query, document and the end-of-sequence token (if the tokenizer has one); the document is
    truncated on its `side`, so that the total is `length` ids. `tokens_in` counts all three before
    truncation. The VIP tokens are the query and `vip_after` more. Raises DataError if the query
    alone is too long."""
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


# Prompts. For encoder–decoders, each piece has the tokenizer's special tokens. For decoders, the
# text begins with them once and doesn't end with them; in a chat, the template's text around the
# user's is tokenized in one piece with it.


class _Frame(NamedTuple):
    """The parts around a prompt's text. `special`: each piece has the tokenizer's special tokens;
    `start` are the ids before the text, `head` is the text before the document; `asked`, which ends
    the user's text, and `after` follow the query."""

    special: bool
    start: list[int]
    head: str
    asked: str
    after: str


def encode(row: Row, tokenizer: Tokenizer, length: int, decoder: str | None = None) -> Encoded:
    """Encode a prompt into at most `length` ids. If it is longer, the end of its document is
    replaced by `separator`.

    A prompt that fits is tokenized in one piece; a truncated one in two (ZeroSCROLLS
    run_hf_model.py). The VIP tokens are the query, or without a query the instruction at the start
    of the document. Raises DataError if the part after the document doesn't fit.
    """
    assert isinstance(row, Prompt)
    frame = _frame(row, tokenizer, decoder)
    special, start, head = frame[:3]
    query, ending = row.query, frame.asked + frame.after
    length -= len(start)

    def tokenize(text: str, special: bool = special) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    text = head + row.document + query + ending
    whole, removed = truncation.part(text, tokenizer, length, special), None
    ids = whole.ids
    if len(ids) > length:
        tail = tokenize(row.separator + query + ending)
        fixed = len(tail) + len(tokenize(head, False))
        if fixed > length:
            raise DataError(
                f"row {row.id}: what follows its document has {fixed} tokens, "
                f"more than fit in length={length}"
            )
        document, room = head + row.document, length - len(tail)
        part = truncation.part(document, tokenizer, room, special)
        ids = part.ids[:room] + tail
        removed = truncation.removed(document, tokenizer, room, 0, special, part.chars)
    has_eos = int(special and bool(ids) and ids[-1] == tokenizer.eos_token_id)
    if query:
        # Tokenized separately, a text may begin with one more (blank) token. Then both bounds are
        # one token early or the span is one token longer; it still contains the whole query.
        first = max(0, len(ids) - has_eos - len(tokenize(query + ending, False)))
        stop = min(first + len(tokenize(query, False)), len(ids) - has_eos)
    else:
        size = len(tokenize(row.instruction, False))
        first = len(tokenize(head + row.instruction)) - size - has_eos
        stop = first + size
    vip = [first <= position < stop for position in range(-len(start), len(ids))]
    tokens_in, estimated = whole.tokens_in(text)
    removed = _of_row(removed, row.offset + len(head))
    return Encoded([*start, *ids], vip, tokens_in + len(start), None, None, removed, estimated)


def encode_middle(
    row: Row, tokenizer: Tokenizer, length: int, decoder: str | None = None
) -> Encoded:
    """Encode a prompt into at most `length` ids. A longer prompt keeps half of these ids from its
    start and half from its end, which are decoded and tokenized again, as in LongBench's and
    InfiniteBench's pred.py. The count may then differ by a token or two, and the excess is cut from
    the end, or from the middle of a decoder's prompt. In a chat, the text of the user's turn is
    truncated. The VIP tokens are the query, if there is one."""
    assert isinstance(row, Prompt)
    frame = _frame(row, tokenizer, decoder)
    text = row.document + row.query + frame.asked

    def size(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    def ids_of(kept: str) -> list[int]:
        given = frame.head + kept + frame.after
        return [*frame.start, *tokenizer(given, add_special_tokens=frame.special)["input_ids"]]

    around = size(frame.head) + size(frame.after)
    room = length - around
    half = room // 2
    if half < 1:
        raise DataError(f"row {row.id}: length={length} is too short for a part of its prompt")
    whole, removed = truncation.part(text, tokenizer, room), None
    ids = ids_of(text) if len(whole.ids) <= room else []
    last = whole
    if not ids and whole.chars < len(text):
        last = truncation.part(text, tokenizer, half, end=True)
    while not 0 < len(ids) <= length:
        chars = max(whole.chars, last.chars)
        removed = truncation.removed(text, tokenizer, half, half, chars=chars)
        kept = "".join(
            tokenizer.decode(part, skip_special_tokens=True)
            for part in (whole.ids[:half], last.ids[-half:])
        )
        ids = ids_of(kept)[: length if frame.special else None]
        half -= 1
    stop = len(ids) - size(frame.after)
    first = len(ids) - size(row.query + frame.asked + frame.after) if row.query else len(ids)
    vip = [first <= at < stop for at in range(len(ids))]
    tokens_in, estimated = whole.tokens_in(text)
    removed = _of_row(removed, row.offset)
    return Encoded(ids, vip, tokens_in + around, removed=removed, estimated=estimated)


def encode_end(row: Row, tokenizer: Tokenizer, length: int, decoder: str | None = None) -> Encoded:
    """Encode a prompt into at most `length` ids, the last ones, as lm_eval's model `hf` does. A
    decoder's prompt keeps its start, the special tokens or in a chat the text before the user's,
    which lm_eval drops too. A text that begins with the first special token doesn't get it twice.
    The VIP tokens are the query, if there is one."""
    assert isinstance(row, Prompt)
    frame = _frame(row, tokenizer, decoder)
    special = frame.special and not _begins_with_bos(row.text, tokenizer)
    ending = frame.asked + frame.after
    text, asked = row.document + row.query + ending, 0
    start = [*frame.start, *tokenizer(frame.head, add_special_tokens=False)["input_ids"]]
    room = length - len(start)
    if room < 1:
        raise DataError(f"row {row.id}: length={length} is too short for a part of its prompt")
    part, removed = truncation.part(text, tokenizer, room, special, end=True), None
    kept = part.ids[-room:]
    if len(kept) < len(part.ids):
        removed = truncation.removed(text, tokenizer, 0, room, special, part.chars)
    elif frame.head:
        whole = tokenizer(frame.head + text, add_special_tokens=False)["input_ids"]
        start, kept = [], list(whole)
    if row.query:
        asked = len(tokenizer(row.query + ending, add_special_tokens=False)["input_ids"])
    ids = [*start, *kept]
    vip = [at >= len(ids) - asked for at in range(len(ids))]
    tokens_in, estimated = part.tokens_in(text)
    removed = _of_row(removed, row.offset)
    return Encoded(ids, vip, tokens_in + len(start), removed=removed, estimated=estimated)


def question(row: Row, tokenizer: Tokenizer, decoder: str | None = None) -> list[int]:
    """The ids of a later question, without the document, to be read after an answer without its
    end-of-turn token."""
    assert isinstance(row, Prompt)
    frame = _frame(row, tokenizer, decoder)
    before = _turns(tokenizer, *MARKS)[2] if decoder == CHAT else ""
    text = before + row.query + frame.asked + frame.after
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def size(row: Prompt, tokenizer: Tokenizer, decoder: str | None = None) -> int:
    """The number of ids of a prompt that is not truncated."""
    frame = _frame(row, tokenizer, decoder)
    text = frame.head + row.document + row.query + frame.asked + frame.after
    ids: Sequence[int] = tokenizer(text, add_special_tokens=frame.special)["input_ids"]
    return len(frame.start) + len(ids)


def _frame(row: Prompt, tokenizer: Tokenizer, decoder: str | None) -> _Frame:
    if decoder == CHAT:
        head, tail = _turns(tokenizer, MARKS[0])
        if row.begins_answer:
            return _Frame(False, [], head, "", tail + row.ending.lstrip("\n"))
        return _Frame(False, [], head, row.ending, tail)
    start = first_tokens(row.text, tokenizer) if decoder else []
    return _Frame(decoder is None, start, "", row.ending, "")


def first_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """The special tokens that a tokenizer puts before a text; none if the text begins with them."""
    ids, special = (
        list(tokenizer("a", add_special_tokens=each)["input_ids"]) for each in (False, True)
    )
    return [] if _begins_with_bos(text, tokenizer) else special[: special.index(ids[0])]


def _begins_with_bos(text: str, tokenizer: Tokenizer) -> bool:
    start: str | None = getattr(tokenizer, "bos_token", None)
    return bool(start and text.startswith(start))


def _turns(tokenizer: Tokenizer, *contents: str) -> list[str]:
    """The texts of a chat template before, between and after the contents of turns: the user's,
    the assistant's, the user's. A default system message of the template is in the first one.
    Raises DataError for a template that doesn't render or repeats or omits a content."""
    roles = ("user", "assistant", "user")
    turns = [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
    try:
        rest = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template may raise any exception
        raise DataError(f"the chat template fails: {' '.join(str(error).split())}") from error
    found = []
    for content in contents:
        if rest.count(content) != 1:
            raise DataError(f"the chat template has the text of a turn {rest.count(content)} times")
        before, _, rest = rest.partition(content)
        found.append(before)
    return [*found, rest]


def _of_row(removed: tuple[int, int] | None, offset: int) -> tuple[int, int] | None:
    """The range of a prompt's removed characters as a range of the original row."""
    return removed and (max(0, removed[0] - offset), max(0, removed[1] - offset))
