"""bench completion: what a shell needs to complete commands, names and values. Imports no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from bench.cli.commands import COMMANDS
from bench.errors import RequestError, unknown
from bench.request import plugins, schema
from bench.request.compose import BY_TASK
from bench.request.overrides import GROUPS, PATHS
from bench.terminal.arguments import Parser, parser_for

SCRIPTS = Path(__file__).with_name("templates")
SHELLS = ("bash", "zsh", "fish")
CANDIDATES = "candidates"
"""What the scripts ask for, with the line up to the cursor."""
REQUESTS = ("run", "plan", "train")
"""Commands whose words are NAME=VALUE."""
VALUES = {"dtype": schema.DTYPES, "measure": schema.MEASURES, "probe": schema.PROBES}


class _Found(Exception):
    """Carries the parser of a command."""


def completion(arguments: Sequence[str]) -> int:
    """Prints a shell's script, or the candidates for a line, each on a line of its own."""
    if len(arguments) == 2 and arguments[0] == CANDIDATES:
        with contextlib.suppress(RequestError):
            print("\n".join(candidates(arguments[1])))
        return 0
    parser = parser_for(
        "completion",
        "the script that completes commands, names and values in a shell",
        'eval "$(bench completion bash)"                # in ~/.bashrc\n'
        'eval "$(bench completion zsh)"                 # in ~/.zshrc, after compinit\n'
        "bench completion fish | source                # in ~/.config/fish/config.fish",
    )
    parser.add_argument("shell", help=", ".join(SHELLS))
    shell = parser.parse_args(arguments).shell
    if shell not in SHELLS:
        raise unknown("shell", shell, SHELLS)
    print(SCRIPTS.joinpath(f"completion.{shell}").read_text(), end="")
    return 0


def candidates(line: str) -> list[str]:
    """The words that the last one of a command line may become."""
    *given, word = line.split(" ")
    given = [each for each in given[1:] if each]  # without `bench`
    if not given:
        found: Iterable[str] = [*COMMANDS, "--help", "--version"]
    elif "=" in word:
        found = _values(word)
    elif given[0] in REQUESTS:
        found = [*_names(given), "-m", "--help"]
    else:
        found = _arguments(given[0])
    return sorted({each for each in found if each.startswith(word)})


def _names(given: Sequence[str]) -> Iterable[str]:
    """NAME= of a request, and the parameters of the methods that it names."""
    chosen = dict(word.split("=", 1) for word in given if "=" in word)
    fields = {*schema.NAMES, *GROUPS, "data.dir"} - {*BY_TASK}
    for name in chosen.get("method", "").split(","):
        with contextlib.suppress(RequestError):
            content = plugins.conf("method", name)
            fields |= {f"method.{key}" for key in content.keys() - {*plugins.NOT_PARAMETERS}}
    return (f"{name}=" for name in fields if name not in chosen)


def _values(word: str) -> Iterable[str]:
    """Whole words NAME=VALUE; after a comma a value more."""
    name, _, value = word.partition("=")
    if name in PATHS and ("/" in value or name not in GROUPS):
        return (f"{name}={path}" for path in _paths(value))
    choices: Iterable[str] = plugins.available(name) if name in GROUPS else VALUES.get(name, ())
    before, comma, _ = value.rpartition(",")
    return (f"{name}={before}{comma}{each}" for each in choices if each not in before.split(","))


def _paths(value: str) -> Iterable[str]:
    folder, _, _ = value.rpartition("/")
    start = Path(os.path.expanduser(folder or ("/" if value.startswith("/") else ".")))
    if start.is_dir():
        for path in start.iterdir():
            prefix = f"{folder}/" if "/" in value else ""
            yield f"{prefix}{path.name}{'/' if path.is_dir() else ''}"


def _arguments(command: str) -> Iterable[str]:
    """The options and the choices of a command."""
    if command not in COMMANDS:
        return
    for action in _parser(command)._actions:
        yield from action.option_strings
        if not action.option_strings:
            yield from map(str, action.choices or ())
    if command == "ls":
        from bench.cli.list_command import METRICS, PLURALS

        yield from (*PLURALS, METRICS)


def _parser(command: str) -> Any:
    """The parser that a command makes before it does anything."""

    def found(parser: Parser, *_: Any) -> NoReturn:
        raise _Found(parser)

    parse = Parser.parse_known_args
    Parser.parse_known_args = found  # type: ignore[assignment, method-assign]
    try:
        plugins.load(COMMANDS[command])([])
    except _Found as carrier:
        return carrier.args[0]
    finally:
        Parser.parse_known_args = parse  # type: ignore[method-assign]
    raise RequestError(f"bench {command} has no parser")
