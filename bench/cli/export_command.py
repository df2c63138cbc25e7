"""bench export rows: rows in other tools' formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from bench.adapters.targets import TARGETS, export, target
from bench.errors import RequestError
from bench.terminal.options import PATH, command, request_words, results_option, warn_set_aside

WIDTH = max(map(len, TARGETS))
KNOWN = "\n".join(f"  {name:<{WIDTH}}  {t.into:<6}  {t.about}" for name, t in TARGETS.items())


@command(
    "Write rows in the formats of other tools. The words are a filter, or a row's id.",
    "bench export rows --to csv --into rows.csv\n"
    "bench export rows method=vcc length=1024,4096 --to jsonl --into rows.jsonl\n\n"
    f"--to, what --into names, and what is written:\n{KNOWN}",
)
@request_words()
@click.option("--to", required=True, metavar="TARGET", help=f"{', '.join(TARGETS)}.")
@click.option("--into", required=True, type=PATH, metavar="PATH")
@results_option()
def rows(words: Sequence[str], to: str, into: Path, results: Path) -> int:
    """Files only: nothing is sent anywhere."""
    into = into.expanduser()
    _check(to, target(to).into, into)
    from bench.rows import query
    from bench.rows.columns import COLUMNS

    chosen, warnings = query.select(words, results, list(COLUMNS))
    warn_set_aside(warnings)
    if not chosen:
        raise RequestError(f"no row in {results} fits; bench results lists rows")
    print(export(to, chosen, into, results))
    return 0


def _check(name: str, kind: str, into: Path) -> None:
    """Raises RequestError where `into` is not of the kind that the target writes."""
    if kind == "FILE" and into.is_dir():
        raise RequestError(f"--into {into} is a folder; --to {name} writes a file")
    if kind == "DIR" and into.exists() and not into.is_dir():
        raise RequestError(f"--into {into} is a file; --to {name} writes into a folder")
