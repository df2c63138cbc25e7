"""What a truncated input lost of its row's text, and whether an answer went with it."""

from __future__ import annotations

from tasks.base import Row, Tokenizer


def removed(
    text: str, tokenizer: Tokenizer, first: int, last: int, special: bool = True
) -> tuple[int, int] | None:
    """The first character that is gone, and the first that is there again, where of a text's tokens
    the `first` and the `last` so many are kept. None for a tokenizer that doesn't know the
    characters of its tokens, a slow one."""
    if not getattr(tokenizer, "is_fast", False):
        return None
    tokenized = tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
    places = tokenized["offset_mapping"]
    start = places[first - 1][1] if first else 0
    stop = places[-last][0] if last else len(text)
    return start, max(start, stop)


def answer_removed(row: Row, removed: tuple[int, int]) -> bool | None:
    """Whether a right answer stood in the row's text and doesn't where these characters are gone.
    None where none stood there, such as a summary."""
    whole = row.text.lower()
    kept = f"{whole[: removed[0]]}\0{whole[removed[1] :]}"
    there = [answer for each in row.references if (answer := each.lower()) in whole]
    return any(answer not in kept for answer in there) if there else None
