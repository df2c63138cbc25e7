"""Records with the same id as one row: several references of one input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tasks.base import DataError, Row


def merged(
    rows: Iterable[tuple[str, Row]], n: int | None, whole: bool, repeats: bool
) -> tuple[list[Row], int]:
    """The first n ids as rows with all their references in order, and the number of ids read.

    Rows with the same id are adjacent in the benchmarks. An id that occurs again later is merged if
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
