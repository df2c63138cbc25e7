"""Command-line options and messages that several commands share."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from bench.errors import RequestError, unknown
from bench.request.other_names import our_name
from bench.store.query import DEFAULT
from bench.terminal.text_table import FORMATS

CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)")
"""argparse's message about a value that is none of an option's choices."""


class Parser(argparse.ArgumentParser):
    """Takes NAME=VALUE, as `bench run` does, in place of each option --NAME VALUE: results=DIR,
    data.dir=DIR. What is wrong is a RequestError of one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = [part for word in args or () for part in self._as_option(word)]
        return super().parse_known_args(words, namespace)

    def _as_option(self, word: str) -> list[str]:
        name, _, value = word.partition("=")
        option = f"--{name.replace('.', '-').replace('_', '-')}"
        action = self._option_string_actions.get(option) if value else None
        return [word] if action is None or action.nargs == 0 else [f"{option}={value}"]

    def error(self, message: str) -> NoReturn:
        if wrong := CHOICE.match(message):
            raise unknown(wrong[1], wrong[2], re.findall(r"[\w.-]+", wrong[3]))
        given = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        near = difflib.get_close_matches(given, self._option_string_actions, n=1)
        if near:
            message += f", did you mean {near[0]}?"
        elif given and (name := our_name(given)):
            message += f"; write {name}=…"
        raise RequestError(f"{message}; see {self.prog} --help")


def parser_for(name: str, about: str, examples: str = "") -> argparse.ArgumentParser:
    """The parser of `bench NAME`; its help ends with the examples as they are written."""
    return Parser(
        prog=f"bench {name}",
        description=about,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """--results: the folder of stored rows."""
    parser.add_argument(
        "--results",
        type=Path,
        default=DEFAULT,
        metavar="DIR",
        help=f"folder of rows ({DEFAULT}); also as results=DIR",
    )


def add_format(parser: argparse.ArgumentParser, *more: str) -> None:
    """--format and --json: see `text_table.tabular`; `more` are formats of this command alone."""
    about = "auto: a table at a terminal, tab-separated values elsewhere"
    parser.add_argument("--format", choices=(*FORMATS, *more), default="auto", help=about)
    add_json(parser, "auto")


def add_json(parser: argparse.ArgumentParser, default: str = "table") -> None:
    """--json: the command's table as JSON."""
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", default=default,
        help="the table as JSON",
    )  # fmt: skip


def warn_set_aside(warnings: Iterable[str]) -> None:
    """Name each file that reading rows skipped, once."""
    for warning in dict.fromkeys(warnings):
        print(f"bench: set aside {warning}", file=sys.stderr)
