"""Truncation: the tokens that are kept, the characters of a row's text that are lost, and whether
an answer is lost with them."""

from __future__ import annotations

from typing import NamedTuple

from tasks.base import Row, Tokenizer

WHOLE_CHARS = 1 << 18
"""Texts of at most this many characters are tokenized as a whole: their tokens are counted."""
CHARS_PER_TOKEN = 8
"""Characters that are read of a longer text for each token that stays; English has 4 to 5."""
SPARE_TOKENS = 128
"""Tokens that a part must have in addition to those that stay."""


class Part(NamedTuple):
    """Token ids of the beginning or end of a text, and the number of tokenized characters: all, or
    fewer if the text is far longer than the part that is kept."""

    ids: list[int]
    chars: int

    def tokens_in(self, text: str) -> tuple[int, bool]:
        """The number of tokens of the whole text, and whether it is an estimate from the tokens per
        character of the part."""
        return round(len(self.ids) * len(text) / max(self.chars, 1)), self.chars < len(text)


def part(
    text: str, tokenizer: Tokenizer, kept: int, special: bool = True, end: bool = False
) -> Part:
    """Token ids of a text, of which the first `kept` (with `end` the last) equal those of the whole
    text. The time depends on `kept`, not on the text: if a text has more than WHOLE_CHARS
    characters, only CHARS_PER_TOKEN characters are read for each kept token. If that part has fewer
    than SPARE_TOKENS more tokens, or if the kept tokens change when one character less is read, a
    part of four times its size is tried next."""

    def ids(chars: int) -> list[int]:
        piece = text[len(text) - chars :] if end else text[:chars]
        return list(tokenizer(piece, add_special_tokens=special)["input_ids"])

    kept = max(kept, 1)
    stays = slice(-kept, None) if end else slice(kept)
    chars = max(CHARS_PER_TOKEN * kept, WHOLE_CHARS)
    while chars < len(text):
        found, shorter = ids(chars), ids(chars - 1)
        if len(shorter) >= kept + SPARE_TOKENS and found[stays] == shorter[stays]:
            return Part(found, chars)
        chars *= 4
    return Part(ids(len(text)), len(text))


def removed(
    text: str, tokenizer: Tokenizer, first: int, last: int, special: bool = True, chars: int = 0
) -> tuple[int, int] | None:
    """The range of characters that truncation removes from a text whose first `first` and last
    `last` tokens are kept. `chars`: the number of characters at each end that are tokenized to find
    it (0: the whole text). None for a slow tokenizer, which has no character offsets."""
    if not getattr(tokenizer, "is_fast", False):
        return None

    def places(piece: str) -> list[tuple[int, int]]:
        tokenized = tokenizer(piece, add_special_tokens=special, return_offsets_mapping=True)
        found: list[tuple[int, int]] = tokenized["offset_mapping"]
        return found

    size = min(chars or len(text), len(text))
    beginning = places(text[:size]) if first or size == len(text) else []
    ending = beginning if size == len(text) else places(text[-size:]) if last else []
    start = beginning[first - 1][1] if first else 0
    stop = len(text) - size + ending[-last][0] if last else len(text)
    return start, max(start, stop)


def answer_removed(row: Row, removed: tuple[int, int]) -> bool | None:
    """Whether the row's document contains a right answer, and doesn't without these characters.
    None if it contains no answer, such as for a summary, or an option that only the query has."""
    whole = row.document.lower()
    kept = f"{whole[: removed[0]]}\0{whole[removed[1] :]}"
    there = [answer for each in row.references if (answer := each.lower()) in whole]
    return any(answer not in kept for answer in there) if there else None
