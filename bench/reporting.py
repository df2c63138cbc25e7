"""The commands of the reports room and of submissions, found by name so that nothing of them is
imported before one is asked for: bench report | plot | leaderboard | submit-check | verify."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench import plugins

Command = Callable[[Sequence[str]], int]


def later(target: str) -> Command:
    """The command behind 'package.module:function', imported when it is called."""

    def command(arguments: Sequence[str]) -> int:
        function: Command = plugins.load(target)
        return function(arguments)

    return command


COMMANDS: dict[str, tuple[Command, str]] = {
    "report": (later("reports.tables_command:main"), "the papers' tables beside what was measured"),
    "plot": (later("reports.figures.command:plot"), "draw figures of stored rows"),
    "leaderboard": (later("reports.leaderboard.command:main"), "rows as one HTML page, ranked"),
    "verify": (later("bench.verify:main"), "measure a row again on this machine"),
    "submit-check": (later("bench.submission:main"), "check a contributed folder of rows"),
}
