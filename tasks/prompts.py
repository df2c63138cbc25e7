"""Prompts that ask at their end, as ZeroSCROLLS and LongEval do: how they are cut and encoded."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.base import DataError, Encoded, Row, Tokenizer


@dataclass(frozen=True)
class Prompt(Row):
    """A row that asks at its end: `document` is all that stands before the query, `ending` what
    comes after it, and `separator` stands where the document was cut."""

    ending: str = ""
    separator: str = ""


def encode(row: Row, tokenizer: Tokenizer, length: int, instruction: str = "") -> Encoded:
    """A prompt that asks at its end, at most `length` ids. One that is too long loses the end of
    its document, where `separator` stands then.

    The whole prompt is tokenised in one piece with the tokenizer's own special tokens; a cut one
    in two, each with them (ZeroSCROLLS run_hf_model.py). VIP is the query, or without a query the
    `instruction` that begins the document. DataError if what must stay is too long.
    """
    assert isinstance(row, Prompt)
    query, ending = row.query, row.ending

    def ids(text: str, special: bool = True) -> list[int]:
        return list(tokenizer(text, add_special_tokens=special)["input_ids"])

    found = ids(row.document + query + ending)
    tokens_in = len(found)
    if tokens_in > length:
        tail = ids(row.separator + query + ending)
        if len(tail) > length:
            raise DataError(
                f"row {row.id}: what follows its document has {len(tail)} tokens, "
                f"more than fit in length={length}"
            )
        found = ids(row.document)[: length - len(tail)] + tail
    last = int(bool(found) and found[-1] == tokenizer.eos_token_id)
    if query:
        # A tokenizer may begin a text of its own with a blank: then both are one token early or
        # long, and the query is whole.
        start = max(0, len(found) - last - len(ids(query + ending, False)))
        stop = min(start + len(ids(query, False)), len(found) - last)
    else:
        start = len(ids(instruction)) - len(ids(instruction, False)) - last
        stop = start + len(ids(instruction, False))
    vip = [start <= at < stop for at in range(len(found))]
    return Encoded(found, vip, tokens_in)
