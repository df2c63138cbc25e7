"""What a person sees of a sweep while it runs: how far it is, what runs now, what failed."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from bench.execution import shared_prefill
from bench.sweep.log import Note
from bench.terminal.console import Console
from bench.terminal.rows_table import STATUS_STYLE
from bench.units import counted, span

N_ENDED = 6
"""Ended cells that stay in sight, and as many failed ones."""
N_RUNNING = 8


@dataclass
class SweepProgress:
    """A live table at a terminal; elsewhere a line for each cell that ends. It draws only when it
    is updated: no thread of its own runs beside cells that are timed.

    titles    of the cells; `seconds` are their estimates
    """

    titles: Sequence[str]
    seconds: Sequence[float]
    n_parallel: int = 1
    notes: dict[int, Note] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    live: Live | None = None

    def __enter__(self) -> SweepProgress:
        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal:
            self.live = Live(console=console, auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.live:
            self.live.stop()

    def update(self, index: int, note: Note) -> None:
        """Shows the new note of a cell."""
        ended_before = index in self._ended()
        self.notes[index] = note
        self.refresh()
        if not self.live and index in self._ended() and not ended_before:
            line = (
                f"[{len(self._ended())}/{len(self.titles)}] {self.titles[index]}: {note['status']}"
            )
            print(" · ".join([line, *filter(None, [note.get("figures"), span(note["seconds"])])]))
            sys.stdout.flush()

    def refresh(self) -> None:
        if self.live:
            self.live.update(self.table(), refresh=True)

    def left_s(self) -> float:
        """Seconds to the end: the estimates of open cells, corrected by how long ended cells took
        in relation to theirs."""
        ended = self._ended()
        timed = [i for i, note in ended.items() if note["seconds"] > 1]
        estimated = sum(self.seconds[i] for i in timed)
        slowdown = sum(ended[i]["seconds"] for i in timed) / estimated if estimated else 1.0
        left = slowdown * sum(s for i, s in enumerate(self.seconds) if i not in ended)
        for i, note in self.notes.items():
            if note["state"] == "running":
                estimate, elapsed = slowdown * self.seconds[i], time.time() - note["since"]
                stage, done, total = note.get("stage") or ("starts", 0, 0)
                if stage == shared_prefill.STAGE and done:
                    left += elapsed * (total - done) / done - estimate
                else:  # a cell that exceeds its estimate is expected to end soon
                    left -= min(elapsed, 0.9 * estimate)
        return max(0.0, float(left)) / max(1, self.n_parallel)

    def table(self) -> Group:
        ended = self._ended()
        failed = {i: note for i, note in ended.items() if note["code"]}
        head = Table.grid(padding=(0, 2))
        head.add_row(
            f"[bold]{len(ended)}[/] of {counted(len(self.titles), 'cell')}",
            ProgressBar(total=len(self.titles), completed=len(ended), width=30),
            f"{span(time.monotonic() - self.began)} elapsed",
            f"about {span(self.left_s())} left",
            f"[red]{len(failed)} failed[/]" if failed else "",
        )
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        shown = {*list(failed)[-N_ENDED:], *list(ended)[-N_ENDED:]}
        for i, note in ended.items():
            if i not in shown:
                continue
            style = "red" if note["code"] else STATUS_STYLE.get(note["status"], "green")
            table.add_row(
                f"[{style}]{note['status']}[/]",
                escape(self.titles[i]),
                escape(note.get("figures") or note.get("reason", "").partition("\n")[0][:60]),
                span(note["seconds"]),
            )
        running = [item for item in self._by_time() if item[1]["state"] == "running"]
        for i, note in running[:N_RUNNING]:
            stage, done, total = note.get("stage") or ("starts", 0, 0)
            node = f" on {note['node']}" if note.get("node") else ""
            bar = ProgressBar(total=total, completed=done, width=20) if total else ""
            table.add_row(
                "[cyan]running[/]",
                escape(self.titles[i]),
                f"{stage}{f' {done}/{total}' if total else ''}{node}",
                span(time.time() - note["since"]),
                bar,
            )
        return Group(head, table)

    def _by_time(self) -> list[tuple[int, Note]]:
        return sorted(self.notes.items(), key=lambda item: item[1]["at"])

    def _ended(self) -> dict[int, Note]:
        """The cells that have ended, in the order in which they did."""
        return {i: note for i, note in self._by_time() if note["state"] == "ended"}
