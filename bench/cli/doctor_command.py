"""bench doctor: what a run needs of this machine, and what to do where it lacks something."""

from __future__ import annotations

from pathlib import Path

from bench.terminal import text_table
from bench.terminal.options import command, format_option, results_option

STYLES = {"ok": "green", "look": "yellow", "bad": "red"}


@command("What a run needs of this machine, and what to do about the rest.")
@results_option()
@format_option(default="table")
def doctor(results: Path, form: str) -> int:
    """Exit code 1 where no run is possible."""
    from bench.host.doctor import Finding, State, examine

    findings = examine(results.expanduser().resolve())
    if text_table.tabular(form):
        text_table.write(form, Finding._fields, [f._asdict() for f in findings])
    else:
        from rich.markup import escape

        lines = [
            (f"[{STYLES[f.state]}]{f.state}[/]", f.about, escape(f.found), escape(f.advice))
            for f in findings
        ]
        names = ("", "", "found", "what to do")
        text_table.draw("", names, lines, names)
    return int(any(finding.state == State.BAD for finding in findings))
