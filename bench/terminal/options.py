"""Arguments and options that several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from bench.errors import RequestError, unknown
from bench.rows import DEFAULT
from bench.terminal.output import FORMATS


class GivenPath(click.Path):
    """A path that is not empty: an empty one would be the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            name = param.opts[0].removeprefix("--") if param else "path"
            raise RequestError(f"{name}= is not accepted: it takes a file or folder")
        return super().convert(value, param, ctx)


PATH = GivenPath(readable=False, path_type=Path)
JSON = "--json"
COMPLETE = "_BENCH_COMPLETE"
"""Environment variable by which a shell's script asks for completions."""
ONE_OR_MORE = click.IntRange(min=1)


class Command(click.Command):
    """Accepts NAME=VALUE, as `bench run` does, in place of each option --NAME VALUE: results=DIR,
    data.dir=DIR."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = {name: param for param in self.get_params(ctx) for name in param.opts}
        words = []
        for word in args:
            name, equals, value = word.partition("=")
            option = f"--{name.replace('.', '-').replace('_', '-')}"
            param = options.get(option) if equals else options.get(word)
            accepted = value or (param and param.type is PATH)
            if word == JSON and param and not param.expose_value:
                word = "--format=json"
            elif accepted and equals and isinstance(param, click.Option) and not param.is_flag:
                word = f"{option}={value}"
            words.append(word)
        return super().parse_args(ctx, words)


def command(about: str, examples: str = "", **settings: Any) -> Callable[[Any], Command]:
    """A command whose help begins with `about` and ends with the unchanged examples; `settings` are
    those of click's context."""
    settings = {"help_option_names": ["-h", "--help"], **settings}
    epilog = as_written(examples)
    return click.command(cls=Command, help=about, epilog=epilog, context_settings=settings)


def as_written(text: str) -> str:
    """Text whose lines the help doesn't join."""
    return "\n\n".join(f"\b\n{part}" for part in text.strip("\n").split("\n\n")) if text else ""


class OneOf(click.Choice[str]):
    """One of several names; the error for another name contains the nearest one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            raise unknown(param.opts[0] if param else "name", value, self.choices)
        return value


def request_words(metavar: str = "NAME=VALUE", required: bool = False) -> Callable[[Any], Any]:
    """The argument `words`: any number of NAME=VALUE."""
    many = f"[{metavar}]..." if not required else f"{metavar}..."
    return click.argument(
        "words", nargs=-1, required=required, metavar=many, shell_complete=complete_words
    )


def check_words(words: Sequence[str]) -> list[str]:
    """The arguments of a request. Raises RequestError for one that isn't NAME=VALUE."""
    from bench.request.schema import not_a_word

    for word in words:
        if "=" not in word and not word.startswith("~"):
            raise not_a_word(word)
    return list(words)


def complete_words(ctx: click.Context, param: click.Parameter, word: str) -> list[str]:
    """The arguments of a request to which `word` may be completed."""
    from bench.request.overrides import completions

    return completions(ctx.params.get("words") or (), word)


def results_option(name: str = "results") -> Callable[[Any], Any]:
    """--results: the folder of stored rows."""
    about = f"Folder of rows ({DEFAULT}); also as results=DIR."
    return click.option("--results", name, type=PATH, default=DEFAULT, metavar="DIR", help=about)


def format_option(*more: str, default: str = "auto") -> Callable[[Any], Any]:
    """--format and --json, as the parameter `form`: see `output.tabular`; `more` are formats
    only of this command."""
    about = f"auto: a table at a terminal, tab-separated values elsewhere ({default})."
    names = OneOf([*FORMATS, *more])
    form = click.option("--format", "form", type=names, default=default, help=about)
    json = click.option(JSON, is_flag=True, expose_value=False, help="The same as --format json.")
    return lambda function: form(json(function))


def warn_set_aside(warnings: Iterable[str]) -> None:
    """Name each file that reading rows skipped, once."""
    for warning in dict.fromkeys(warnings):
        print(f"bench: set aside {warning}", file=sys.stderr)
