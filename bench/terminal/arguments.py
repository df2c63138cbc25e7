"""Command-line options and messages that several commands share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from bench.store.query import DEFAULT
from bench.terminal.text_table import FORMATS


def parser_for(name: str, about: str, examples: str = "") -> argparse.ArgumentParser:
    """The parser of `bench NAME`; its help ends with the examples as they are written."""
    return argparse.ArgumentParser(
        prog=f"bench {name}",
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """--results: the folder of stored rows."""
    parser.add_argument(
        "--results", type=Path, default=DEFAULT, metavar="DIR", help=f"folder of rows ({DEFAULT})"
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """--format and --json: see `text_table.tabular`."""
    about = "auto: a table at a terminal, tab-separated values elsewhere"
    parser.add_argument("--format", choices=FORMATS, default="auto", help=about)
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="the same as JSON"
    )


def warn_set_aside(warnings: Iterable[str]) -> None:
    """Name each file that reading rows skipped, once."""
    for warning in dict.fromkeys(warnings):
        print(f"bench: set aside {warning}", file=sys.stderr)
