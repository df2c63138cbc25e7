"""bench doctor: what a run needs of this machine, and what to do where it lacks something."""

from __future__ import annotations

from collections.abc import Sequence

from bench.terminal import text_table
from bench.terminal.arguments import add_json, add_results, parser_for

STYLES = {"ok": "green", "look": "yellow", "bad": "red"}


def doctor(arguments: Sequence[str]) -> int:
    """Exit code 1 where no run is possible."""
    parser = parser_for("doctor", "what a run needs of this machine, and what to do about the rest")
    add_results(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    from bench.host.doctor import Finding, State, examine

    findings = examine(options.results.expanduser().resolve())
    if text_table.tabular(options.format):
        text_table.write(options.format, Finding._fields, [f._asdict() for f in findings])
    else:
        from rich.markup import escape

        lines = [
            (f"[{STYLES[f.state]}]{f.state}[/]", f.about, escape(f.found), escape(f.advice))
            for f in findings
        ]
        names = ("", "", "found", "what to do")
        text_table.draw("", names, lines, names)
    return int(any(finding.state == State.BAD for finding in findings))
