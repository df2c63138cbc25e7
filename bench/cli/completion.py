"""bench completion: the script by which a shell completes commands, names and values."""

from __future__ import annotations

import re
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
)

from bench.terminal.options import COMPLETE, OneOf, command

SHELLS = ("bash", "zsh", "fish")


@add_completion_class
class Bash(BashComplete):
    """Words that bash divides at = or : are completed as one, and no space follows NAME=. Files are
    completed where nothing else is."""

    source_template = BashComplete.source_template.replace(
        "return 0", "[[ $value == *[=/] ]] && compopt -o nospace\n    return 0"
    ).replace("-o nosort", "-o nosort -o bashdefault -o default")
    before = ""
    """The part of the word that bash has as words before the last one."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, last = super().get_completion_args()
        *given, word = re.sub("\n([=:])\n?", r"\1", "\n".join([*args, last])).split("\n")
        self.before = word if last in ("=", ":") else word.removesuffix(last)
        return given, word

    def format_completion(self, item: Any) -> str:
        return f"{item.type},{item.value.removeprefix(self.before)}"


@add_completion_class
class Zsh(ZshComplete):
    """No space follows NAME=."""

    source_template = ZshComplete.source_template.replace(
        "compadd -U -V unsorted -a completions",
        "compadd -U -V unsorted -- ${completions:#*[=/]}\n"
        "        compadd -U -V unsorted -S '' -- ${(M)completions:#*[=/]}",
    )


@command(
    "The script that completes commands, names and values in a shell.",
    'eval "$(bench completion bash)"       # in ~/.bashrc\n'
    'eval "$(bench completion zsh)"        # in ~/.zshrc, after compinit\n'
    "bench completion fish | source        # in ~/.config/fish/config.fish",
)
@click.argument("shell", type=OneOf(SHELLS))
def completion(shell: str) -> None:
    complete = get_completion_class(shell)
    assert complete is not None
    print(complete(click.get_current_context().find_root().command, {}, "bench", COMPLETE).source())
