"""bench export: predictions as an official submission file; rows in other tools' formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.errors import RequestError
from bench.terminal.arguments import add_results, parser_for, warn_set_aside


def export(arguments: Sequence[str]) -> int:
    """Of rows where the first word says so."""
    if arguments and arguments[0] == "rows":
        return rows(arguments[1:])
    from bench.cli.inspect_commands import export_predictions

    return export_predictions(arguments)


def rows(arguments: Sequence[str]) -> int:
    """Files only: nothing is sent anywhere."""
    from bench.export.targets import TARGETS, export, target

    width = max(map(len, TARGETS))
    known = "\n".join(
        f"  {name:<{width}}  {each.into:<6}  {each.about}" for name, each in TARGETS.items()
    )
    parser = parser_for(
        "export rows",
        "write rows in the formats of other tools",
        "bench export rows --to csv --into rows.csv\n"
        "bench export rows method=vcc length=1024,4096 --to jsonl --into rows.jsonl\n\n"
        f"--to, what --into names, and what is written:\n{known}",
    )
    parser.add_argument("words", nargs="*", metavar="NAME=VALUE", help="a filter, or a row's id")
    parser.add_argument("--to", required=True, metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--into", required=True, type=Path, metavar="PATH")
    add_results(parser)
    options = parser.parse_intermixed_args(arguments)
    into = options.into.expanduser()
    _check(options.to, target(options.to).into, into)
    from bench.store import query
    from bench.store.columns import COLUMNS

    chosen, warnings = query.select(options.words, options.results, list(COLUMNS))
    warn_set_aside(warnings)
    if not chosen:
        raise RequestError(f"no row in {options.results} fits; bench results lists rows")
    print(export(options.to, chosen, into, options.results))
    return 0


def _check(name: str, kind: str, into: Path) -> None:
    """Raises RequestError where `into` is not of the kind that the target writes."""
    if kind == "FILE" and into.is_dir():
        raise RequestError(f"--into {into} is a folder; --to {name} writes a file")
    if kind == "DIR" and into.exists() and not into.is_dir():
        raise RequestError(f"--into {into} is a file; --to {name} writes into a folder")
