"""The command line: finds a command by its name, and turns errors into exit codes.

A command's module is imported when it is called, so that the quick ones load no torch."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    ZshComplete,
    add_completion_class,
    get_completion_class,
    shell_complete,
)

from bench.errors import TRACEBACK, RequestError, RunError, described, print_traceback, unknown
from bench.terminal import output
from bench.terminal.options import COMPLETE, OneOf, command

COMMANDS = {
    "run": {
        "run": ("bench.cli.run_commands:run", "run a cell or a sweep: bench run --help"),
        "plan": ("bench.cli.run_commands:plan", "what a sweep would do, how long, what is done"),
        "status": ("bench.cli.run_commands:status", "how far sweeps are: queue and store"),
        "train": ("bench.cli.run_commands:train", "train a method's weights, or find them"),
        "fetch": ("bench.cli.inspect_commands:fetch", "download a task's data or a model"),
        "lm_eval": ("bench.cli.inspect_commands:lm_eval", "lm-evaluation-harness with any method"),
    },
    "look": {
        "ls": ("bench.cli.list_command:ls", "list methods, tasks, models, metrics, …"),
        "show": ("bench.cli.inspect_commands:show", "a row's prompt as a model gets it"),
        "results": ("bench.cli.row_commands:results", "list rows"),
        "results merge": ("bench.cli.row_commands:merge", "copy rows of several folders into one"),
        "results check": ("bench.cli.row_commands:check", "find files that can't be read"),
        "results migrate": ("bench.cli.row_commands:migrate", "which schema versions load"),
        "explain": ("bench.cli.compare_commands:explain", "what differs between two rows"),
        "doctor": ("bench.cli.host_commands:doctor", "is this machine ready, and what to do?"),
        "host": ("bench.cli.host_commands:this_host", "this machine and its noise"),
        "recall": ("tools.studies.command:recall", "recall of k-NN searches against their time"),
        "spectrum": ("tools.studies.command:spectrum", "spectrum of a model's hidden states"),
    },
    "compare": {
        "compare": ("bench.cli.compare_commands:compare", "is B better than A, and how sure?"),
        "verify": ("bench.cli.compare_commands:verify", "measure a row again on this machine"),
        "score": ("bench.cli.inspect_commands:score", "score anyone's predictions"),
        "rescore": ("bench.cli.row_commands:rescore", "score stored predictions by today's metric"),
    },
    "publish": {
        "report": ("reports.papers.command:report", "the papers' printed and measured numbers"),
        "plot": ("reports.figures.command:plot", "draw figures of stored rows"),
        "leaderboard": ("reports.leaderboard.command:leaderboard", "rows as one HTML page, ranked"),
        "export": ("bench.cli.inspect_commands:export", "a submission file of predictions"),
        "cite": ("reports.citations:cite", "what to cite for a row, a method or a task"),
        "export rows": ("bench.cli.row_commands:export_rows", "rows in the formats of other tools"),
        "submit-check": ("bench.cli.compare_commands:submit_check", "check rows to contribute"),
    },
    "extend": {
        "completion": ("bench.cli.main:completion", "complete words in bash, zsh and fish"),
        "new": ("bench.cli.inspect_commands:new", "write the files of a new method or task"),
        "check": ("bench.cli.inspect_commands:check", "does a method or a task keep its contract?"),
    },
}  # fmt: skip
"""Group → command → the function behind it, and its line in the overview."""
TARGETS = {name: target for group in COMMANDS.values() for name, (target, _) in group.items()}

INTERRUPTED = "interrupted; finished work is kept, the same command resumes"
DRAWN_BY_OTHERS = (["fetch"], ["lm_eval"], ["train"])
"""Commands that show progress bars of other libraries."""


class Bench(click.Group):
    """Commands that are imported when they are called. The name of a command may have two words."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TARGETS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in TARGETS:
            return None
        module, _, function = TARGETS[name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        n = 2 if " ".join(args[:2]) in TARGETS else 1
        name = " ".join(args[:n])
        if name not in TARGETS and not ctx.resilient_parsing:
            from bench.request import plugins

            for group in ("experiment", "method", "task", "model"):
                if name in plugins.available(group):
                    call = f"bench run {'-m ' * (group == 'experiment')}{group}={name}"
                    raise RequestError(f"'{name}' is no command; {call} runs it")
            raise unknown("command", name, TARGETS)
        return name, self.get_command(ctx, name), args[n:]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl([(name, about) for name, (_, about) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = click.Command.shell_complete(self, ctx, incomplete)
        names = (name for name in TARGETS if name.startswith(incomplete) and " " not in name)
        return [*found, *map(CompletionItem, names)]


@click.command(cls=Bench, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    None, "-V", "--version", package_name="longctx-bench", message="%(package)s %(version)s"
)
def bench() -> None:
    """Is this long-context method faster, smaller and as good?"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit codes: 0 done, 1 a run failed, 2 a wrong request, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    output.accept_any_text(clean_errors=words[:1] not in DRAWN_BY_OTHERS)
    if words[:1] == ["run"] and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    code = dispatch(words)
    if arguments is None:
        # All output is written: Ctrl-C while the interpreter shuts down must not change the code.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _terminated(number: int, _: object) -> None:
    """Say what Ctrl-C says, and end by the signal."""
    with contextlib.suppress(OSError):
        os.write(2, f"bench: {INTERRUPTED}\n".encode())
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command, and print its error in one line. Returns the exit code."""
    code, message = _outcome(arguments)
    with contextlib.suppress(OSError):
        if message:
            print(f"bench: {output.clean(message)}", file=sys.stderr)
    if not (problem := output.flush()):
        return code
    if not isinstance(problem, BrokenPipeError):
        with contextlib.suppress(OSError):
            print(f"bench: can't write the output: {problem.strerror}", file=sys.stderr, flush=True)
    return code or 1


def _outcome(arguments: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command, and its error message."""
    words = ["--help"] if arguments[:1] in ([], ["help"]) else list(arguments)
    try:
        if instruction := os.environ.get(COMPLETE):
            return shell_complete(bench, {}, "bench", COMPLETE, instruction), ""
        # `click.Command.main` would catch Ctrl-C and broken pipes.
        with bench.make_context("bench", words) as context:
            return int(bench.invoke(context) or 0), ""
    except click.exceptions.Exit as done:
        return int(done.exit_code), ""
    except KeyboardInterrupt:
        return 130, INTERRUPTED
    except BrokenPipeError:
        return 1, ""
    except click.UsageError as error:
        return 2, _usage(error)
    except Exception as error:
        print_traceback()
        if isinstance(error, (RequestError, RunError)):
            return 2 if isinstance(error, RequestError) else 1, str(error)
        if isinstance(error, OSError):
            named = f"{error.filename}: " if error.filename else ""
            return 1, f"{named}{error.strerror or error}"
        from tasks.base import DataError, FetchError

        if isinstance(error, DataError):
            return 1 if isinstance(error, FetchError) else 2, str(error)
        return 1, f"{described(error)}; {TRACEBACK}=1 shows the traceback"


def _usage(error: click.UsageError) -> str:
    """A message of click in one line, with the name that the request probably meant."""
    from bench.request.schema import our_name

    text = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption) and (name := our_name(error.option_name)):
        text = f"No such option '{error.option_name}'. Write {name}=… instead."
    text += "" if text.endswith((".", "?")) else "."
    return f"{text} See {error.ctx.command_path if error.ctx else 'bench'} --help"


# bench completion: the script by which a shell completes commands, names and values.

SHELLS = ("bash", "zsh", "fish")


@add_completion_class
class Bash(BashComplete):
    """Words that bash divides at = or : are completed as one, and no space follows NAME=. Files are
    completed if there is no other completion."""

    source_template = BashComplete.source_template.replace(
        "return 0", "[[ $value == *[=/] ]] && compopt -o nospace\n    return 0"
    ).replace("-o nosort", "-o nosort -o bashdefault -o default")
    before = ""
    """The part of the argument that bash has split off as earlier words."""

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
