"""The command bench show: a row's prompt, as the model of a request reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from bench.errors import RequestError
from bench.terminal.options import check_words, command, request_words

SHOWN = 300
"""Characters at each end of a prompt."""


@command(
    "Print a row's prompt as the model gets it, without loading weights.",
    "bench show task=quality model=ORG/NAME length=4096 row=3\nbench show task=gov_report --full",
)
@request_words()
@click.option("--row", type=click.IntRange(min=0), default=0, help="Its number, from 0 (row=0).")
@click.option("--full", is_flag=True, help="All of the prompt, not its two ends.")
def show(words: Sequence[str], row: int, full: bool) -> int:
    from bench.models.checkpoints import load_tokenizer
    from bench.request.cell import Cell
    from bench.request.compose import compose
    from tasks.base import DataError

    cell = Cell.of({**compose(check_words(words)), "n": row + 1})
    task, rows = cell.build_task(), cell.rows().rows
    if task.vocabulary is not None:
        raise RequestError(f"task {task.name} reads token ids, so it has no text to show")
    if len(rows) <= row:
        raise RequestError(f"row={row} is not accepted: 0 to {len(rows) - 1}")
    one = rows[row]
    try:
        tokenizer = load_tokenizer(Path(cell.model["path"]))
        encoded = task.encode(one, tokenizer, cell.length)
    except (DataError, ValueError) as error:
        raise RequestError(str(error)) from error
    text = tokenizer.decode(encoded.ids)
    if not full and len(text) > 2 * SHOWN:
        omitted = f"[… {len(text) - 2 * SHOWN:,} characters …]"
        text = f"{text[:SHOWN]}\n{omitted}\n{text[-SHOWN:]}"
    print(text, end="\n\n")
    cut = "nothing"
    if encoded.removed:
        start, stop = encoded.removed
        n = min(stop, len(one.text)) - start
        cut = f"{n:,} characters ({n / len(one.text):.0%}), from {start:,} on"
    elif encoded.tokens_in > len(encoded.ids):
        cut = f"{1 - len(encoded.ids) / encoded.tokens_in:.0%} of the tokens"
    most = task.max_new_tokens
    facts = {
        "row": one.id,
        "tokens": f"{len(encoded.ids):,} of {cell.length:,}; an answer has {most:,} or fewer",
        "cut": cut,
        "prompt": cell.decoder or "query first, for an encoder",
        "stop strings": json.dumps(list(task.stop), ensure_ascii=False) if task.stop else "none",
        "references": json.dumps(list(one.references), ensure_ascii=False),
    }
    for name, value in facts.items():
        print(f"{name:<13} {value}")
    return 0
